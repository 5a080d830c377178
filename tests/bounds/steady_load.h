// SteadyLoad: everything that engines ask of a store, without end and in a mixture that follows from a seed: puts of
// records of two sizes (one with foreign keys), some of them flushed; gets from pool and flash, of all layers and of
// some, passing and with deadlines; matches, promotions, leases. The store is full, so segments are given up for what
// is put. It takes no memory itself once it runs, so that what is counted is the store's.
//
// Every slab says whose it is and is told right from wrong. One loop, one thread; a step does not block.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "io/loop.h"
#include "store/store.h"

namespace kvd::bounds {

class SteadyLoad {
 public:
  struct Figures {
    std::uint64_t gets = 0, misses = 0, puts = 0, refused = 0, failed = 0, wrong = 0, matched = 0;
  };

  // Borrows loop and store. `records` of each size are asked for: more than fit.
  SteadyLoad(io::Loop& loop, store::Store& store, std::uint64_t records, std::uint64_t seed);
  ~SteadyLoad();
  SteadyLoad(const SteadyLoad&) = delete;
  SteadyLoad& operator=(const SteadyLoad&) = delete;

  // Asks for more and runs the loop once.
  void step();
  // Runs the loop until nothing is under way.
  void finish();
  [[nodiscard]] const Figures& figures() const noexcept { return figures_; }

 private:
  static constexpr std::size_t kGets = 48;           // at once
  static constexpr std::uint64_t kPutsWaiting = 24;  // for their acknowledgement
  static constexpr std::size_t kMatched = 512;       // keys of one match
  static constexpr std::size_t kForeignBytes = 32;

  // One of the two kinds of records.
  struct Kind {
    store::NamespaceHandle ns = 0;
    std::uint16_t layers = 0;
    std::uint32_t slab_bytes = 0;
    bool foreign = false;
    std::uint64_t next = 0;  // number to put
  };
  struct Slot {
    SteadyLoad* load = nullptr;
    store::Get get;
    const Kind* kind = nullptr;
    std::uint64_t number = 0;
    bool busy = false;
    std::array<std::byte, kForeignBytes> foreign{};
  };

  void put(Kind& kind);
  void start(Slot& slot);
  void got(Slot& slot, const Result<store::RecordView>& view);
  void match();
  void promote_and_lease();
  [[nodiscard]] std::uint64_t some_number(const Kind& kind);
  [[nodiscard]] Kind& some_kind() { return kinds_[random_.below(kinds_.size())]; }

  io::Loop& loop_;
  store::Store& store_;
  const std::uint64_t records_;
  Random random_;
  std::array<Kind, 2> kinds_;
  std::array<Slot, kGets> slots_;
  std::vector<std::byte> source_;
  std::vector<std::uint64_t> checksums_;
  std::vector<block::RecordId> ids_;
  std::vector<Tier> tiers_;
  std::uint64_t steps_ = 0, puts_waiting_ = 0, gets_waiting_ = 0;
  Figures figures_;
};

}  // namespace kvd::bounds
