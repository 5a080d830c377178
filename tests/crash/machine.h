// Machine: runs the production store on simulated drives, from a given state of it: recovery alone, or recovery and a
// workload. Everything that happens follows from the state and a seed.
//
// One thread each; has directories of its own for the store's lock files.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "crash/journal.h"
#include "crash/oracle.h"
#include "kvdepot/types.h"
#include "store/store.h"

namespace kvd::crash {

// An empty store of a fixed identity, never opened; of two devices one that was opened once.
Start formatted(std::uint8_t devices = 1);

// Record 0 and the ghost, which is never put, have keys that the flash index cannot tell apart: only the key in the
// seed of the checksums keeps the one's bytes from being given out as the other's.
inline constexpr std::uint64_t kTwinNumber = 12'791'845;
inline constexpr std::uint64_t kGhostNumber = 1'635'987;
// Which record of the workload has a key with this low half.
std::optional<std::size_t> record_of(std::uint64_t key_lo) noexcept;
// Payload bytes of each slab of a record.
std::uint32_t slab_bytes_of(std::size_t record) noexcept;
// Which version of a record these bytes of its image, or of its first slab, begin with; 0 for none.
std::uint8_t version_of(std::size_t record, Bytes image);

struct Found {
  std::array<std::uint8_t, kRecords> versions{};  // 0 = a miss
  Oracle before;                                  // when the store was asked
  std::uint64_t dropped = 0;                      // records that recovery found and that are not there when read
  std::vector<std::string> wrong;                 // what may never happen, one line each
  std::vector<std::string> undead;  // what was given out during recovery and is not allowed, where nothing is damaged
};

class Machine {
 public:
  // `dir`: an existing directory. Without `verify` the store gives out what it reads (for controls of the tests).
  explicit Machine(std::string dir, bool verify = true);

  struct Kind {
    bool discards = false;                 // the drive takes them
    bool lists_uses = true;                // stores write tables of uses and maps of changes
    std::size_t tombstones_spent_max = 0;  // StoreOptions
  };
  // What it is from now on.
  void set(const Kind& kind) noexcept { kind_ = kind; }

  // Opens the store, asks it for its records while it recovers, lets it settle (everything until here is in `journal`),
  // then asks for every record and puts a new one.
  Found recover(const Start& start, Journal& journal);
  // Opens the store and works on it: puts, gets, removals, acknowledgements in any order, pauses, sometimes an orderly
  // end. Lines in the result are what went wrong meanwhile.
  std::vector<std::string> work(const Start& start, Journal& journal, std::uint64_t seed, int steps);

 private:
  const std::string dir_;
  const bool verify_;
  Kind kind_;
};

}  // namespace kvd::crash
