// DiskFile: the file or block device under a Disk: opening, preallocation, the check of operations, and the progress of
// one transfer. Shared by the engines; nothing here knows how transfers are started.
//
// open_disk_file() blocks and runs before the disk exists. Transfer is a value in an engine's table of operations.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "io/disk.h"
#include "io/fd.h"

namespace kvd::io {

inline constexpr std::uint32_t kDepthMax = 4096;          // DiskOptions::depth_max at most
inline constexpr std::uint64_t kOpBytesMax = 1ull << 30;  // one operation; the kernel's own limit is 2 GiB - 4 KiB
inline constexpr std::uint32_t kRetriesMax = 64;          // consecutive EINTR / EAGAIN before an operation fails

struct DiskFile {
  UniqueFd fd;
  std::uint64_t bytes = 0;  // rounded down to 4 KiB
  bool direct = false;
  bool read_only = false;
  bool discards = false;  // a block device, writable, that takes BLKDISCARD
};

// kInvalid when `options` break the rules of disk.h.
Status check_options(const DiskOptions& options);

// See open_disk().
Result<DiskFile> open_disk_file(Log& log, const std::string& path, const DiskOptions& options);

// kInvalid when `op` breaks the rules of disk.h for a file of `bytes`.
Status check_op(const DiskOp& op, std::uint64_t bytes, bool read_only);

// The same for a kDiscard on a disk that takes them; check_op() refuses all.
Status check_discard(const DiskOp& op, std::uint64_t bytes, bool read_only);

// Where an operation stands after short transfers.
class Transfer {
 public:
  Transfer() = default;
  explicit Transfer(DiskOp& op) noexcept : op_(&op), offset_(op.offset) {}

  [[nodiscard]] DiskOp& op() const noexcept { return *op_; }

  // The next piece for one readv or writev at offset(). After a transfer that ended inside a buffer this is the rest of
  // that buffer (in `rest`, which must live until the piece is done), then the buffers after it.
  [[nodiscard]] std::span<const iovec> piece(iovec& rest) const noexcept;
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }

  // What became of the last piece: the system call's result, or -errno. kDone: finish with status(); kAgain: start the
  // next piece.
  enum class Step : std::uint8_t { kDone, kAgain };
  Step advance(std::int64_t result) noexcept;
  [[nodiscard]] const Status& status() const noexcept { return status_; }

 private:
  Step fail_with(int error) noexcept;

  DiskOp* op_ = nullptr;
  std::uint64_t offset_ = 0;
  std::uint64_t buffer_done_ = 0;  // bytes done of buffers[buffer_at_]
  std::uint32_t buffer_at_ = 0;
  std::uint32_t retries_ = 0;
  Status status_;
};

}  // namespace kvd::io
