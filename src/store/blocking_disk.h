// BlockingDisk: reads, writes and flushes that wait, for opening a store. It runs the loop until its operation is done,
// so it must not be used from a callback, nor once the store serves.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/result.h"
#include "io/disk.h"
#include "io/loop.h"

namespace kvd::store {

class BlockingDisk {
 public:
  // Both are borrowed.
  BlockingDisk(io::Loop& loop, io::Disk& disk) : loop_(loop), disk_(disk) {}

  // Offsets, addresses and lengths are multiples of 4 KiB. Errors: kIo, kInvalid (out of range).
  Status read(std::uint64_t offset, MutableBytes to) { return run(io::DiskOp::Kind::kRead, offset, to); }
  Status write(std::uint64_t offset, MutableBytes from) { return run(io::DiskOp::Kind::kWrite, offset, from); }
  Status sync() { return run(io::DiskOp::Kind::kSync, 0, {}); }

 private:
  Status run(io::DiskOp::Kind kind, std::uint64_t offset, MutableBytes bytes);

  io::Loop& loop_;
  io::Disk& disk_;
};

}  // namespace kvd::store
