// Volume: the file flash.kvd of a store: its geometry, identity and superblocks. Knows where segments and pages lie,
// nothing of their content.
//
// Belongs to the store's loop. open() and shrink() block (they run the loop); everything else is arithmetic.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "io/disk.h"
#include "io/loop.h"
#include "store/found_file.h"
#include "store/superblocks.h"

namespace kvd::store {

struct VolumeOptions {
  std::uint64_t flash_bytes = 0;    // of the file, head area included
  bool flash_bytes_given = true;    // false: of a new file only, an existing one keeps its size
  std::uint64_t segment_bytes = 0;  // for a new store; an existing one keeps its own. 0 = by flash_bytes
  std::uint32_t segments_min = 4;
  bool force_threads = false;
};

// Of what store a volume is a device, where that has several.
struct Membership {
  Uuid store{};
  std::uint64_t boot_epoch = 0;  // of this opening
  bool anew = false;             // what the file holds counts no more: it gets an identity of its own
};

// Segment size for a store of this size: the largest power of two in 16..256 MiB that gives at least 32 segments, so
// that giving one up loses at most 3 % of what is stored.
std::uint64_t default_segment_bytes(std::uint64_t flash_bytes) noexcept;

class Volume {
 public:
  // Opens or creates the file, and marks a new opening in its superblocks. On error, `why` is one line that says what
  // is wrong and what to do. kStale: a newer format; kInvalid: impossible sizes, or not our file; kNoSpace; kIo.
  static Result<Volume> open(io::Loop& loop, Log& log, io::DiskFactory& disks, const std::string& path,
                             const VolumeOptions& options, std::string& why);

  // The same of a device of a store of several: of a file that was looked at and is to be used. Segments have the size
  // that `options` say.
  static Result<Volume> open_member(io::Loop& loop, Log& log, io::DiskFactory& disks, const FoundFile<Superblock>& file,
                                    const VolumeOptions& options, const Membership& membership, std::string& why);
  // The segments that open_member() would want. kInvalid and `why`: that is not possible.
  static Result<std::uint32_t> segments_of_member(const FoundFile<Superblock>& file, const VolumeOptions& options,
                                                  bool anew, std::string& why);

  [[nodiscard]] io::Disk& disk() const noexcept { return *disk_; }
  [[nodiscard]] const Superblock& superblock() const noexcept { return superblock_; }
  [[nodiscard]] const FormatSeeds& seeds() const noexcept { return seeds_; }
  [[nodiscard]] bool created() const noexcept { return previous_epoch_ == 0; }
  [[nodiscard]] std::uint64_t boot_epoch() const noexcept { return superblock_.boot_epoch; }
  // The last opening that has written to it before this one; 0: none.
  [[nodiscard]] std::uint64_t previous_epoch() const noexcept { return previous_epoch_; }
  // The store's identity.
  [[nodiscard]] const Uuid& store() const noexcept {
    return superblock_.member() ? superblock_.store : superblock_.uuid;
  }
  [[nodiscard]] std::uint64_t segment_bytes() const noexcept { return superblock_.segment_bytes; }
  [[nodiscard]] std::uint32_t segment_pages() const noexcept {
    return static_cast<std::uint32_t>(superblock_.segment_bytes / kPageBytes);
  }
  // Segments on flash now, and how many the options ask for: fewer when the store is to shrink.
  [[nodiscard]] std::uint32_t segments() const noexcept { return static_cast<std::uint32_t>(superblock_.segments); }
  [[nodiscard]] std::uint32_t segments_wanted() const noexcept { return segments_wanted_; }
  [[nodiscard]] std::uint64_t offset_of(std::uint32_t segment, std::uint32_t page = 0) const noexcept {
    return kHeadBytes + segment * superblock_.segment_bytes + std::uint64_t{page} * kPageBytes;
  }

  // Ends the disk: waits for operations in flight, whose callbacks do not run. Their buffers must still be there.
  void close() noexcept { disk_.reset(); }

  // Gives up the segments from segments_wanted() on, which hold nothing any more, and cuts the file.
  Status shrink(io::Loop& loop, Log& log);

 private:
  Volume(std::unique_ptr<io::Disk> disk, const Superblock& superblock, std::uint64_t previous_epoch,
         std::uint32_t wanted, std::string path)
      : disk_(std::move(disk)),
        superblock_(superblock),
        seeds_(superblock.uuid),
        previous_epoch_(previous_epoch),
        segments_wanted_(wanted),
        path_(std::move(path)) {}
  // Opens the file with room for `block` and `wanted` segments, and writes its superblocks.
  static Result<Volume> begin(io::Loop& loop, Log& log, io::DiskFactory& disks, const std::string& path,
                              bool force_threads, Superblock block, std::uint64_t previous_epoch, std::uint32_t wanted,
                              std::string& why);
  Status write_superblocks(io::Loop& loop);

  std::unique_ptr<io::Disk> disk_;
  Superblock superblock_;
  FormatSeeds seeds_;
  std::uint64_t previous_epoch_;
  std::uint32_t segments_wanted_;
  std::string path_;
};

// Random bytes for a new store's identity.
Uuid random_uuid();

}  // namespace kvd::store
