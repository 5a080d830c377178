#include "arm.h"

#include <sys/resource.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>
#include <thread>

namespace kvd::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6; }

double processor_s() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

double since(Clock::time_point begun) { return std::chrono::duration<double>(Clock::now() - begun).count(); }

struct Load {
  std::uint32_t batch = 1, depth = 1;
  double seconds = 0;
  double rate = 0;  // bytes a second; 0 = as they come
};

// Of one run.
class Figures {
 public:
  Figures() : cpu_(processor_s()), begun_(Clock::now()) {}
  void add(std::uint64_t bytes, double latency_s) {
    bytes_ += bytes;
    latencies_.push_back(latency_s);
  }
  [[nodiscard]] double elapsed() const { return since(begun_); }
  [[nodiscard]] Clock::time_point begun() const { return begun_; }
  void stop() {
    seconds_ = elapsed();
    cpu_ = processor_s() - cpu_;
  }
  void print() {
    std::ranges::sort(latencies_);
    std::printf("{\"bytes\": %llu, \"seconds\": %.6f, \"cpu_seconds\": %.6f, \"requests\": %zu, \"p50_us\": %.2f, ",
                static_cast<unsigned long long>(bytes_), seconds_, cpu_, latencies_.size(), quantile_us(0.5));
    std::printf("\"p99_us\": %.2f}\n", quantile_us(0.99));
    std::fflush(stdout);
  }

 private:
  [[nodiscard]] double quantile_us(double q) const {
    if (latencies_.empty()) return 0;
    return latencies_[static_cast<std::size_t>(q * static_cast<double>(latencies_.size() - 1))] * 1e6;
  }
  double cpu_;
  Clock::time_point begun_;
  double seconds_ = 0;
  std::uint64_t bytes_ = 0;
  std::vector<double> latencies_;
};

struct Sent {
  Request request;
  Clock::time_point at;
};

// Keeps load.depth requests going, round and round through the records, until the time is over and each was in one.
Figures pump(Arm& arm, Records& records, What what, const Load& load) {
  const std::uint32_t in_all = (records.count() + load.batch - 1) / load.batch;
  const double request_s = load.rate > 0 ? static_cast<double>(load.batch * records.bytes()) / load.rate : 0;
  std::deque<Sent> running;
  std::uint64_t next = 0;
  Figures figures;
  const auto more = [&] { return next < in_all || figures.elapsed() < load.seconds; };
  const auto due = [&] { return figures.elapsed() >= static_cast<double>(next) * request_s; };
  while (more() || !running.empty()) {
    while (running.size() < load.depth && more() && (running.empty() || due())) {
      const auto at = std::chrono::duration<double>(static_cast<double>(next) * request_s);
      if (request_s > 0) std::this_thread::sleep_until(figures.begun() + at);
      const std::uint32_t first = static_cast<std::uint32_t>(next % in_all) * load.batch;
      const Request request{next++, first, std::min(load.batch, records.count() - first)};
      running.push_back({request, Clock::now()});
      arm.send(what, request);
    }
    if (running.empty()) break;
    const Sent oldest = running.front();
    running.pop_front();
    arm.finish(what, oldest.request);
    figures.add(oldest.request.count * records.bytes(), since(oldest.at));
  }
  figures.stop();
  return figures;
}

Figures lookups(Arm& arm, std::uint32_t keys, double seconds, std::uint32_t step, std::uint32_t records) {
  Figures figures;
  std::uint32_t first = 0;
  do {
    const auto at = Clock::now();
    arm.match(first, keys);
    figures.add(0, since(at));
    first += step;
    if (std::uint64_t{first} + keys > records) first = 0;
  } while (figures.elapsed() < seconds);
  figures.stop();
  return figures;
}

// One client and the records it has now.
class Session {
 public:
  explicit Session(Arm& arm) : arm_(arm) {}

  void obey(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "records") return take_records(words);
    if (verb != "put" && verb != "get" && verb != "match") throw Error("unknown command: " + line);
    if (records_ == nullptr) throw Error("no records yet");
    if (verb == "match") {
      std::uint32_t keys = 0;
      double seconds = 0;
      if (!(words >> keys >> seconds)) throw Error("match KEYS SECONDS [STEP]");
      std::uint32_t step = 0;
      if (!(words >> step)) step = 0;
      return lookups(arm_, keys, seconds, step, records_->count()).print();
    }
    move(verb == "put" ? What::kPut : What::kGet, words);
  }

 private:
  void take_records(std::istream& words) {
    std::size_t bytes = 0;
    std::uint32_t count = 0;
    if (!(words >> bytes >> count) || bytes == 0 || count == 0) throw Error("records BYTES COUNT");
    records_.reset();
    records_ = std::make_unique<Records>(bytes, count, ++seed_);
    arm_.use(*records_);
    std::printf("{\"records\": %u}\n", count);
    std::fflush(stdout);
  }

  void move(What what, std::istream& words) {
    Load load;
    if (!(words >> load.batch >> load.depth >> load.seconds) || load.batch == 0 || load.depth == 0)
      throw Error("put|get BATCH DEPTH SECONDS [RATE]");
    if (!(words >> load.rate)) load.rate = 0;
    if (std::uint64_t{load.batch} * load.depth > records_->count())
      throw Error("more under way than there are records");
    const bool compares = what == What::kGet && arm_.fills_targets();
    if (compares) records_->wipe_targets();
    Figures figures = pump(arm_, *records_, what, load);
    if (compares) records_->compare_targets();
    figures.print();
  }

  Arm& arm_;
  std::unique_ptr<Records> records_;
  std::uint64_t seed_ = std::random_device{}();
};

}  // namespace

std::uint64_t hash_of(std::span<const std::byte> bytes) noexcept { return XXH3_64bits(bytes.data(), bytes.size()); }

struct ValueHash::State {
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> xxh3{XXH3_createState(), &XXH3_freeState};
};

ValueHash::ValueHash() : state_(std::make_unique<State>()) { restart(); }
ValueHash::~ValueHash() = default;
void ValueHash::restart() { XXH3_64bits_reset(state_->xxh3.get()); }
void ValueHash::add(std::span<const std::byte> piece) {
  XXH3_64bits_update(state_->xxh3.get(), piece.data(), piece.size());
}
std::uint64_t ValueHash::value() const { return XXH3_64bits_digest(state_->xxh3.get()); }

Records::Records(std::size_t record_bytes, std::uint32_t count, std::uint64_t seed)
    : record_bytes_(record_bytes), count_(count), source_(record_bytes * count), target_(record_bytes * count) {
  std::mt19937_64 random(seed);  // nothing can compress it
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= source_.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(source_.data() + at, &word, sizeof word);
  }
  hashes_.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) hashes_.push_back(hash_of(source(i)));
}

bool Records::matches(std::uint32_t i, std::span<const std::byte> got) const noexcept {
  return got.size() == record_bytes_ && hash_of(got) == hashes_[i];
}

void Records::wipe_targets() { std::ranges::fill(target_, std::byte{0}); }

void Records::compare_targets() const {
  if (source_ != target_) throw Error("a record that was got is not what was put");
}

int obey(Arm& arm) {
  Session session(arm);
  for (std::string line; std::getline(std::cin, line);) session.obey(line);
  return 0;
}

int complain(const std::string& what) {
  std::string text = what;
  std::ranges::replace_if(text, [](char c) { return c < ' ' || c > '~' || c == '"' || c == '\\'; }, '?');
  std::printf("{\"error\": \"%s\"}\n", text.c_str());
  std::fflush(stdout);
  return 1;
}

}  // namespace kvd::bench
