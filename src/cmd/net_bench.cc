#include "cmd/net_bench.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "base/time.h"

namespace kvd::cmd {
namespace {

constexpr Deadline kDeadline{.total = std::chrono::seconds(20), .progress = std::chrono::seconds(5)};
constexpr std::chrono::milliseconds kWaitMax = std::chrono::seconds(30);
constexpr std::uint16_t kZero = 0;  // shard and group
constexpr std::uint16_t kKeyBytes = 8;

struct SteadyClock final : Clock {
  [[nodiscard]] Time now() const override {
    return Time(std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
  }
};

std::string own_fingerprint() {
  std::random_device random;
  return fmt::format("kvdepot bench net {:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

}  // namespace

Result<std::unique_ptr<NetBench>> NetBench::open(const NetBenchOptions& options) {
  if (options.bytes < 2 * options.size.bytes()) return fail(Code::kNoSpace, "not even two records fit into the size");
  auto client = Client::open(options.depot, {.connect_timeout = std::chrono::seconds(5),
                                             .require_connection = true,
                                             .shared_memory = options.shared_memory,
                                             .name = "kvdepot bench net",
                                             .token_file = options.token_file,
                                             .tls_ca = options.tls_ca,
                                             .tls_cert = options.tls_cert,
                                             .tls_key = options.tls_key,
                                             .tls_server_name = options.tls_server_name});
  if (!client) return fail(client.error());
  std::unique_ptr<NetBench> bench(new NetBench(options, std::move(*client)));
  if (const Status ready = bench->prepare(); !ready) return fail(ready.error());
  return bench;
}

NetBench::NetBench(const NetBenchOptions& options, std::unique_ptr<Client> client)
    : options_(options),
      records_(static_cast<std::uint32_t>(options.bytes / options.size.bytes())),
      batch_(static_cast<std::uint32_t>(std::max<std::uint64_t>(1, kRequestBytes / options.size.bytes()))),
      client_(std::move(client)) {}

NetBench::~NetBench() { (void)remove(); }

Status NetBench::prepare() {
  Namespace ns;
  ns.fingerprint = own_fingerprint();
  ns.tenant = options_.tenant;
  ns.groups.push_back({.layers = options_.size.layers, .slab_bytes = options_.size.slab_bytes, .block_tokens = 16});
  const auto opened = client_->open_namespace(ns);
  if (!opened) return fail(opened.error());
  ns_ = *opened;
  const std::uint64_t bytes = records_ * options_.size.bytes();
  source_.resize(bytes);
  target_.resize(bytes);
  const auto source = client_->register_region(source_.data(), bytes);
  if (!source) return fail(source.error());
  const auto target = client_->register_region(target_.data(), bytes);
  if (!target) return fail(target.error());
  source_region_ = *source;
  target_region_ = *target;
  std::mt19937_64 random(1);  // bytes that nothing can compress
  for (std::uint64_t at = 0; at + sizeof(std::uint64_t) <= bytes; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(source_.data() + at, &word, sizeof word);
  }
  for (std::uint64_t l = 0; l < options_.size.layers; ++l) layer_offset_.push_back(l * options_.size.slab_bytes);
  for (std::uint64_t i = 0; i < records_; ++i) block_offset_.push_back(i * options_.size.bytes());
  hashes_.resize(records_);
  return {};
}

// New records: other numbers in their keys and slabs.
void NetBench::fill() {
  std::iota(hashes_.begin(), hashes_.end(), std::exchange(numbers_used_, numbers_used_ + records_));
  for (std::uint32_t i = 0; i < records_; ++i)
    for (const std::uint64_t layer : layer_offset_) {
      std::byte* const slab = source_.data() + block_offset_[i] + layer;
      std::memcpy(slab, &hashes_[i], sizeof hashes_[i]);
      std::memcpy(slab + sizeof hashes_[i], &layer, sizeof layer);
    }
}

KeyList NetBench::keys(std::uint32_t first, std::uint32_t count) const noexcept {
  return {.bytes = std::as_bytes(std::span(hashes_).subspan(first, count)), .key_bytes = kKeyBytes};
}

Placement NetBench::place(std::uint32_t first, std::uint32_t count, RegionId region) const noexcept {
  return {
      .region = region, .layer_offset = layer_offset_, .block_offset = std::span(block_offset_).subspan(first, count)};
}

// Requests go round and round through the records.
NetBench::Request NetBench::request(std::uint64_t number) const noexcept {
  const std::uint32_t in_all = (records_ + batch_ - 1) / batch_;
  const std::uint32_t first = static_cast<std::uint32_t>(number % in_all) * batch_;
  return {.first = first, .count = std::min(batch_, records_ - first)};
}

// Whether the records came; they are wiped, so that the next ones must come as well.
bool NetBench::take(const Request& request) noexcept {
  for (std::uint32_t i = request.first; i < request.first + request.count; ++i)
    for (const std::uint64_t layer : layer_offset_) {
      const std::uint64_t at = block_offset_[i] + layer;
      constexpr std::size_t kNamed = 2 * sizeof(std::uint64_t);  // see fill()
      if (std::memcmp(target_.data() + at, source_.data() + at, kNamed) != 0) return false;
      std::memset(target_.data() + at, 0xFF, kNamed);
    }
  return true;
}

Result<Completion> NetBench::finish(OpId op) {
  auto done = client_->wait(op, kWholeOp, kWaitMax);
  if (done && (done->code != Code::kOk || done->failed_keys > 0)) {
    const Code code = done->code != Code::kOk          ? done->code
                      : done->failed_code != Code::kOk ? done->failed_code
                                                       : Code::kNotFound;
    if (why_.empty()) why_ = *done->why != '\0' ? done->why : std::string(code_name(code));
    done = fail(code, "the depot did not do what it was asked");
  }
  client_->release(op);
  return done;
}

template <class Submit, class Check>
Result<NetFigures> NetBench::pump(double seconds, Submit submit, Check check) {
  const SteadyClock clock;
  const Stopwatch watch(clock);
  const std::uint64_t requests_min = (records_ + batch_ - 1) / batch_;
  // Half of the size at once at the most: a depot grants one connection a part of its pool only.
  const std::uint64_t depth = std::clamp<std::uint64_t>(requests_min / 2, 1, kDepth);
  NetFigures figures;
  std::deque<Request> running;
  std::uint64_t next = 0, bytes = 0;
  Status status;
  const auto more = [&] { return status && (next < requests_min || watch.seconds() < seconds); };
  while (more() || !running.empty()) {
    while (running.size() < depth && more()) {
      Request asked = request(next++);
      const Result<OpId> op = submit(asked);
      if (!op) {
        status = fail(op.error());
        break;
      }
      asked.op = *op;
      running.push_back(asked);
    }
    if (running.empty()) break;
    const Request oldest = running.front();
    running.pop_front();
    const auto done = finish(oldest.op);
    if (!done && status) status = fail(done.error());
    if (!done) continue;
    if (status && !check(oldest, *done)) status = fail(Code::kCorrupt, "wrong bytes");
    figures.latency_s.push_back(std::chrono::duration<double>(done->took).count());
    bytes += oldest.count * options_.size.bytes();
  }
  if (!status) return fail(status.error());
  figures.run = watch.finish(bytes);
  return figures;
}

Result<NetFigures> NetBench::put() {
  if (const Status removed = remove(); !removed) return fail(removed.error());
  fill();
  stored_ = true;
  return pump(
      0,
      [this](const Request& r) {
        return client_->multiput({.ns = ns_,
                                  .keys = keys(r.first, r.count),
                                  .src = place(r.first, r.count, source_region_),
                                  .deadline = kDeadline});
      },
      [](const Request&, const Completion&) { return true; });
}

Result<NetFigures> NetBench::get(double seconds) {
  std::ranges::fill(target_, std::byte{0});
  return pump(
      seconds,
      [this](const Request& r) {
        return client_->multiget({.ns = ns_,
                                  .keys = keys(r.first, r.count),
                                  .dest = place(r.first, r.count, target_region_),
                                  .deadline = kDeadline});
      },
      [this](const Request& r, const Completion&) { return take(r); });
}

Result<NetFigures> NetBench::match(double seconds) {
  const std::uint32_t blocks = std::min(kMatchKeys, records_);
  const SteadyClock clock;
  const Stopwatch watch(clock);
  NetFigures figures;
  do {
    const auto op = client_->match_prefix(
        {.ns = ns_, .shards = {&kZero, 1}, .groups = {&kZero, 1}, .keys = keys(0, blocks), .deadline = kDeadline});
    if (!op) return fail(op.error());
    const auto done = finish(*op);
    if (!done) return fail(done.error());
    if (done->prefix_blocks != blocks) return fail(Code::kNotFound, "records that were stored are missing");
    figures.latency_s.push_back(std::chrono::duration<double>(done->took).count());
  } while (watch.seconds() < seconds);
  figures.run = watch.finish(0);
  return figures;
}

Status NetBench::remove() {
  if (!std::exchange(stored_, false)) return {};
  for (std::uint32_t first = 0; first < records_; first += kKeysPerRequestMax) {
    const auto count = std::min(static_cast<std::uint32_t>(kKeysPerRequestMax), records_ - first);
    const auto op = client_->remove(ns_, {&kZero, 1}, {&kZero, 1}, keys(first, count), kDeadline);
    if (!op) return fail(op.error());
    if (const auto done = finish(*op); !done) return fail(done.error());
  }
  return {};
}

}  // namespace kvd::cmd
