#include "io/disk_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/time.h"

namespace kvd::io {
namespace {

// Calls again while a signal interrupts.
template <class Call>
auto uninterrupted(Call call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

bool means_full(int error) noexcept { return error == ENOSPC || error == EDQUOT; }

std::unexpected<Error> fail_errno(const char* what, int error) noexcept {
  return fail(means_full(error) ? Code::kNoSpace : Code::kIo, what, error);
}

struct Opened {
  UniqueFd fd;
  bool created = false;
  bool direct = false;
};

Result<Opened> open_once(const std::string& path, int flags, bool may_create) {
  Opened opened;
  opened.fd.reset(uninterrupted([&] { return ::open(path.c_str(), flags); }));
  if (opened.fd.ok()) return opened;
  if (errno == ENOENT && may_create) {
    opened.fd.reset(uninterrupted([&] { return ::open(path.c_str(), flags | O_CREAT | O_EXCL, 0600); }));
    opened.created = opened.fd.ok();
    if (opened.fd.ok()) return opened;
    // The kernel may create the file before the file system refuses O_DIRECT.
    if (errno == EINVAL) {
      ::unlink(path.c_str());
      errno = EINVAL;
    }
  }
  const int error = errno;
  if (error == EBUSY)
    return fail(Code::kBusy, "it is mounted, part of an array, or another process writes to it", EBUSY);
  return fail(error == ENOENT ? Code::kNotFound : Code::kIo, "open the disk's file", error);
}

// Some file systems take O_DIRECT at open and refuse the transfers: one read tells.
bool direct_works(int fd) {
  const std::unique_ptr<void, decltype(&std::free)> page(std::aligned_alloc(kPageBytes, kPageBytes), &std::free);
  return uninterrupted([&] { return ::pread(fd, page.get(), kPageBytes, 0); }) >= 0 || errno != EINVAL;
}

// io_uring gives a file up some milliseconds behind the end of a process that was killed.
constexpr Duration kTakeAgain = std::chrono::milliseconds(10), kTakeLimit = std::chrono::seconds(2);

// Calls again for a moment while somebody else has the file.
template <class Call>
auto patiently(Call call) {
  auto result = call();
  for (Duration waited{}; !result && result.error().code == Code::kBusy && waited < kTakeLimit; waited += kTakeAgain) {
    std::this_thread::sleep_for(kTakeAgain);
    result = call();
  }
  return result;
}

// Whoever else writes to it would overwrite it, whatever name he has for it. Given up with the descriptor.
// O_EXCL has seen to a device; where the file system knows no locks there is the store directory's.
Status take(int fd) {
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return {};
  return fail(Code::kBusy, "somebody else writes to the disk's file", EBUSY);
}

Result<Opened> open_path(Log& log, const std::string& path, const DiskOptions& options) {
  struct stat st{};
  if (::stat(path.c_str(), &st) == 0 && !S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode)) {
    return fail(Code::kInvalid, "a disk is a file or a block device");
  }
  const bool is_device = S_ISBLK(st.st_mode);
  // O_EXCL of a device: EBUSY while it is mounted, part of an array, or open like this in another process.
  const int exclusive = is_device && !options.read_only ? O_EXCL : 0;
  const int flags = O_CLOEXEC | O_NOCTTY | exclusive | (options.read_only ? O_RDONLY : O_RDWR);
  const bool may_create = !options.read_only && options.bytes > 0;
  if (!options.direct) return open_once(path, flags, may_create);
  Result<Opened> opened = open_once(path, flags | O_DIRECT, may_create);
  if (opened) {
    opened->direct = direct_works(opened->fd.get());
    // Reopened rather than changed by fcntl: both leave the file as it is, this one works everywhere.
    if (opened->direct) return opened;
    opened->fd.reset(uninterrupted([&] { return ::open(path.c_str(), flags); }));
    if (!opened->fd.ok()) return fail(Code::kIo, "open the disk's file again", errno);
  } else {
    if (opened.error().sys_errno != EINVAL) return opened;
    opened = open_once(path, flags, may_create);
    if (!opened) return opened;
  }
  log.warn(
      fmt::format("disk {}: the file system has no direct I/O, so reads and writes go through the page cache", path));
  return opened;
}

// Asked first, because a preallocation that fails has filled the file system for as long as it took.
Status check_space(int fd, std::uint64_t bytes, const struct stat& st) {
  struct statvfs fs{};
  if (::fstatvfs(fd, &fs) != 0) return {};  // the allocation will tell
  const auto allocated = static_cast<std::uint64_t>(st.st_blocks) * 512;
  if (bytes <= allocated || (bytes - allocated) / fs.f_frsize <= fs.f_bavail) return {};
  return fail(Code::kNoSpace, "preallocate the disk's file", ENOSPC);
}

// Allocates all but the hole.
bool allocate_around_hole(int fd, const DiskOptions& options) {
  const auto length = static_cast<off_t>(options.bytes);
  const auto hole = static_cast<off_t>(options.hole_at), hole_length = static_cast<off_t>(options.hole_bytes);
  const auto take = [fd](off_t at, off_t bytes) {
    return bytes == 0 || uninterrupted([&] { return ::fallocate(fd, 0, at, bytes); }) == 0;
  };
  if (hole_length == 0) return take(0, length);
  if (!take(0, hole) || !take(hole + hole_length, length - hole - hole_length)) return false;
  (void)uninterrupted([&] { return ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, hole, hole_length); });
  return true;
}

// Makes `fd` at least options.bytes long with its space allocated.
Status allocate(Log& log, const std::string& path, int fd, const DiskOptions& options, const struct stat& st) {
  if (Status checked = check_space(fd, options.bytes - options.hole_bytes, st); !checked) return checked;
  const auto length = static_cast<off_t>(options.bytes);
  if (allocate_around_hole(fd, options)) return {};
  if (errno != EOPNOTSUPP && errno != ENOSYS) return fail_errno("preallocate the disk's file", errno);
  log.warn(fmt::format("disk {}: the file system cannot preallocate, so it may run full later", path));
  if (st.st_size >= length || uninterrupted([&] { return ::ftruncate(fd, length); }) == 0) return {};
  return fail_errno("grow the disk's file", errno);
}

// Without this a power loss could take a new file's name although its bytes were synced.
Status sync_directory(const std::string& path) {
  std::filesystem::path directory = std::filesystem::path(path).parent_path();
  if (directory.empty()) directory = ".";
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.ok()) return fail(Code::kIo, "open the directory of the disk's file", errno);
  // EINVAL: the file system has no directory sync, and nothing to be done about it.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return fail_errno("sync the directory of the disk's file", errno);
  return {};
}

