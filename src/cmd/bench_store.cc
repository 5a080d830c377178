#include "cmd/bench_store.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error_text.h"
#include "base/sizes.h"
#include "cmd/complaint.h"
#include "cmd/device_bench.h"
#include "cmd/percentile.h"
#include "cmd/progress_bar.h"
#include "cmd/spdlog_log.h"
#include "cmd/store_bench.h"
#include "store/device_table.h"

namespace kvd::cmd {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::uint64_t kSizeMin = std::uint64_t{1} << 30;
constexpr std::uint64_t kPoolBytes = std::uint64_t{512} << 20;    // for each drive
constexpr std::uint32_t kRequests = 2;                            // at once, for each drive
constexpr std::uint64_t kRequestBytes = std::uint64_t{32} << 20;  // of one multiget
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint32_t kDepth = 32;  // of each drive: Loader::kOpsMax

constexpr const char* kBenchFooter =
    "Makes a file and a store of --size each in a folder of its own below DIR, measures both by turns and removes "
    "them.\n"
    "With --device a file and a log on each drive: one store over all, next to all drives at once.\n"
    "Reads come from the drive, not from memory; all are verified. Writes are acknowledged `written` by a store that "
    "is\n"
    "full, so that segments are being given up. GB are 10^9 bytes; the figures are medians.\n\n"
    "Examples:\n"
    "  kvdepot bench store --dir /mnt/nvme0\n"
    "  kvdepot bench store --dir /mnt/nvme0 --device /mnt/nvme1\n"
    "  kvdepot bench store --dir /mnt/nvme0 --size 16GiB --rounds 9 --json";

// One line of the result: bytes per second, one entry a round.
struct Row {
  std::string name;
  std::string limit_name;
  std::vector<double> store, device;
};

double share(const Row& row) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < row.store.size(); ++i) ratios.push_back(row.store[i] / row.device[i]);
  return median(ratios);
}

class BenchStore {
 public:
  BenchStore(const BenchStoreFlags& flags, std::uint64_t bytes)
      : flags_(flags), bytes_(bytes), log_(make_stderr_log(Level::kError, false)) {}
  ~BenchStore() {
    std::error_code ignored;
    for (const std::string& folder : folders_) fs::remove_all(folder, ignored);
  }
  BenchStore(const BenchStore&) = delete;
  BenchStore& operator=(const BenchStore&) = delete;

  // False after `why` was filled.
  bool run(std::string& why);
  [[nodiscard]] const std::vector<Row>& rows() const noexcept { return rows_; }
  [[nodiscard]] const std::string& engine() const noexcept { return engine_; }
  [[nodiscard]] std::size_t drives() const noexcept { return folders_.size(); }

 private:
  using Arm = std::function<Result<RunFigures>(std::uint64_t round)>;

  bool make_folders(std::string& why);
  bool prepare(std::string& why);
  bool measure_size(const RecordSize& size, std::string& why);
  bool measure_writes(StoreBench& store, std::uint64_t next, const RecordSize& size, std::string& why);
  bool alternate(std::string name, std::string limit_name, const Arm& store, const Arm& device, std::string& why);
  void step() { bar_->show(++steps_done_, kSteps); }

  static constexpr std::uint64_t kSteps = 12;  // device file, four stores, their rows

  const BenchStoreFlags& flags_;
  const std::uint64_t bytes_;
  std::unique_ptr<Log> log_;
  std::unique_ptr<ProgressBar> bar_ = std::make_unique<ProgressBar>("bench store");
  std::uint64_t steps_done_ = 0;
  std::vector<std::string> folders_;  // one on each drive
  std::string engine_;
  std::unique_ptr<DeviceBench> device_;
  std::vector<Row> rows_;
};

bool BenchStore::make_folders(std::string& why) {
  std::vector<std::string> dirs = flags_.devices;
  dirs.insert(dirs.begin(), flags_.dir);
  for (const std::string& dir : dirs) {
    std::string folder = dir + "/kvdepot-bench.XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) {
      why = fmt::format("{}: no folder can be made in it: {}", dir, error_text(errno));
      return false;
    }
    folders_.push_back(std::move(folder));
  }
  return true;
}

