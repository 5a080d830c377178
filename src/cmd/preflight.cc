#include "cmd/preflight.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

#include "base/sizes.h"

namespace kvd::cmd {
namespace {

namespace fs = std::filesystem;

// Memory beside the pool and the index: buffers of connections, code. Enough for the default configuration with peers
// that go on reading and sending. One that stops within a message, or does not read its replies, holds up to 4 MiB,
// until it is cut after 30 seconds.
constexpr std::uint64_t kMemoryBesidePool = std::uint64_t{256} << 20;
constexpr std::uint64_t kFilesBesideConnections = 64;
constexpr std::uint64_t kFlashBytesPerIndexRecord = 64 << 10;  // the store's default
constexpr std::uint64_t kIndexBytesPerRecord = 18;
constexpr std::uint64_t kNoCgroupLimit = std::uint64_t{1} << 62;  // v1 writes "none" as the largest multiple of a page

std::string read_file(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::uint64_t soft_limit(decltype(RLIMIT_NOFILE) which) {
  rlimit limit{};
  if (::getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 0;
  return limit.rlim_cur;
}

void raise_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  // Where this is refused, judge() reports the limit as it stands.
  [[maybe_unused]] const int refused = ::setrlimit(RLIMIT_NOFILE, &limit);
}

OffersDisk read_disk(fs::path dir) {
  OffersDisk disk;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) {
    struct stat info{};
    if (::stat(entry.path().c_str(), &info) == 0) disk.held_bytes += static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  while (!dir.empty() && !fs::exists(dir, ignored) && dir.has_parent_path() && dir != dir.parent_path())
    dir = dir.parent_path();
  const char* const there = dir.empty() ? "." : dir.c_str();
  struct statvfs info{};
  struct stat at{};
  if (::statvfs(there, &info) == 0) disk.free_bytes = info.f_bavail * info.f_frsize;
  if (::stat(there, &at) == 0) disk.file_system = at.st_dev;
  return disk;
}

std::uint64_t flash_bytes(const Needs& needs) {
  std::uint64_t bytes = 0;
  for (const NeedsDisk& disk : needs.disks) bytes += disk.flash_bytes;
  return bytes;
}

// The smallest limit in files `name` from `root`/`path` up to `root`; 0 = none. A container may see another root than
// its path is counted from: folders that are not there have no limit.
std::uint64_t smallest_limit(const std::string& root, std::string_view path, const char* name) {
  std::uint64_t smallest = 0;
  for (fs::path at = fs::path(root) / path;; at = at.parent_path()) {
    const auto text = read_file(at / name);
    std::uint64_t limit = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), limit).ec == std::errc{} && limit != 0 &&
        limit < kNoCgroupLimit)
      smallest = smallest == 0 ? limit : std::min(smallest, limit);
    if (at.string().size() <= root.size() || !at.has_parent_path()) return smallest;
  }
}

Finding judge_memory(const Needs& needs, const Offers& offers) {
  const bool in_cgroup = offers.cgroup_memory_bytes != 0;
  const auto limit = in_cgroup ? std::min(offers.cgroup_memory_bytes, offers.memory_bytes) : offers.memory_bytes;
  const auto* where = in_cgroup ? "the cgroup's memory limit" : "this machine's memory";
  const auto beside = kMemoryBesidePool + flash_bytes(needs) / kFlashBytesPerIndexRecord * kIndexBytesPerRecord;
  const auto wanted = needs.pool_bytes + beside;
  if (limit != 0 && needs.pool_bytes > limit + offers.swap_bytes)
    return {Level::kError,
            fmt::format("memory: a pool of {} does not fit into {} of {} and {} of swap: use a smaller --pool",
                        show_size(needs.pool_bytes), where, show_size(limit), show_size(offers.swap_bytes))};
  if (limit != 0 && wanted > limit)
    return {Level::kWarn,
            fmt::format("memory: the pool of {} and about {} beside it exceed {} of {}; the kernel may kill "
                        "the depot: use a smaller --pool",
                        show_size(needs.pool_bytes), show_size(beside), where, show_size(limit))};
  return {Level::kInfo, fmt::format("memory: pool {} of {} {}", show_size(needs.pool_bytes),
                                    limit == 0 ? "unknown" : show_size(limit), limit == 0 ? "memory" : where)};
}

// What the disk engine registers with io_uring is pinned and counts, unless the process has CAP_IPC_LOCK; threads
// register nothing. The pool is registered for each device, and counts each time. Kernels before 5.12 count io_uring's
// own rings, too; where these are refused, there are threads.
Finding judge_memlock(const Needs& needs, const Offers& offers) {
  const std::string limit = offers.memlock_bytes == 0 ? "no limit" : "limit " + show_size(offers.memlock_bytes);
  std::string follows = "where io_uring takes it the pool is registered and stays in memory";
  if (needs.disks.empty()) {
    follows = "without flash the pool is not registered with io_uring and can be swapped out";
  } else if (offers.memlock_bytes != 0 && offers.memlock_bytes < needs.pool_bytes * needs.disks.size()) {
    follows = fmt::format("less than the pool{}, which may stay unregistered with io_uring and be swapped out",
                          needs.disks.size() > 1 ? fmt::format(" for each of {} devices", needs.disks.size()) : "");
  }
  return {Level::kInfo, fmt::format("locked memory: {}; {}", limit, follows)};
}

