// FoundFile: a file of copies (store/quorum.h) as it lies there, looked at without changing it: what opening a store,
// and finding out which devices it uses, begin with.
//
// Looking blocks: it runs the loop.
#pragma once

#include <memory>
#include <string>

#include "base/log.h"
#include "io/disk.h"
#include "io/loop.h"
#include "store/blocking_disk.h"
#include "store/quorum.h"

namespace kvd::store {

template <class T>
struct FoundFile {
  std::string path;
  CopiesVerdict<T> verdict;        // kEmpty: nor is there a file; kUnreadable: or it cannot be opened
  Error error{.code = Code::kOk};  // of kUnreadable
  std::uint64_t bytes = 0;         // that the file has

  // Whether it can be used, or begun anew. If not, `why` is one line that says what is wrong and what to do.
  // kIo and the like: unreadable; kStale: of a newer version; kInvalid: not ours.
  Status check(std::string& why) const;
};

// Non-template parts of what follows.
std::unique_ptr<io::Disk> open_to_look(io::Loop& loop, io::DiskFactory& disks, const std::string& path,
                                       bool force_threads, Error& error);
// Whether a file without a copy is something else's: some leave the first page of their drives empty. Labels of ZFS and
// MD lie between 4 and 32 KiB, where a store has nothing; that of btrfs where a store has its table of uses.
bool is_foreign(BlockingDisk& disk, std::uint64_t bytes);
Status check_found(const std::string& path, CopiesKind kind, const Error& error, std::string& why);

template <class T>
Status FoundFile<T>::check(std::string& why) const {
  return check_found(path, verdict.kind, error, why);
}

// `Scan` of the file at `path`, whose copies lie `stride` apart.
template <class Scan>
FoundFile<typename Scan::Value> look_at(io::Loop& loop, io::DiskFactory& disks, const std::string& path,
                                        std::uint64_t stride, bool force_threads) {
  FoundFile<typename Scan::Value> found;
  found.path = path;
  const auto disk = open_to_look(loop, disks, path, force_threads, found.error);
  if (disk == nullptr) {
    if (found.error.code != Code::kNotFound) found.verdict.kind = CopiesKind::kUnreadable;
    return found;
  }
  BlockingDisk blocking(loop, *disk);
  found.bytes = disk->size();
  for (int look = 0; look < 2; ++look) {  // what is not ours is looked at again: a bit may have been read wrong
    const auto copies = scan_copies<Scan>(
        disk->size(), stride, [&](std::uint64_t offset, MutableBytes page) { return blocking.read(offset, page); });
    found.verdict = copies.verdict();
    found.error = copies.read_error();
    if (found.verdict.kind == CopiesKind::kEmpty && stride == kSuperblockStride && is_foreign(blocking, found.bytes))
      found.verdict.kind = CopiesKind::kForeign;
    if (found.verdict.kind != CopiesKind::kForeign) break;
  }
  return found;
}

}  // namespace kvd::store
