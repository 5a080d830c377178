#include "netsim/sim_engine.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "net/testing/sim_dialer.h"
#include "net/tls_dialer.h"
#include "store/testing/store_kit.h"

namespace kvd::netsim {
namespace {

using client::OpKind;

constexpr std::byte kPoison{0xA5};
constexpr std::uint32_t kTableOps = 32;                   // more than a connection may have: some are turned away
constexpr Duration kSlack = Millis(1);                    // timers of the loop are exact
constexpr Duration kUnlimited = std::chrono::minutes(2);  // an operation without a total deadline ends by then
constexpr Duration kWatched = std::chrono::seconds(5);    // memory of ended operations
constexpr std::uint16_t kZero = 0;

bool failed(const Completion& done, std::size_t key) { return (done.failed[key / 8] >> (key % 8) & 1) != 0; }

std::uint64_t nanos(Duration d) { return static_cast<std::uint64_t>(d.count()); }

}  // namespace

SimEngine::SimEngine(io::SimLoop& loop, io::SimNet& net, std::uint64_t seed, Shared& shared,
                     const tls::ClientFiles* tls)
    : loop_(loop), net_(net), random_(seed), shared_(shared), tls_(tls), number_(seed % 100) {
  ns_ = *namespaces_.add(store::namespace_of(kLayers, kSlabBytes));
  ops_ = std::make_unique<client::OpTable>(kTableOps, -1);
  start();
}

SimEngine::~SimEngine() { stop(); }

void SimEngine::start() {
  state_ = std::make_unique<client::ClientState>();
  core_ = std::make_unique<client::Core>(loop_, *ops_, namespaces_, *state_,
                                         client::CoreOptions{.address = *net::parse_address("tcp://192.0.2.1:7070"),
                                                             .name = "engine",
                                                             .verify = shared_.verify,
                                                             .seed = random_.next(),
                                                             .make_dialer = make_dialer()});
  core_->start();
}

net::MakeDialer SimEngine::make_dialer() const {
  net::MakeDialer plain = net::make_sim_dialer(net_, kDepotName);
  if (tls_ == nullptr) return plain;
  return [plain = std::move(plain), files = *tls_](io::Loop& loop) -> std::unique_ptr<net::Dialer> {
    return std::make_unique<net::TlsDialer>(plain(loop), files, "localhost");
  };
}

void SimEngine::stop() {
  core_->stop();
  loop_.run_once(Duration::zero());  // what it has posted finds it stopped
  look();
  if (!running_.empty()) shared_.fail("a client that was closed has operations left");
  core_.reset();
  shared_.corrupt_slabs += state_->get.corrupt_slabs.value();
}

void SimEngine::restart() {
  stop();
  leases_.clear();
  start();
}

std::string SimEngine::name(const Running& running) const {
  constexpr std::array kNames = {"match", "get", "put", "remove", "stats"};
  return fmt::format("engine {}: a {} of {} records from {} on", number_,
                     kNames.at(static_cast<std::size_t>(running.kind)), running.records.size(), running.records[0]);
}

void SimEngine::step() {
  switch (random_.below(24)) {
    case 0: return remove(some_records(kRecords), some_deadline());
    case 1: return cancel_one();
    case 2: return unpin_one();
    case 3:
    case 4:
    case 5: return match(some_records(kRecords + kNeverPut), some_deadline());
    case 6:
    case 7:
    case 8:
    case 9:
    case 10: return put(some_records(kRecords), random_.chance(1, 2), some_deadline());
    case 11:
    case 12:
    case 13:
    case 14: return release_layer();
    case 15:
      if (random_.chance(1, 20)) restart();
      return;
    default: return get(some_records(kRecords + kNeverPut), random_.chance(1, 3), some_deadline());
  }
}

std::vector<std::size_t> SimEngine::some_records(std::size_t among) {
  const std::size_t first = random_.below(among);
  const std::size_t count = 1 + random_.below(random_.chance(1, 8) ? 24 : 4);
  std::vector<std::size_t> records;
  for (std::size_t i = 0; i < count; ++i) records.push_back((first + i) % among);
  return records;
}

Deadline SimEngine::some_deadline() {
  const auto below = [this](std::uint64_t bound) {
    return Millis(static_cast<std::int64_t>(1 + random_.below(bound)));
  };
  Deadline deadline{.total = below(random_.chance(1, 4) ? 20 : 1'500), .progress = Millis(0)};
  if (random_.chance(1, 2)) deadline.progress = below(300);
  return deadline;
}

std::vector<std::byte> SimEngine::keys_of(const std::vector<std::size_t>& records) const {
  std::vector<std::byte> keys;
  for (const std::size_t record : records) {
    std::vector<std::byte> key = store::foreign_of(record);
    if (shared_.native) {
      const Key native = store::id_of(record).key;
      key.resize(sizeof native);
      std::memcpy(key.data(), &native, sizeof native);
    }
    keys.insert(keys.end(), key.begin(), key.end());
  }
  return keys;
}

std::unique_ptr<SimEngine::Running> SimEngine::make(OpKind kind, std::vector<std::size_t> records) {
  auto running = std::make_unique<Running>();
  running->kind = kind;
  running->records = std::move(records);
  running->layers = kLayers;
  return running;
}

// Memory for the slabs, all poison.
Placement SimEngine::place(Running& running) {
  const std::size_t keys = running.records.size();
  running.memory.assign(running.layers * keys * kSlabBytes, kPoison);
  running.region = *regions_.add(running.memory.data(), running.memory.size(), RegionKind::kHost);
  layer_offsets_.clear();
  block_offsets_.clear();
  for (std::size_t i = 0; i < running.layers; ++i) layer_offsets_.push_back(i * keys * kSlabBytes);
  for (std::size_t i = 0; i < keys; ++i) block_offsets_.push_back(i * kSlabBytes);
  return {.region = running.region, .layer_offset = layer_offsets_, .block_offset = block_offsets_, .runs = {}};
}

void SimEngine::get(std::vector<std::size_t> records, bool part, const Deadline& deadline) {
  auto running = make(OpKind::kGet, std::move(records));
  if (part) {
    running->layer_first = static_cast<std::uint16_t>(random_.below(kLayers));
    running->layers = static_cast<std::uint16_t>(1 + random_.below(kLayers - running->layer_first));
  }
  running->versions.assign(running->records.size(), 0xFF);
  const auto keys = keys_of(running->records);
  const Placement dest = place(*running);
  ++shared_.gets;
  auto request =
      client::make_get(namespaces_, regions_,
                       {.ns = ns_,
                        .layer_first = running->layer_first,
                        .layer_count = running->layers,
                        .keys = {.bytes = keys,
                                 .key_bytes = static_cast<std::uint16_t>(keys.size() / running->records.size()),
                                 .native = shared_.native},
                        .dest = dest,
                        .stop_at_first_failure = random_.chance(1, 2)});
  submit(std::move(running), std::move(request), deadline);
}

void SimEngine::put(std::vector<std::size_t> records, bool whole, const Deadline& deadline) {
  auto running = make(OpKind::kPut, std::move(records));
  running->whole = whole;
  const auto keys = keys_of(running->records);
  const Placement src = place(*running);
  for (std::size_t i = 0; i < running->records.size(); ++i) {
    const std::size_t record = running->records[i];
    const std::uint64_t version = 1 + random_.below(kVersions);
    shared_.put[record] = static_cast<std::uint8_t>(shared_.put[record] | 1U << version);
    for (std::uint16_t layer = 0; layer < kLayers; ++layer) {
      const std::size_t slab = layer * running->records.size() + i;
      store::fill_slab(MutableBytes(running->memory).subspan(slab * kSlabBytes, kSlabBytes), record, version, layer);
    }
  }
  ++shared_.puts;
  auto request =
      client::make_put(namespaces_, regions_,
                       {.ns = ns_,
                        .keys = {.bytes = keys,
                                 .key_bytes = static_cast<std::uint16_t>(keys.size() / running->records.size()),
                                 .native = shared_.native},
                        .src = src,
                        .ack = static_cast<AckLevel>(random_.below(3)),
                        .whole = whole});
  submit(std::move(running), std::move(request), deadline);
}

void SimEngine::match(std::vector<std::size_t> records, const Deadline& deadline) {
  auto running = make(OpKind::kMatch, std::move(records));
  const auto keys = keys_of(running->records);
  ++shared_.others;
  auto request = client::make_match(
      namespaces_, {.ns = ns_,
                    .shards = {&kZero, 1},
                    .groups = {&kZero, 1},
                    .keys = {.bytes = keys,
                             .key_bytes = static_cast<std::uint16_t>(keys.size() / running->records.size()),
                             .native = shared_.native},
                    .lease_ms = random_.chance(1, 2) ? static_cast<std::uint32_t>(1 + random_.below(3'000)) : 0,
                    .promote = random_.chance(1, 2)});
  submit(std::move(running), std::move(request), deadline);
}

void SimEngine::remove(std::vector<std::size_t> records, const Deadline& deadline) {
  auto running = make(OpKind::kRemove, std::move(records));
  const auto keys = keys_of(running->records);
  ++shared_.others;
  auto request = client::make_remove(namespaces_, ns_, {&kZero, 1}, {&kZero, 1},
                                     {.bytes = keys,
                                      .key_bytes = static_cast<std::uint16_t>(keys.size() / running->records.size()),
                                      .native = shared_.native},
                                     deadline);
  submit(std::move(running), std::move(request), deadline);
}

void SimEngine::submit(std::unique_ptr<Running> running, Result<client::OpRequest> request, const Deadline& deadline) {
  KVD_CHECK(request.has_value());
  // As a client does, most of the time: the depot is known to be away.
  const bool away = !state_->connected() || state_->breaker_open();
  request->deadline = deadline;
  request->submitted = running->submitted = loop_.now();
  running->latest = after(loop_.now(), deadline.total > Millis(0) ? deadline.total + kSlack : kUnlimited);
  Result<client::Op*> op = fail(Code::kUnavailable, "the depot is away");
  if (!away || random_.chance(1, 4)) op = ops_->add(std::move(*request));
  if (!op) {
    request->region.drop();
    last_id_ = 0;
    last_code_ = Code::kUnavailable;
    return let_go(*running);
  }
  running->id = last_id_ = (*op)->id.load();
  core_->submit(**op, client::Op::kStart);
  running_.push_back(std::move(running));
}

void SimEngine::release_layer() {
  for (const auto& running : running_) {
    if (running->kind != OpKind::kPut || running->whole || running->next_layer == kLayers) continue;
    if (!ops_->release_layer(running->id, running->next_layer++)) return shared_.fail("a layer is not taken");
    return core_->submit(*ops_->find(running->id), client::Op::kLayers);
  }
}

void SimEngine::cancel_one() {
  if (running_.empty()) return;
  const OpId id = (*std::next(running_.begin(), static_cast<std::ptrdiff_t>(random_.below(running_.size()))))->id;
  ops_->find(id)->cancel_id = id;
  core_->submit(*ops_->find(id), client::Op::kCancel);
}

void SimEngine::unpin_one() {
  if (leases_.empty()) return;
  std::swap(leases_.back(), leases_[random_.below(leases_.size())]);
  core_->unpin(leases_.back());
  leases_.pop_back();
}

void SimEngine::look() {
  std::array<Completion, 64> done;
  for (std::size_t n = ops_->poll(done); n > 0; n = ops_->poll(done)) {
    for (std::size_t i = 0; i < n; ++i) take(done[i]);
  }
  for (const auto& running : running_) {
    if (loop_.now() > running->latest) shared_.fail(name(*running) + " is overdue");
  }
  check_ended();
}

void SimEngine::take(const Completion& done) {
  const auto at = std::ranges::find_if(running_, [&](const auto& running) { return running->id == done.op; });
  if (at == running_.end()) return shared_.fail("something that is over has ended again");
  if (done.layer != kWholeOp) return judge_layer(**at, done);
  const std::unique_ptr<Running> running = std::move(*at);
  running_.erase(at);
  judge_end(*running, done);
  let_go(*running);  // before the release: the end alone frees the region
  if (!ops_->release(done.op)) shared_.fail(name(*running) + " has ended and cannot be released");
}

void SimEngine::judge_layer(Running& running, const Completion& done) {
  if (done.layer != running.layer_first + running.next_layer++)
    return shared_.fail(name(running) + ": layers out of order");
  const std::size_t keys = running.records.size();
  for (std::size_t key = 0; key < keys; ++key) {
    if (failed(done, key)) continue;
    const std::size_t at = ((done.layer - running.layer_first) * keys + key) * kSlabBytes;
    const Bytes slab = Bytes(running.memory).subspan(at, kSlabBytes);
    std::uint8_t& versions = running.versions[key];
    for (unsigned version = 0; version < 8; ++version) {
      const auto bit = static_cast<std::uint8_t>(1U << version);
      if ((versions & bit) == 0) continue;
      const bool was_put = (shared_.put[running.records[key]] & bit) != 0;
      if (!was_put || !store::slab_is(slab, running.records[key], version, done.layer)) versions ^= bit;
    }
    if (versions == 0) shared_.fail(fmt::format("{}: wrong bytes of record {}", name(running), running.records[key]));
  }
}

void SimEngine::judge_end(Running& running, const Completion& done) {
  const Time ended = after(running.submitted, done.took);
  if (ended > running.latest) shared_.fail(name(running) + " has ended late");
  if (done.code == Code::kInvalid || done.code == Code::kCorrupt) {
    shared_.fail(fmt::format("{} is refused: {}", name(running), done.why));
  }
  last_code_ = done.code;
  last_hits_ = 0;
  if (running.kind == OpKind::kGet) {
    if (done.code == Code::kOk && running.next_layer != running.layers)
      shared_.fail(name(running) + ": layers are missing");
    for (std::size_t key = 0; done.code == Code::kOk && key < running.records.size(); ++key)
      last_hits_ += !failed(done, key);
    shared_.keys_hit += last_hits_;
  }
  if (running.kind == OpKind::kMatch && done.code == Code::kOk) {
    if (done.prefix_blocks > running.records.size()) shared_.fail(name(running) + " has found more than was asked for");
    if (done.lease != 0) leases_.push_back(done.lease);
    shared_.leases += done.lease != 0;
  }
  shared_.timeouts += done.code == Code::kTimeout;
  shared_.cancelled += done.code == Code::kCancelled;
  shared_.unavailable += done.code == Code::kUnavailable;
  shared_.busy += done.code == Code::kBusy;
  for (const std::uint64_t value : {static_cast<std::uint64_t>(running.kind), static_cast<std::uint64_t>(done.code),
                                    std::uint64_t{done.failed_keys}, nanos(ended.time_since_epoch())}) {
    shared_.digest = (shared_.digest ^ value) * 0x9E37'79B9'7F4A'7C15;
  }
}

// Its memory is nobody's from now on, and its region free.
void SimEngine::let_go(Running& running) {
  if (running.memory.empty()) return;
  if (!regions_.remove(running.region)) shared_.fail(name(running) + " has ended and its region is in use");
  std::ranges::fill(running.memory, kPoison);
  ended_.push_back({.memory = std::move(running.memory), .until = after(loop_.now(), kWatched)});
}

void SimEngine::check_ended() {
  while (!ended_.empty() && ended_.front().until <= loop_.now()) {
    const bool untouched = std::ranges::all_of(ended_.front().memory, [](std::byte byte) { return byte == kPoison; });
    if (!untouched) shared_.fail("memory of an operation that had ended was written");
    ended_.pop_front();
  }
}

// Runs until the operation that was submitted last has ended.
Code SimEngine::finish() {
  const OpId id = last_id_;
  const auto over = [&] {
    return std::ranges::none_of(running_, [id](const auto& running) { return running->id == id; });
  };
  loop_.run_until(
      [&] {
        look();
        return over();
      },
      kUnlimited);
  return over() ? last_code_ : Code::kTimeout;
}

void SimEngine::ask_everything() {
  constexpr Deadline kLong{.total = std::chrono::seconds(20), .progress = Millis(0)};
  for (std::uint32_t i = 0; i < 2 * kOpsMax; ++i) {
    get(some_records(kRecords), false, kLong);
    if (const Code code = finish(); code != Code::kOk) {
      shared_.fail(fmt::format("engine {}: a get on a depot that works ends with {}", number_, code_name(code)));
    }
    put(some_records(kRecords), true, kLong);
    if (const Code code = finish(); code != Code::kOk) {
      shared_.fail(fmt::format("engine {}: a put to a depot that works ends with {}", number_, code_name(code)));
    }
    match(some_records(kRecords), kLong);
    if (const Code code = finish(); code != Code::kOk) {
      shared_.fail(fmt::format("engine {}: a match on a depot that works ends with {}", number_, code_name(code)));
    }
  }
  while (!leases_.empty()) unpin_one();
}

void SimEngine::remove_everything() {
  constexpr Deadline kLong{.total = std::chrono::seconds(20), .progress = Millis(0)};
  std::vector<std::size_t> all(kRecords);
  for (std::size_t i = 0; i < kRecords; ++i) all[i] = i;
  remove(all, kLong);
  const Code code = finish();
  if (code == Code::kIo) return;  // the tier is off: what flash holds is not removed
  if (code != Code::kOk)
    return shared_.fail(fmt::format("engine {}: a removal ends with {}", number_, code_name(code)));
  for (const std::size_t record : all) {
    get({record}, false, kLong);
    if (finish() != Code::kOk || last_hits_ > 0)
      shared_.fail(fmt::format("record {} was removed and is there", record));
  }
}

}  // namespace kvd::netsim
