// store_driver: one timed run on an embedded store, as JSON on stdout: the C++ half of bench/store.py.
//
//   store_driver put --dir DIR --layers 16 --slab 65536 --first 0 --count 3000
//   store_driver get --dir DIR --layers 16 --slab 65536 --records 3000 --bytes 1073741824 --seed 3
//
// Runs: put, get (cold, no two neighbours in a row), adjacent (cold, as they were put), layers and whole (one request
// in layer order or by record), borrow, copy and memcpy (from the pool), room (how many records fit). On stores larger
// than the drive: sparse (makes one), match (memory and lookups of many records), recover.
#include <sys/prctl.h>

#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/large_store.h"
#include "bench/sparse_store.h"
#include "cmd/spdlog_log.h"
#include "cmd/store_bench.h"

namespace {

using kvd::Code;
using kvd::Result;
using kvd::cmd::GetPattern;
using kvd::cmd::RunFigures;
using kvd::cmd::StoreBench;
using kvd::cmd::StoreBenchOptions;

struct Wanted {
  std::string what;
  StoreBenchOptions store;
  GetPattern pattern;
  std::uint64_t first = 0, count = 0;
  std::uint32_t rounds = 1;
  bool no_verify = false, plain_pages = false, drain = false;
  std::uint64_t index_records = 0;
  std::uint32_t real_segments = 0;
};

void add_options(CLI::App& app, Wanted& w) {
  app.add_option("what", w.what,
                 "put, get, adjacent, layers, whole, borrow, copy, memcpy, room, sparse, match or recover")
      ->required();
  app.add_option("--dir", w.store.dir)->required();
  app.add_option("--pool", w.store.pool_bytes);
  app.add_option("--flash", w.store.flash_bytes);
  app.add_option("--layers", w.store.size.layers);
  app.add_option("--slab", w.store.size.slab_bytes);
  app.add_option("--records", w.pattern.records);
  app.add_option("--bytes", w.pattern.bytes);
  app.add_option("--keys", w.pattern.keys);
  app.add_option("--requests", w.pattern.requests);
  app.add_option("--seed", w.pattern.seed);
  app.add_option("--first", w.first);
  app.add_option("--count", w.count);
  app.add_option("--rounds", w.rounds);
  app.add_option("--index-records", w.index_records);
  app.add_option("--real-segments", w.real_segments);
  app.add_flag("--drain", w.drain, "recover: ends the store in order, which the next opening sees");
  app.add_flag("--plain-pages", w.plain_pages, "No huge pages for this process");
  app.add_flag("--no-verify", w.no_verify, "To learn what verification costs; no result is made with it");
}

Result<RunFigures> run(StoreBench& bench, Wanted& w) {
  if (w.what == "put") return bench.put(w.first, w.count);
  if (w.what == "get" || w.what == "adjacent") {
    w.pattern.in_order = w.what == "adjacent";
    return bench.get(w.pattern);
  }
  if (w.what == "layers" || w.what == "whole") return bench.get_layers(w.first, w.count, w.what == "whole");
  if (w.what == "borrow") return bench.get_from_pool(w.count, w.rounds, StoreBench::PoolGet::kBorrow);
  if (w.what == "copy") return bench.get_from_pool(w.count, w.rounds, StoreBench::PoolGet::kCopy);
  if (w.what == "memcpy") return bench.get_from_pool(w.count, w.rounds, StoreBench::PoolGet::kMemcpy);
  return kvd::fail(Code::kInvalid, "no such run");
}

// Runs on stores larger than the drive, which print their own figures.
kvd::Status run_large(kvd::Log& log, const Wanted& w, std::string& why) {
  if (w.what == "sparse") {
    const auto made =
        kvd::bench::make_sparse_store({w.store.dir, w.store.size, w.store.flash_bytes, w.count, w.real_segments});
    if (!made) return kvd::fail(made.error());
    fmt::print("{{\"records\": {}}}\n", *made);
    return {};
  }
  kvd::bench::LargeOptions large;
  large.dir = w.store.dir;
  large.size = w.store.size;
  large.pool_bytes = w.store.pool_bytes;
  large.index_records = w.index_records;
  large.records = w.pattern.records;
  large.seed = w.pattern.seed;
  large.drain = w.drain;
  return w.what == "match" ? kvd::bench::print_match(log, large, why) : kvd::bench::print_recovery(log, large, why);
}

int complain(const std::string& line) {
  fmt::print(stderr, "store_driver: {}\n", line);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("One timed run on an embedded store", "store_driver");
  Wanted wanted;
  add_options(app, wanted);
  CLI11_PARSE(app, argc, argv);
  wanted.store.verify = !wanted.no_verify;
  const auto log = kvd::cmd::make_stderr_log(kvd::Level::kWarn, false);
  std::string why;
  if (wanted.plain_pages && ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0) return complain("huge pages stay on");
  if (wanted.what == "sparse" || wanted.what == "match" || wanted.what == "recover") {
    const auto done = run_large(*log, wanted, why);
    return done ? 0 : complain(why.empty() ? done.error().what : why);
  }
  const auto bench = StoreBench::open(*log, wanted.store, why);
  if (!bench) return complain(why.empty() ? bench.error().what : why);
  if (wanted.what == "room") {
    fmt::print("{{\"records\": {}}}\n", (*bench)->records_max());
    return 0;
  }
  const auto figures = run(**bench, wanted);
  if (!figures)
    return complain(fmt::format("{}: {} (error {})", wanted.what, figures.error().what, figures.error().sys_errno));
  (*bench)->close();
  fmt::print(
      "{{\"bytes\": {}, \"seconds\": {:.6f}, \"cpu_seconds\": {:.6f}, \"first_layer_seconds\": {:.6f}, "
      "\"device_bytes\": {}, \"segments_evicted\": {}}}\n",
      figures->bytes, figures->seconds, figures->cpu_seconds, figures->first_layer_seconds, figures->device_bytes,
      figures->segments_evicted);
  return 0;
}