bool BenchStore::prepare(std::string& why) {
  if (!make_folders(why)) return false;
  std::vector<std::string> files;
  for (const std::string& folder : folders_) files.push_back(folder + "/device");
  auto device = DeviceBench::open(*log_, files, bytes_);
  if (device) {
    // The first writes to a new file pay for making its blocks real; they are not measured on either side.
    const auto filled = (*device)->write(bytes_, kMiB, kDepth);
    if (filled) {
      device_ = std::move(*device);
      engine_ = device_->engine();
      step();
      return true;
    }
    device = fail(filled.error());
  }
  why = fmt::format("{}: {}{}", fmt::join(folders_, ", "), error_text(device.error()),
                    device.error().code == Code::kNoSpace ? ": ask for less by --size, or another --dir" : "");
  return false;
}

bool BenchStore::alternate(std::string name, std::string limit_name, const Arm& store, const Arm& device,
                           std::string& why) {
  Row row{std::move(name), std::move(limit_name), {}, {}};
  for (unsigned round = 0; round < flags_.rounds; ++round) {
    // Who goes first changes, so that neither always meets a drive that has just rested.
    const bool store_first = round % 2 == 0;
    for (const bool ours : {store_first, !store_first}) {
      const auto figures = (ours ? store : device)(round);
      if (!figures) {
        why = fmt::format("{}: {}: {}", row.name, ours ? "the store" : "the device", error_text(figures.error()));
        return false;
      }
      (ours ? row.store : row.device).push_back(figures->rate());
    }
  }
  rows_.push_back(std::move(row));
  step();
  return true;
}

bool BenchStore::measure_size(const RecordSize& size, std::string& why) {
  StoreBenchOptions options;
  options.dir = folders_.front() + "/store";
  for (std::size_t i = 1; i < folders_.size(); ++i) options.devices.push_back(folders_[i] + "/store");
  options.pool_bytes = kPoolBytes * folders_.size();
  options.flash_bytes = bytes_;
  options.size = size;
  const auto open = [&] { return StoreBench::open(*log_, options, why); };
  auto store = open();
  if (!store) return false;
  const std::uint64_t records = (*store)->records_max();
  if (const auto filled = (*store)->put(0, records); !filled) {
    why = fmt::format("filling a store failed: {}", error_text(filled.error()));
    return false;
  }
  step();
  // A store that has just been opened has nothing in its pool: every round reads from the drive.
  const auto read = [&](std::uint64_t round, bool in_order) -> Result<RunFigures> {
    (*store)->close();
    store->reset();
    store = open();
    if (!store) return fail(store.error());
    const auto keys = static_cast<std::uint32_t>(std::max<std::uint64_t>(4, kRequestBytes / size.bytes()));
    return (*store)->get({.records = records,
                          .bytes = bytes_ / 4 * folders_.size(),
                          .keys = keys,
                          .requests = static_cast<std::uint32_t>(kRequests * folders_.size()),
                          .in_order = in_order,
                          .seed = round});
  };
  const std::string text = show_size(size.bytes());
  const auto random = [&](std::uint64_t round) {
    return device_->read(bytes_ / 4, size.bytes(), kDepth, DeviceBench::Order::kRandom, round);
  };
  if (!alternate("read " + text, "random reads", [&](std::uint64_t r) { return read(r, false); }, random, why))
    return false;
  if (size.layers == 1) {
    const auto sequential = [&](std::uint64_t round) {
      return device_->read(bytes_ / 4, kMiB, kDepth, DeviceBench::Order::kSequential, round);
    };
    if (!alternate(
            "read " + text + " neighbours", "sequential reads of 1MiB", [&](std::uint64_t r) { return read(r, true); },
            sequential, why))
      return false;
  }
  const bool written = size.bytes() != kMiB || measure_writes(**store, records, size, why);
  store->reset();
  for (const std::string& folder : folders_) fs::remove_all(folder + "/store");
  return written;
}

bool BenchStore::measure_writes(StoreBench& store, std::uint64_t next, const RecordSize& size, std::string& why) {
  const std::uint64_t count = bytes_ / 4 / size.bytes() * folders_.size();
  // Until segments are given up.
  if (const auto full = store.put(next, count); !full) {
    why = fmt::format("filling a store failed: {}", error_text(full.error()));
    return false;
  }
  next += count;
  const auto put = [&](std::uint64_t) { return store.put(std::exchange(next, next + count), count); };
  const auto write = [&](std::uint64_t) { return device_->write(bytes_ / 4, kMiB, kDepth); };
  return alternate("write " + show_size(size.bytes()), "sequential writes of 1MiB", put, write, why);
}