Result<std::uint64_t> bytes_of(int fd, const struct stat& st) {
  if (S_ISREG(st.st_mode)) return static_cast<std::uint64_t>(st.st_size);
  std::uint64_t bytes = 0;
  if (::ioctl(fd, BLKGETSIZE64, &bytes) != 0) return fail(Code::kIo, "ask for the device's size", errno);
  return bytes;
}

// A partition has no queue of its own: its disk's is one folder up.
bool device_discards(int fd) {
  struct stat st{};
  if (::fstat(fd, &st) != 0 || !S_ISBLK(st.st_mode)) return false;
  for (const char* queue : {"queue", "../queue"}) {
    const std::string path =
        fmt::format("/sys/dev/block/{}:{}/{}/discard_max_bytes", major(st.st_rdev), minor(st.st_rdev), queue);
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    char digits[24] = {};
    if (file.ok() && ::read(file.get(), digits, sizeof digits - 1) > 0) return std::strtoull(digits, nullptr, 10) > 0;
  }
  return false;
}

Result<std::uint64_t> reserve(Log& log, const std::string& path, const Opened& opened, const DiskOptions& options) {
  struct stat st{};
  if (::fstat(opened.fd.get(), &st) != 0) return fail(Code::kIo, "look at the disk's file", errno);
  if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode)) {
    return fail(Code::kInvalid, "a disk is a file or a block device");
  }
  const Result<std::uint64_t> before = bytes_of(opened.fd.get(), st);
  if (!before) return before;
  if (options.bytes == 0 || options.read_only) {
    if (*before >= options.bytes) return before;
    return fail(Code::kNoSpace, "the disk is smaller than asked for and open for reading only");
  }
  if (S_ISBLK(st.st_mode)) {
    if (*before >= options.bytes) return before;
    return fail(Code::kNoSpace, "the device is smaller than asked for");
  }
  Status done = allocate(log, path, opened.fd.get(), options, st);
  if (done && opened.created) done = sync_directory(path);
  if (done) return std::max(*before, options.bytes);
  if (opened.created) {
    ::unlink(path.c_str());
  } else {
    // What a failed fallocate took past the old end; the file had nothing there.
    (void)uninterrupted([&] { return ::ftruncate(opened.fd.get(), st.st_size); });
  }
  return fail(done.error());
}

}  // namespace

Status check_options(const DiskOptions& options) {
  if (!is_aligned(options.bytes, kPageBytes)) return fail(Code::kInvalid, "a disk's size is a multiple of 4 KiB");
  if (options.bytes > static_cast<std::uint64_t>(INT64_MAX)) return fail(Code::kInvalid, "a disk's size is too large");
  if (options.depth_max == 0 || options.depth_max > kDepthMax) {
    return fail(Code::kInvalid, "a disk's depth is 1 to 4096");
  }
  // Something lies behind it, or the file would be shorter without it.
  const bool hole_fits = options.hole_at < options.bytes && options.hole_bytes < options.bytes - options.hole_at;
  if (options.bytes > 0 && options.hole_bytes > 0 &&
      !(hole_fits && is_aligned(options.hole_at | options.hole_bytes, kPageBytes))) {
    return fail(Code::kInvalid, "a disk's hole is whole pages before its end");
  }
  return {};
}

