// Disk: asynchronous reads, writes and flushes of one preallocated file or block device, opened for direct I/O.
//
// Belongs to one loop; completions are callbacks on it. Two engines behind one interface, chosen at start and named in
// the log: io_uring (liburing 2.3; single issuer, probed) and a small pool of threads that pread and pwrite, for places
// where io_uring is blocked (containers' default seccomp profile). src/io/sim holds the deterministic twin.
// Buffers, offsets and lengths are multiples of 4 KiB (kPageBytes). A buffer belongs to the operation until its
// callback, also when the caller has given up on it: cancellation never recycles memory under a transfer.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "io/loop.h"

namespace kvd::io {

// One transfer, owned by the caller until `on_done`, which comes exactly once and last, and may destroy the operation
// and the disk. It is moved out of the operation to be called: set it again before every submit. kSync makes durable
// what was written by operations whose on_done came before the submit; it orders nothing else. kDiscard tells the
// device that these bytes are not needed: until they are written again, reads may bring the old ones, zeros, or some of
// each.
struct DiskOp {
  enum class Kind : std::uint8_t { kRead, kWrite, kSync, kDiscard };
  Kind kind = Kind::kRead;
  std::uint64_t offset = 0;
  std::span<const iovec> buffers;   // valid until on_done; at most kBuffersMax; total <= 1 GiB; kSync, kDiscard: none
  std::uint64_t discard_bytes = 0;  // kDiscard: how many from `offset` on, a multiple of 4 KiB, <= 1 GiB
  // kIo with errno (kNoSpace for a full file system); a short transfer is continued, at end of file it is kIo with 0.
  std::move_only_function<void(Status)> on_done;

  static constexpr std::size_t kBuffersMax = 1024;  // IOV_MAX on Linux
};

class Disk {
 public:
  virtual ~Disk() = default;  // waits for operations in flight (which must outlive it), callbacks do not run
  // Starts `op`; kBusy when `depth_max` operations are queued, kInvalid when misaligned or out of range. Never blocks;
  // operations submitted in one turn of the loop reach the kernel together at its end.
  virtual Status submit(DiskOp& op) = 0;
  // Most transfers will be from or to `memory`, which stays where it is until the disk is gone and should have all its
  // pages by now (they are held from here on). An engine that can be faster for that prepares it on the loop, a part a
  // turn; one that cannot does nothing. At most once.
  virtual void use_memory(std::span<std::byte> /*memory*/) {}
  // Bytes of the file or device, rounded down to 4 KiB.
  [[nodiscard]] virtual std::uint64_t size() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t in_flight() const noexcept = 0;
  // Whether it takes kDiscard; otherwise that is kInvalid. Block devices that say so themselves, never files.
  [[nodiscard]] virtual bool discards() const noexcept { return false; }
  [[nodiscard]] virtual const char* engine() const noexcept = 0;  // "io_uring", "threads" or "sim"
};

struct DiskOptions {
  std::uint64_t bytes = 0;        // create or grow to this size and preallocate it; 0 = take the file as it is
  std::uint32_t depth_max = 256;  // operations queued at once, 1 to 4096
  bool direct = true;             // O_DIRECT; where the file system refuses it, buffered with one line in the log
  bool force_threads = false;     // tests: the fallback engine
  bool read_only = false;
  // With `bytes`: a range of a regular file that is never written, whole pages, and needs no space: reads as zeros.
  // Given back where the file has it. Where the file system can't, it stays allocated.
  std::uint64_t hole_at = 0;
  std::uint64_t hole_bytes = 0;
};

// Opens (creating with mode 0600 unless read_only) and preallocates `path`; never shrinks a file, and gives back what
// it took when it fails. Blocks: allocating and syncing the directory of a new file. The disk may be opened on another
// thread than the loop's, as long as that does not run meanwhile. Errors: kNoSpace (disk full, device too small),
// kNotFound (with read_only or bytes = 0), kInvalid (not a file or device, bytes not a multiple of 4 KiB), kIo.
Result<std::unique_ptr<Disk>> open_disk(Loop& loop, Log& log, const std::string& path, const DiskOptions& options);

// Where an object that takes a disk gets it from: open_disk() in production, memory in tests (src/io/sim/sim_disk.h).
class DiskFactory {
 public:
  virtual ~DiskFactory() = default;
  virtual Result<std::unique_ptr<Disk>> open(Loop& loop, Log& log, const std::string& path,
                                             const DiskOptions& options) = 0;
};

class RealDisks final : public DiskFactory {
 public:
  Result<std::unique_ptr<Disk>> open(Loop& loop, Log& log, const std::string& path,
                                     const DiskOptions& options) override {
    return open_disk(loop, log, path, options);
  }
};

}  // namespace kvd::io