bool BenchStore::run(std::string& why) {
  if (!prepare(why)) return false;
  const bool all = std::ranges::all_of(kRecordSizes, [&](const RecordSize& size) { return measure_size(size, why); });
  bar_.reset();  // its line goes before results come
  return all;
}

void print_table(const BenchStore& bench) {
  const bool several = bench.drives() > 1;
  fmt::print("{:<24} {:>10} {:>10} {:>7}  of what {} ({})\n", "", "store", several ? "drives" : "drive", "share",
             several ? fmt::format("{} drives give at once", bench.drives()) : "the drive gives", bench.engine());
  for (const Row& row : bench.rows())
    fmt::print("{:<24} {:>5.2f} GB/s {:>5.2f} GB/s {:>7.2f}  {}\n", row.name, median(row.store) * 1e-9,
               median(row.device) * 1e-9, share(row), row.limit_name);
}

void print_json(const BenchStore& bench, const BenchStoreFlags& flags) {
  Json rows = Json::array();
  for (const Row& row : bench.rows())
    rows.push_back({{"name", row.name},
                    {"limit", row.limit_name},
                    {"store_bytes_per_s", median(row.store)},
                    {"drive_bytes_per_s", median(row.device)},
                    {"share", share(row)},
                    {"store_rounds", row.store},
                    {"drive_rounds", row.device}});
  const Json all = {{"dir", flags.dir},
                    {"devices", flags.devices},
                    {"size", flags.size},
                    {"engine", bench.engine()},
                    {"rows", std::move(rows)}};
  fmt::print("{}\n", all.dump());
}

// What is wrong with the first directory that cannot be measured, or "".
std::string wrong_directory(const BenchStoreFlags& flags) {
  std::error_code error;
  if (!fs::is_directory(flags.dir, error))
    return fmt::format("--dir {}: no such directory: give one on the drive to measure", flags.dir);
  if (flags.devices.size() >= store::kDevicesMax)
    return fmt::format("--device: a store has at most {} devices, --dir is one", store::kDevicesMax);
  std::vector<std::string> seen{flags.dir};
  for (const std::string& dir : flags.devices) {
    if (!fs::is_directory(dir, error))
      return fmt::format("--device {}: no such directory: give one on another drive to measure", dir);
    if (std::ranges::any_of(seen, [&](const std::string& other) { return fs::equivalent(dir, other, error); }))
      return fmt::format("--device {}: is named twice: leave one out", dir);
    seen.push_back(dir);
  }
  return {};
}

}  // namespace

int run_bench_store(const BenchStoreFlags& flags) {
  const auto bytes = parse_size(flags.size);
  if (!bytes) return complain(fmt::format("--size {}: a size like 4GiB is expected", flags.size));
  if (*bytes < kSizeMin) return complain(fmt::format("--size {}: at least 1GiB is needed", flags.size));
  if (const std::string wrong = wrong_directory(flags); !wrong.empty()) return complain(wrong);
  std::string why;
  BenchStore bench(flags, *bytes - *bytes % (std::uint64_t{4} << 20));
  if (!bench.run(why)) return complain(why);
  flags.json ? print_json(bench, flags) : print_table(bench);
  return 0;
}

Verb add_bench_store(CLI::App& bench) {
  auto flags = std::make_shared<BenchStoreFlags>();
  CLI::App* const verb = bench.add_subcommand("store", "Reads and writes of a store, next to those of its drives");
  verb->add_option("--dir", flags->dir, "A directory on the drive to measure")->type_name("DIR")->required();
  verb->add_option("--device", flags->devices, "A directory on another drive that is measured together; repeatable")
      ->type_name("DIR")
      ->allow_extra_args(false);
  verb->add_option("--size", flags->size, "Of the file and of the store that are made, each, on each drive [2GiB]")
      ->type_name("SIZE")
      ->take_last();
  verb->add_option("--rounds", flags->rounds, "Turns of store and drive for each figure [3]")
      ->type_name("N")
      ->check(CLI::Range(1, 100));
  verb->add_flag("--json", flags->json, "One JSON object, with every round");
  verb->footer(kBenchFooter);
  return {verb, [flags] { return run_bench_store(*flags); }};
}

}  // namespace kvd::cmd