Result<DiskFile> open_disk_file(Log& log, const std::string& path, const DiskOptions& options) {
  if (Status checked = check_options(options); !checked) return fail(checked.error());
  Result<Opened> opened = patiently([&] { return open_path(log, path, options); });
  if (!opened) return fail(opened.error());
  if (!options.read_only)
    if (Status taken = patiently([&] { return take(opened->fd.get()); }); !taken) return fail(taken.error());
  const Result<std::uint64_t> bytes = reserve(log, path, *opened, options);
  if (!bytes) return fail(bytes.error());
  DiskFile file;
  file.fd = std::move(opened->fd);
  file.bytes = *bytes & ~static_cast<std::uint64_t>(kPageBytes - 1);
  file.direct = opened->direct;
  file.read_only = options.read_only;
  file.discards = !options.read_only && device_discards(file.fd.get());
  return file;
}

Status check_op(const DiskOp& op, std::uint64_t bytes, bool read_only) {
  if (!op.on_done) return fail(Code::kInvalid, "a disk operation has no on_done");
  if (op.kind == DiskOp::Kind::kDiscard) return fail(Code::kInvalid, "the disk takes no discards");
  if (op.kind == DiskOp::Kind::kSync) {
    if (!op.buffers.empty()) return fail(Code::kInvalid, "a sync has no buffers");
    return {};
  }
  if (op.kind == DiskOp::Kind::kWrite && read_only) return fail(Code::kInvalid, "the disk is read-only");
  if (op.buffers.empty() || op.buffers.size() > DiskOp::kBuffersMax) {
    return fail(Code::kInvalid, "a transfer has 1 to 1024 buffers");
  }
  if (!is_aligned(op.offset, kPageBytes)) return fail(Code::kInvalid, "a transfer's offset is a multiple of 4 KiB");
  std::uint64_t total = 0;
  for (const iovec& buffer : op.buffers) {
    if (buffer.iov_len == 0 || buffer.iov_len > kOpBytesMax || !is_aligned(buffer.iov_len, kPageBytes) ||
        !is_aligned(reinterpret_cast<std::uintptr_t>(buffer.iov_base), kPageBytes)) {
      return fail(Code::kInvalid, "a transfer's buffers are aligned to 4 KiB");
    }
    total += buffer.iov_len;
  }
  if (total > kOpBytesMax) return fail(Code::kInvalid, "a transfer is at most 1 GiB");
  if (op.offset > bytes || total > bytes - op.offset) {
    return fail(Code::kInvalid, "a transfer ends behind the disk");
  }
  return {};
}

Status check_discard(const DiskOp& op, std::uint64_t bytes, bool read_only) {
  if (!op.on_done) return fail(Code::kInvalid, "a disk operation has no on_done");
  if (read_only) return fail(Code::kInvalid, "the disk is read-only");
  if (!op.buffers.empty()) return fail(Code::kInvalid, "a discard has no buffers");
  if (op.discard_bytes == 0 || op.discard_bytes > kOpBytesMax || !is_aligned(op.discard_bytes, kPageBytes) ||
      !is_aligned(op.offset, kPageBytes)) {
    return fail(Code::kInvalid, "a discard is 4 KiB to 1 GiB, in whole pages");
  }
  if (op.offset > bytes || op.discard_bytes > bytes - op.offset) {
    return fail(Code::kInvalid, "a discard ends behind the disk");
  }
  return {};
}

std::span<const iovec> Transfer::piece(iovec& rest) const noexcept {
  if (buffer_done_ == 0) return op_->buffers.subspan(buffer_at_);
  const iovec& buffer = op_->buffers[buffer_at_];
  rest.iov_base = static_cast<std::byte*>(buffer.iov_base) + buffer_done_;
  rest.iov_len = buffer.iov_len - buffer_done_;
  return {&rest, 1};
}

Transfer::Step Transfer::advance(std::int64_t result) noexcept {
  if (result == -EINTR || result == -EAGAIN) {
    return ++retries_ <= kRetriesMax ? Step::kAgain : fail_with(static_cast<int>(-result));
  }
  if (result < 0) return fail_with(static_cast<int>(-result));
  if (op_->kind == DiskOp::Kind::kSync) return Step::kDone;
  if (result == 0) {
    status_ = fail(Code::kIo, "the disk's file ends before the transfer");
    return Step::kDone;
  }
  retries_ = 0;
  auto left = static_cast<std::uint64_t>(result);
  offset_ += left;
  while (left > 0) {
    const std::uint64_t room = op_->buffers[buffer_at_].iov_len - buffer_done_;
    if (left < room) {
      buffer_done_ += left;
      return Step::kAgain;
    }
    left -= room;
    buffer_done_ = 0;
    ++buffer_at_;
  }
  return buffer_at_ == op_->buffers.size() ? Step::kDone : Step::kAgain;
}

Transfer::Step Transfer::fail_with(int error) noexcept {
  const char* what = op_->kind == DiskOp::Kind::kRead    ? "read from the disk"
                     : op_->kind == DiskOp::Kind::kWrite ? "write to the disk"
                                                         : "flush the disk";
  status_ = fail_errno(what, error);
  return Step::kDone;
}

}  // namespace kvd::io
