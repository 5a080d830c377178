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
#include "store/copies_writer.h"
#include "store/found_file.h"
#include "store/superblocks.h"

namespace kvd::store {
namespace {

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

// A file that was cut behind the store's back is made as long as it was, and what lay there is missed.
void tell_cut(Log& log, const FoundFile<Superblock>& file) {
  const Superblock& block = file.verdict.in_force;
  const std::uint64_t bytes = kHeadBytes + block.segments * block.segment_bytes;
  if (file.bytes >= bytes) return;
  log.error(
      fmt::format("store {}: has {} of its {} bytes: what lay behind them is lost", file.path, file.bytes, bytes));
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
  const auto file = look_at<SuperblockScan>(loop, disks, path, kSuperblockStride, options.force_threads);
  if (auto checked = file.check(why); !checked) return fail(checked.error());
  const SuperblockVerdict& found = file.verdict;
  const bool exists = found.kind == CopiesKind::kValid;
  if (exists && found.in_force.member()) {
    why = fmt::format("{}: is a device of a store that has several: give another directory", path);
    return fail(Code::kInvalid, "the flash file is a device of a store that has several");
  }
  std::uint64_t segment_bytes =
      options.segment_bytes == 0 ? default_segment_bytes(options.flash_bytes) : options.segment_bytes;
  if (exists && found.in_force.segment_bytes != segment_bytes) {
    if (options.segment_bytes != 0)
      log.warn(fmt::format("store {}: keeps its segments of {} KiB", path, found.in_force.segment_bytes >> 10));
    segment_bytes = found.in_force.segment_bytes;
  }
  const bool keeps = exists && !options.flash_bytes_given;
  const auto wanted = keeps ? Result<std::uint32_t>(static_cast<std::uint32_t>(found.in_force.segments))
                            : segments_for(options, segment_bytes, why);
  if (!wanted) return fail(wanted.error());
  if (found.kind == CopiesKind::kLost)
    log.error(fmt::format("store {}: all superblocks are damaged, its content is lost; starting empty", path));
  if (exists) tell_cut(log, file);
  if (exists && found.copies < kSuperblockCopies)
    log.warn(fmt::format("store {}: only {} of {} superblock copies agree", path, found.copies, kSuperblockCopies));

  Superblock block = exists ? found.in_force : new_superblock(segment_bytes, *wanted);
  const std::uint64_t previous = exists ? block.boot_epoch : 0;
  block.boot_epoch += 1;
  block.generation = found.generation_max;  // below that of the next rewrite, which no copy has then
  return begin(loop, log, disks, path, options.force_threads, block, previous, *wanted, why);
}

Result<std::uint32_t> Volume::segments_of_member(const FoundFile<Superblock>& file, const VolumeOptions& options,
                                                 bool anew, std::string& why) {
  const SuperblockVerdict& found = file.verdict;
  const bool exists = found.kind == CopiesKind::kValid && !anew;
  if (exists && found.in_force.segment_bytes != options.segment_bytes) {
    why = fmt::format("{}: has segments of another size than the store: give another directory", file.path);
    return fail(Code::kInvalid, "the device has segments of another size");
  }
  if (exists && !options.flash_bytes_given) return static_cast<std::uint32_t>(found.in_force.segments);
  return segments_for(options, options.segment_bytes, why);
}

Result<Volume> Volume::open_member(io::Loop& loop, Log& log, io::DiskFactory& disks, const FoundFile<Superblock>& file,
                                   const VolumeOptions& options, const Membership& membership, std::string& why) {
  const auto wanted = segments_of_member(file, options, membership.anew, why);
  if (!wanted) return fail(wanted.error());
  const SuperblockVerdict& found = file.verdict;
  const bool exists = found.kind == CopiesKind::kValid && !membership.anew;
  if (exists) tell_cut(log, file);
  if (exists && found.copies < kSuperblockCopies)
    log.warn(
        fmt::format("store {}: only {} of {} superblock copies agree", file.path, found.copies, kSuperblockCopies));
  Superblock block = exists ? found.in_force : new_superblock(options.segment_bytes, *wanted);
  const std::uint64_t previous = exists ? block.boot_epoch : 0;
  block.generation = found.generation_max;
  block.features_incompatible |= kFeatureMember;
  block.store = membership.store;
  block.boot_epoch = membership.boot_epoch;
  return begin(loop, log, disks, file.path, options.force_threads, block, previous, *wanted, why);
}

Result<Volume> Volume::begin(io::Loop& loop, Log& log, io::DiskFactory& disks, const std::string& path,
                             bool force_threads, Superblock block, std::uint64_t previous_epoch, std::uint32_t wanted,
                             std::string& why) {
  block.segments = std::max<std::uint64_t>(block.segments, wanted);
  io::DiskOptions disk_options;
  disk_options.bytes = kHeadBytes + block.segments * block.segment_bytes;
  disk_options.force_threads = force_threads;
  disk_options.hole_at = kHeadHoleAt;
  disk_options.hole_bytes = kHeadHoleBytes;
  auto disk = disks.open(loop, log, path, disk_options);
  if (!disk && disk.error().code == Code::kBusy) {
    why = fmt::format("{}: is in use: {}: stop what uses it, or give another one", path, disk.error().what);
    return fail(disk.error());
  }
  if (!disk) {
    why = fmt::format(
        "{}: cannot be made {} large: {}: {}", path, show_size(disk_options.bytes), error_text(disk.error()),
        disk.error().code == Code::kNoSpace ? "free space or ask for less flash"
                                            : "give a directory on a local disk that this user may write");
    return fail(disk.error());
  }
  Volume volume(std::move(*disk), block, previous_epoch, wanted, path);
  if (auto written = volume.write_superblocks(loop); !written) {
    why = fmt::format("{}: the superblocks cannot be written: {}: check the drive, or give another directory", path,
                      error_text(written.error()));
    return fail(written.error());
  }
  return volume;
}

Status Volume::write_superblocks(io::Loop& loop) {
  superblock_.generation += 1;
  return write_copies(loop, *disk_, kSuperblockStride, [this](MutableBytes page, std::uint32_t copy) {
    Superblock block = superblock_;
    block.copy = copy;
    encode_superblock(page, block);
  });
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
