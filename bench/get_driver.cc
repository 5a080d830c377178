// get_driver: gets from a running depot's pool, timed one after the other, as JSON on stdout.
//
//   get_driver ADDRESS --keys 54 --layers 30 --slab 98304 --sets 2 --rounds 20 [--no-shared-memory]
//
// Puts `sets` prefixes of `keys` records first, then gets them in turn, each into memory of its own: with more than the
// caches hold, neither source nor destination is in one. Prints the median and the best time of a get, its rate, the
// processor time of this process per GB, and whether bytes came through shared memory. What is read for the first time,
// `--settle` milliseconds behind the puts, is told apart: `first_ms`, and `first_faults`, page faults of this process.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include "kvdepot/embed.h"

namespace {

using std::chrono::nanoseconds;

struct Wanted {
  std::string depot;
  std::size_t keys = 54;
  std::uint16_t layers = 30;
  std::uint32_t slab_bytes = 98304;
  std::size_t sets = 2;
  std::size_t rounds = 20;
  unsigned settle_ms = 0;
  bool no_shared_memory = false;
};

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "get_driver: %s\n", what);
  std::exit(1);
}

template <class T>
T must(kvd::Result<T> result) {
  if (!result) die(result.error().what);
  return std::move(*result);
}

rusage used() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  return use;
}

double processor_s() {
  const rusage use = used();
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

// One prefix: its keys and its place in memory.
struct Set {
  std::vector<std::uint64_t> keys, layer_offset, block_offset;
};

class Driver {
 public:
  explicit Driver(const Wanted& wanted) : wanted_(wanted), memory_(set_bytes() * wanted.sets) {
    kvd::ClientOptions options{.connect_timeout = std::chrono::seconds(10), .require_connection = true};
    options.shared_memory = !wanted.no_shared_memory;
    client_ = must(kvd::open_any(wanted.depot, {.client = options}));
    kvd::Namespace ns;
    ns.fingerprint = "get_driver " + std::to_string(wanted.layers) + " x " + std::to_string(wanted.slab_bytes);
    ns.groups.push_back(
        {.layers = wanted.layers, .slab_bytes = wanted.slab_bytes, .block_tokens = 16, .order = "LBHNC"});
    ns_ = must(client_->open_namespace(ns));
    for (std::size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(i * 131 + i / 4096);
    region_ = must(client_->register_region(memory_.data(), memory_.size()));
    for (std::size_t s = 0; s < wanted.sets; ++s) sets_.push_back(make_set(s));
  }

  void put() {
    for (const Set& set : sets_)
      finish(client_->multiput({.ns = ns_, .keys = keys(set), .src = place(set), .deadline = kLong}));
  }
  // The time of each get.
  std::vector<nanoseconds> get(std::size_t rounds) {
    std::vector<nanoseconds> took;
    for (std::size_t i = 0; i < rounds; ++i) {
      const Set& set = sets_[i % sets_.size()];
      took.push_back(finish(client_->multiget({.ns = ns_, .keys = keys(set), .dest = place(set), .deadline = kLong})));
    }
    return took;
  }
  [[nodiscard]] std::size_t set_bytes() const { return wanted_.keys * wanted_.layers * wanted_.slab_bytes; }
  [[nodiscard]] std::uint64_t bytes_shared() const { return client_->stats().bytes_shared; }

 private:
  static constexpr kvd::Deadline kLong{.total = std::chrono::seconds(60), .progress = {}};

  [[nodiscard]] Set make_set(std::size_t number) const {
    Set set;
    set.keys.resize(wanted_.keys);
    std::iota(set.keys.begin(), set.keys.end(), number * wanted_.keys);
    const std::size_t layer_bytes = wanted_.keys * wanted_.slab_bytes;
    for (std::size_t l = 0; l < wanted_.layers; ++l) set.layer_offset.push_back(number * set_bytes() + l * layer_bytes);
    for (std::size_t k = 0; k < wanted_.keys; ++k) set.block_offset.push_back(k * wanted_.slab_bytes);
    return set;
  }
  static kvd::KeyList keys(const Set& set) { return {.bytes = std::as_bytes(std::span(set.keys)), .key_bytes = 8}; }
  [[nodiscard]] kvd::Placement place(const Set& set) const {
    return {.region = region_, .layer_offset = set.layer_offset, .block_offset = set.block_offset};
  }
  nanoseconds finish(kvd::Result<kvd::OpId> op) {
    const kvd::OpId id = must(std::move(op));
    const kvd::Completion done = must(client_->wait(id, kvd::kWholeOp, std::chrono::seconds(60)));
    client_->release(id);
    if (done.code != kvd::Code::kOk || done.failed_keys > 0) die("an operation failed: is the pool large enough?");
    return done.took;
  }

  Wanted wanted_;
  std::vector<std::byte> memory_;
  std::unique_ptr<kvd::Client> client_;
  kvd::NamespaceId ns_ = 0;
  kvd::RegionId region_;
  std::vector<Set> sets_;
};

double median_ms(std::vector<nanoseconds> took) {
  std::ranges::sort(took);
  return std::chrono::duration<double, std::milli>(took[took.size() / 2]).count();
}

void measure(const Wanted& wanted) {
  Driver driver(wanted);
  driver.put();
  std::this_thread::sleep_for(std::chrono::milliseconds(wanted.settle_ms));
  const long faults = used().ru_minflt;
  const double first_ms = median_ms(driver.get(wanted.sets));
  const long first_faults = (used().ru_minflt - faults) / static_cast<long>(wanted.sets);
  driver.get(wanted.sets);
  const double before = processor_s();
  const std::uint64_t shared = driver.bytes_shared();
  std::vector<nanoseconds> took = driver.get(wanted.rounds);
  const double processor = processor_s() - before;
  std::ranges::sort(took);
  const double median_s = std::chrono::duration<double>(took[took.size() / 2]).count();
  const double best_s = std::chrono::duration<double>(took.front()).count();
  const auto bytes = static_cast<double>(driver.set_bytes());
  const double gb = bytes * static_cast<double>(wanted.rounds) / 1e9;
  std::printf(
      "{\"bytes\": %.0f, \"first_ms\": %.3f, \"first_faults\": %ld, \"median_ms\": %.3f, \"best_ms\": %.3f, "
      "\"median_gb_s\": %.2f, \"processor_s_per_gb\": %.3f, "
      "\"shared\": %s}\n",
      bytes, first_ms, first_faults, median_s * 1e3, best_s * 1e3, bytes / median_s / 1e9, processor / gb,
      driver.bytes_shared() > shared ? "true" : "false");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times gets from a depot's pool");
  Wanted wanted;
  app.add_option("depot", wanted.depot, "tcp://, unix:// or file:// address")->required();
  app.add_option("--keys", wanted.keys)->check(CLI::Range(1, 4096));
  app.add_option("--layers", wanted.layers)->check(CLI::Range(1, 400));
  app.add_option("--slab", wanted.slab_bytes)->check(CLI::Range(1, 1 << 26));
  app.add_option("--sets", wanted.sets)->check(CLI::Range(1, 10000));
  app.add_option("--rounds", wanted.rounds)->check(CLI::Range(1, 1000000));
  app.add_option("--settle", wanted.settle_ms, "ms between puts and gets")->check(CLI::Range(0, 600000));
  app.add_flag("--no-shared-memory", wanted.no_shared_memory);
  CLI11_PARSE(app, argc, argv);
  measure(wanted);
  return 0;
}