// A client of this host has two connections, and a descriptor more for each: of its rings, and of its keeper
// (docs/formats/wire.md).
Finding judge_files(const Needs& needs, const Offers& offers) {
  const auto wanted = 2 * std::uint64_t{needs.connections_max} + kFilesBesideConnections;
  if (offers.open_files != 0 && offers.open_files < wanted)
    return {Level::kWarn,
            fmt::format("open files: limit {}, but the {} connections configured may need {}; what is beyond it is "
                        "refused (raise it with ulimit -n or LimitNOFILE)",
                        offers.open_files, needs.connections_max, wanted)};
  return {Level::kInfo, fmt::format("open files: limit {}", offers.open_files)};
}

// Of the directories on one file system, which share what is free.
Finding judge_file_system(const Needs& needs, const Offers& offers, std::uint64_t file_system) {
  std::uint64_t wanted = 0, there = 0;
  std::string dirs;
  std::size_t devices = 0;
  for (std::size_t i = 0; i < needs.disks.size(); ++i) {
    const OffersDisk& disk = offers.disks[i];
    if (disk.file_system != file_system) continue;
    ++devices;
    there += disk.held_bytes + (dirs.empty() ? disk.free_bytes : 0);
    wanted += needs.disks[i].flash_bytes;
    dirs += (dirs.empty() ? "" : " and ") + needs.disks[i].dir;
  }
  if (there < wanted)
    return {Level::kWarn,
            fmt::format("disk: flash of {} but only {} are free for {}: the store will not open; ask for less by "
                        "--flash{}, or give another directory",
                        show_size(wanted), show_size(there), dirs, needs.disks.size() > 1 ? " and --device" : "")};
  const std::string line = fmt::format("disk: flash {} of {} free{}", show_size(wanted), show_size(there),
                                       needs.disks.size() > 1 ? " for " + dirs : "");
  if (devices < 2) return {Level::kInfo, line};
  return {Level::kWarn, line + ", which are on one file system: is a drive not mounted?"};
}

void judge_disks(const Needs& needs, const Offers& offers, std::vector<Finding>& findings) {
  if (needs.disks.empty())
    findings.push_back({Level::kInfo, "disk: no flash tier configured, records live in memory only"});
  std::vector<std::uint64_t> seen;
  for (const OffersDisk& disk : offers.disks) {
    if (std::ranges::find(seen, disk.file_system) != seen.end()) continue;
    seen.push_back(disk.file_system);
    findings.push_back(judge_file_system(needs, offers, disk.file_system));
  }
}

}  // namespace

std::uint64_t cgroup_limit(std::string_view cgroup, const std::string& root) {
  std::uint64_t smallest = 0;
  const auto take = [&](std::uint64_t limit) {
    if (limit != 0) smallest = smallest == 0 ? limit : std::min(smallest, limit);
  };
  // Lines are "number:controllers:path"; v2's controllers are empty.
  for (std::size_t at = 0; at < cgroup.size(); at = std::min(cgroup.find('\n', at), cgroup.size()) + 1) {
    const auto line = cgroup.substr(at, cgroup.find('\n', at) - at);
    const auto first = line.find(':');
    const auto second = line.find(':', first == std::string_view::npos ? first : first + 1);
    if (second == std::string_view::npos || line.substr(second + 1).empty()) continue;
    const auto controllers = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    const auto path = line.substr(second + 2);  // without its '/'
    if (line.starts_with("0::")) take(smallest_limit(root, path, "memory.max"));
    if (controllers.find(",memory,") != std::string::npos)
      take(smallest_limit(root + "/memory", path, "memory.limit_in_bytes"));
  }
  return smallest;
}

Offers read_offers(const Needs& needs) {
  raise_open_files();
  Offers offers;
  const auto pages = ::sysconf(_SC_PHYS_PAGES);
  const auto page = ::sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0) offers.memory_bytes = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page);
  struct sysinfo system{};
  if (::sysinfo(&system) == 0) offers.swap_bytes = std::uint64_t{system.totalswap} * system.mem_unit;
  offers.cgroup_memory_bytes = cgroup_limit(read_file("/proc/self/cgroup"), "/sys/fs/cgroup");
  offers.memlock_bytes = soft_limit(RLIMIT_MEMLOCK);
  offers.open_files = soft_limit(RLIMIT_NOFILE);
  for (const NeedsDisk& disk : needs.disks) offers.disks.push_back(read_disk(disk.dir));
  return offers;
}

std::vector<Finding> judge(const Needs& needs, const Offers& offers) {
  std::vector<Finding> findings{judge_memory(needs, offers), judge_memlock(needs, offers), judge_files(needs, offers)};
  judge_disks(needs, offers, findings);
  return findings;
}

}  // namespace kvd::cmd
