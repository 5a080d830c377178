#include "store/volume.h"

#include <errno.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error_text.h"
#include "base/sizes.h"
#include "store/aligned_buffer.h"
#include "store/blocking_disk.h"
#include "store/superblocks.h"

namespace kvd::store {
namespace {

using Found = SuperblockVerdict;

// Looks at an existing file without changing it.
Result<Found> inspect_file(io::Loop& loop, io::DiskFactory& disks, const std::string& path, bool force_threads,
                           std::string& why) {
  io::DiskOptions look;
  look.read_only = true;
  look.force_threads = force_threads;
  look.depth_max = 8;
  NullLog quiet;
  auto disk = disks.open(loop, quiet, path, look);
  if (!disk) {
    if (disk.error().code == Code::kNotFound) return Found{};
    why = fmt::format("{}: cannot be read: {}: make it readable to this user, or give another directory", path,
                      error_text(disk.error()));
    return fail(disk.error());
  }
  BlockingDisk blocking(loop, **disk);
  const SuperblockScan copies = scan_superblocks(
      (*disk)->size(), [&](std::uint64_t offset, MutableBytes page) { return blocking.read(offset, page); });
  const Found found = copies.verdict();
  if (found.kind == Found::Kind::kUnreadable) {
    why = fmt::format("{}: cannot be read: {}: check the drive, or give another directory", path,
                      error_text(copies.read_error()));
    return fail(copies.read_error());
  }
  if (found.kind == Found::Kind::kNewer) {
    why =
        fmt::format("{}: was written by a newer version of kvdepot: run that version, or give another directory", path);
    return fail(Code::kStale, "the store was written by a newer version");
  }
  if (found.kind == Found::Kind::kForeign) {
    why = fmt::format("{}: is not a kvdepot store: move it away, or give another directory", path);
    return fail(Code::kInvalid, "the flash file is not a store");
  }
  return found;
}

// Number of segments that `options` ask for, given their size.
Result<std::uint32_t> segments_for(const VolumeOptions& options, std::uint64_t segment_bytes, std::string& why) {
  const std::uint64_t room = options.flash_bytes > kHeadBytes ? options.flash_bytes - kHeadBytes : 0;
  const std::uint64_t segments = room / segment_bytes;
  if (segments < options.segments_min) {
    why = fmt::format("a flash size of {} is too small: {} segments of {} and {} beside them are needed: ask for {}MiB",
                      show_size(options.flash_bytes), options.segments_min, show_size(segment_bytes),
                      show_size(kHeadBytes), (kHeadBytes + options.segments_min * segment_bytes) >> 20);
    return fail(Code::kInvalid, "the flash size is too small");
  }
  if (segments > kSegmentsMax) {
    why = fmt::format("a flash size of {} is too large: ask for at most {}, which is what segments of {} allow",
                      show_size(options.flash_bytes), show_size(std::uint64_t{kSegmentsMax} * segment_bytes),
                      show_size(segment_bytes));
    return fail(Code::kInvalid, "the flash size is too large");
  }
  return static_cast<std::uint32_t>(segments);
}

Superblock new_superblock(std::uint64_t segment_bytes, std::uint32_t segments) {
  Superblock block;
  block.uuid = random_uuid();
  block.segment_bytes = segment_bytes;
  block.segments = segments;
  return block;
}

}  // namespace

Uuid random_uuid() {
  Uuid uuid;
  KVD_CHECK(::getrandom(uuid.data(), uuid.size(), 0) == static_cast<ssize_t>(uuid.size()));
  return uuid;
}

std::uint64_t default_segment_bytes(std::uint64_t flash_bytes) noexcept {
  std::uint64_t bytes = kSegmentBytesMax;
  while (bytes > kSegmentBytesMin && flash_bytes / bytes < 32) bytes /= 2;
  return bytes;
}

Result<Volume> Volume::open(io::Loop& loop, Log& log, io::DiskFactory& disks, const std::string& path,
                            const VolumeOptions& options, std::string& why) {
  auto found = inspect_file(loop, disks, path, options.force_threads, why);
  if (!found) return fail(found.error());
  const bool exists = found->kind == Found::Kind::kStore;
  std::uint64_t segment_bytes =
      options.segment_bytes == 0 ? default_segment_bytes(options.flash_bytes) : options.segment_bytes;
  if (exists && found->superblock.segment_bytes != segment_bytes) {
    if (options.segment_bytes != 0)
      log.warn(fmt::format("store {}: keeps its segments of {} KiB", path, found->superblock.segment_bytes >> 10));
    segment_bytes = found->superblock.segment_bytes;
  }
  const bool keeps = exists && !options.flash_bytes_given;
  const auto wanted = keeps ? Result<std::uint32_t>(static_cast<std::uint32_t>(found->superblock.segments))
                            : segments_for(options, segment_bytes, why);
  if (!wanted) return fail(wanted.error());
  if (found->kind == Found::Kind::kLost)
    log.error(fmt::format("store {}: all superblocks are damaged, its content is lost; starting empty", path));
  if (exists && found->copies < kSuperblockCopies)
    log.warn(fmt::format("store {}: only {} of {} superblock copies agree", path, found->copies, kSuperblockCopies));

  Superblock block = exists ? found->superblock : new_superblock(segment_bytes, *wanted);
  block.segments = std::max<std::uint64_t>(block.segments, *wanted);
  io::DiskOptions disk_options;
  disk_options.bytes = kHeadBytes + block.segments * segment_bytes;
  disk_options.force_threads = options.force_threads;
  auto disk = disks.open(loop, log, path, disk_options);
  if (!disk) {
    why = fmt::format(
        "{}: cannot be made {} large: {}: {}", path, show_size(disk_options.bytes), error_text(disk.error()),
        disk.error().code == Code::kNoSpace ? "free space or ask for less flash"
                                            : "give a directory on a local disk that this user may write");
    return fail(disk.error());
  }
  block.boot_epoch += 1;
  Volume volume(std::move(*disk), block, !exists, *wanted, path);
  if (auto written = volume.write_superblocks(loop); !written) {
    why = fmt::format("{}: the superblocks cannot be written: {}: check the drive, or give another directory", path,
                      error_text(written.error()));
    return fail(written.error());
  }
  return volume;
}

// Two copies at a time with a flush between, so that a torn write never leaves fewer than two that agree. The first
// flush is for what an opening that was killed has left: its last two copies may not be durable yet.
Status Volume::write_superblocks(io::Loop& loop) {
  superblock_.generation += 1;
  BlockingDisk blocking(loop, *disk_);
  if (auto synced = blocking.sync(); !synced) return synced;
  const AlignedBuffer page(kPageBytes);
  for (std::uint32_t i = 0; i < kSuperblockCopies; ++i) {
    Superblock copy = superblock_;
    copy.copy = i;
    encode_superblock(page.span(), copy);
    if (auto written = blocking.write(i * kSuperblockStride, page.span()); !written) return written;
    if (i % 2 == 1)
      if (auto synced = blocking.sync(); !synced) return synced;
  }
  return {};
}

Status Volume::shrink(io::Loop& loop, Log& log) {
  if (segments_wanted_ == segments()) return {};
  superblock_.segments = segments_wanted_;
  if (auto written = write_superblocks(loop); !written) return written;
  // The file is cut last; a crash before that leaves it too long, which the next shrink or nothing puts right.
  const auto bytes = static_cast<off_t>(offset_of(segments_wanted_));
  struct stat info{};
  if (::stat(path_.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_size > bytes &&
      ::truncate(path_.c_str(), bytes) != 0)
    log.warn(fmt::format("store {}: shrunk, but the file keeps its length: {}", path_, error_text(errno)));
  return {};
}

}  // namespace kvd::store
