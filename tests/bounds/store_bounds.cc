// store_bounds: what a store takes of a machine beyond what it was configured to take, while it works at full speed on
// a real disk; the figures as JSON on stdout. With --check exit status 1 when one is above its bound.
//
//   kvd_store_bounds --seconds 600 --check
//
// Allocations are counted once the store is in its steady state: all of its segments have been given up three times.
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/log.h"
#include "bounds/allocation_count.h"
#include "bounds/steady_load.h"
#include "io/loop.h"
#include "store/store.h"
#include "store/testing/store_kit.h"

namespace {

using kvd::bounds::SteadyLoad;

constexpr double kMiB = 1 << 20;
constexpr std::uint64_t kIndexBytesPerRecord = 18;        // docs/results/store.md
constexpr std::uint64_t kFlashBytesPerRecord = 64 << 10;  // as StoreOptions::index_records_max
constexpr std::uint64_t kTurnsBefore = 3;                 // of all segments, before anything is counted
constexpr double kWarmSecondsMax = 120;

struct Wanted {
  double seconds = 60;
  std::uint64_t pool_mib = 512, flash_mib = 2048, seed = 1;
  std::string dir;
  double memory_over_mib_max = 256;
  bool check = false;
};

struct Figures {
  double seconds = 0, memory_over_mib = 0;
  std::uint64_t disk_over = 0, allocations = 0, evicted = 0;
};

// Peak resident memory of this process, in MiB.
double peak_mib() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line))
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024;
  return 0;
}

std::uint64_t allocated_bytes(const std::string& dir) {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
    struct stat info{};
    if (::lstat(entry.path().c_str(), &info) == 0 && S_ISREG(info.st_mode))
      bytes += static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

double seconds_since(const kvd::io::Loop& loop, kvd::Time since) {
  return std::chrono::duration<double>(loop.now() - since).count();
}

int fail(const std::string& line) {
  fmt::print(stderr, "store_bounds: {}\n", line);
  return 1;
}

// Full and turned over, so that whatever grows with use has grown. False when that takes too long.
bool warm_up(kvd::io::Loop& loop, const kvd::store::Store& store, SteadyLoad& load, std::uint64_t segments) {
  const kvd::Time begin = loop.now();
  while (store.stats().segments_evicted.value() < kTurnsBefore * segments)
    if (load.step(); seconds_since(loop, begin) > kWarmSecondsMax) return false;
  return true;
}

void print(const Figures& f, const SteadyLoad::Figures& load, const kvd::store::StoreStats& stats) {
  fmt::print(
      "{{\"seconds\": {:.1f}, \"memory_over_configured_MiB\": {:.1f}, \"disk_over_configured_bytes\": {}, "
      "\"allocations_after_start\": {}, \"segments_evicted\": {}, \"puts\": {}, \"gets\": {}, \"misses\": {}, "
      "\"pool_hits\": {}, \"flash_hits\": {}, \"matched\": {}, \"refused\": {}, \"failed\": {}, \"wrong\": {}}}\n",
      f.seconds, f.memory_over_mib, f.disk_over, f.allocations, f.evicted, load.puts, load.gets, load.misses,
      stats.pool_hits.value(), stats.flash_hits.value(), load.matched, load.refused, load.failed, load.wrong);
}

int verdict(const Wanted& wanted, const Figures& f, const SteadyLoad::Figures& load,
            const kvd::store::StoreStats& stats) {
  if (load.wrong > 0) return fail("wrong bytes");
  if (load.failed > 0) return fail("puts failed");
  if (f.memory_over_mib > wanted.memory_over_mib_max) return fail("memory over what is configured");
  if (f.disk_over > 0) return fail("disk over what is configured");
  if (f.allocations > 0) return fail("memory is allocated on the data path");
  if (stats.pool_hits.value() == 0 || stats.flash_hits.value() == 0 || f.evicted == 0 || load.matched == 0)
    return fail("the load did not do what is measured here");
  return 0;
}

int run(const Wanted& wanted) {
  const auto loop = kvd::io::make_real_loop();
  if (!loop) return fail("no event loop");
  kvd::RecordingLog log;
  kvd::store::StoreOptions options;
  options.dir = wanted.dir;
  options.pool_bytes = wanted.pool_mib << 20;
  options.flash_bytes = wanted.flash_mib << 20;
  std::string why;
  auto store = kvd::store::Store::open(**loop, log, options, &why);
  if (!store) return fail(why);
  const std::uint64_t segments = (*store)->stats().segments_free.value();
  const std::uint64_t records = options.flash_bytes / (264 << 10) * 5 / 4;  // of both kinds together more than fit
  Figures figures;
  SteadyLoad load(**loop, **store, records, wanted.seed);
  if (!warm_up(**loop, **store, load, std::max<std::uint64_t>(segments, 4)))
    return fail("the store did not fill in time");

  kvd::show_allocations();
  const std::uint64_t before = kvd::allocations();
  const std::uint64_t evicted = (*store)->stats().segments_evicted.value();
  const kvd::Time begin = (*loop)->now();
  while (seconds_since(**loop, begin) < wanted.seconds) load.step();
  figures.allocations = kvd::allocations() - before;
  figures.seconds = seconds_since(**loop, begin);
  figures.evicted = (*store)->stats().segments_evicted.value() - evicted;
  load.finish();

  const std::uint64_t configured =
      options.pool_bytes + options.flash_bytes / kFlashBytesPerRecord * kIndexBytesPerRecord;
  figures.memory_over_mib = peak_mib() - static_cast<double>(configured) / kMiB;
  const std::uint64_t on_disk = allocated_bytes(wanted.dir);
  figures.disk_over = on_disk > options.flash_bytes ? on_disk - options.flash_bytes : 0;
  print(figures, load.figures(), (*store)->stats());
  return wanted.check ? verdict(wanted, figures, load.figures(), (*store)->stats()) : 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What a store takes beyond what it was configured to take", "store_bounds");
  Wanted wanted;
  app.add_option("--seconds", wanted.seconds, "How long, once the store is in its steady state");
  app.add_option("--dir", wanted.dir, "Where; default: a temporary directory");
  app.add_option("--pool-mib", wanted.pool_mib);
  app.add_option("--flash-mib", wanted.flash_mib);
  app.add_option("--seed", wanted.seed);
  app.add_option("--memory-over-mib-max", wanted.memory_over_mib_max, "With --check; more under sanitizers");
  app.add_flag("--check", wanted.check, "Exit status 1 when a bound is exceeded");
  CLI11_PARSE(app, argc, argv);
  const kvd::store::TempDir temporary;
  if (wanted.dir.empty()) wanted.dir = temporary.path() + "/store";
  return run(wanted);
}
