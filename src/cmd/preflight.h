// What the machine lets a depot have, checked before it starts: one line each, with the plain fallback it takes.
//
// A limit that is too low for the configuration ends in a warning that says what to raise. Only a pool that memory and
// swap cannot hold is an error, as the kernel would kill the depot, or an engine, sooner or later; of the rest the
// store itself refuses what is impossible. Blocks for a few file reads; main thread only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/result.h"

namespace kvd::cmd {

// A directory that is to hold a log.
struct NeedsDisk {
  std::string dir;
  std::uint64_t flash_bytes = 0;
};

// What the configuration asks for.
struct Needs {
  std::vector<NeedsDisk> disks;  // none: memory only
  std::uint64_t pool_bytes = 0;
  std::uint32_t connections_max = 0;
};

struct Finding {
  Level level = Level::kInfo;
  std::string line;
};

struct OffersDisk {
  std::uint64_t file_system = 0;  // equal: their free space is the same
  std::uint64_t free_bytes = 0;   // on the directory's file system
  std::uint64_t held_bytes = 0;   // by the store that is there already
};

// What the system offers; 0 = unlimited or unknown. Separate from the reading, so that tests need no odd machine.
struct Offers {
  std::uint64_t memory_bytes = 0;         // physical memory
  std::uint64_t cgroup_memory_bytes = 0;  // limit of the process's cgroup, version 1 or 2
  std::uint64_t memlock_bytes = 0;        // soft RLIMIT_MEMLOCK
  std::uint64_t open_files = 0;           // soft RLIMIT_NOFILE, after raising it to the hard limit
  std::uint64_t swap_bytes = 0;           // 0 = none
  std::vector<OffersDisk> disks;          // of each that is needed
};

// Reads the limits of this process; raises the soft limit of open files to the hard one.
Offers read_offers(const Needs& needs);
// One finding per thing checked, in a fixed order: memory, locked memory, open files, then one for each file system
// that is to hold logs.
std::vector<Finding> judge(const Needs& needs, const Offers& offers);

// The memory limit of a process whose /proc/self/cgroup is `cgroup`: the smallest on the way to the root of the v2 tree
// (memory.max) at `root`, and of the v1 tree of the memory controller (memory.limit_in_bytes) at `root`/memory. 0 =
// none.
std::uint64_t cgroup_limit(std::string_view cgroup, const std::string& root);

}  // namespace kvd::cmd
