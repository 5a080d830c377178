// BlockingDisk: reads, writes and flushes that wait, for opening a store. It runs the loop until its operation is done,
// so it must not be used from a callback, nor once recovery has ended.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/metric.h"
#include "base/result.h"
#include "io/disk.h"
#include "io/loop.h"
#include "store/flash_health.h"

namespace kvd::store {

class BlockingDisk {
 public:
  // All are borrowed. `health`, where there is one, hears of each operation and of its end, so that one that hangs
  // turns the tier off and many in a row do not. It hears of no errors; these are counted in `errors`.
  BlockingDisk(io::Loop& loop, io::Disk& disk, FlashHealth* health = nullptr, Counter* errors = nullptr)
      : loop_(loop), disk_(disk), health_(health), errors_(errors) {}

  // Offsets, addresses and lengths are multiples of 4 KiB. Errors: kIo, kInvalid (out of range).
  Status read(std::uint64_t offset, MutableBytes to) { return run(io::DiskOp::Kind::kRead, offset, to); }
  Status write(std::uint64_t offset, MutableBytes from) { return run(io::DiskOp::Kind::kWrite, offset, from); }
  Status sync() { return run(io::DiskOp::Kind::kSync, 0, {}); }

 private:
  Status run(io::DiskOp::Kind kind, std::uint64_t offset, MutableBytes bytes);
  Status run_uncounted(io::DiskOp::Kind kind, std::uint64_t offset, MutableBytes bytes);

  io::Loop& loop_;
  io::Disk& disk_;
  FlashHealth* health_;
  Counter* errors_;
};

}  // namespace kvd::store
