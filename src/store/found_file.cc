#include "store/found_file.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error_text.h"
#include "store/aligned_buffer.h"

namespace kvd::store {

std::unique_ptr<io::Disk> open_to_look(io::Loop& loop, io::DiskFactory& disks, const std::string& path,
                                       bool force_threads, Error& error) {
  io::DiskOptions look;
  look.read_only = true;
  look.force_threads = force_threads;
  look.depth_max = 8;
  NullLog quiet;
  auto disk = disks.open(loop, quiet, path, look);
  if (disk) return std::move(*disk);
  error = disk.error();
  return nullptr;
}

// What cannot be read tells nothing: the first write to it will.
bool is_foreign(BlockingDisk& disk, std::uint64_t bytes) {
  if (bytes < kUseTableAt + kPageBytes) return false;
  const AlignedBuffer before(kProbeAt - kPageBytes), table(kPageBytes);
  const auto zero = [](std::byte b) { return b == std::byte{0}; };
  if (disk.read(kPageBytes, before.span()) && !std::ranges::all_of(before.span(), zero)) return true;
  if (!disk.read(kUseTableAt, table.span())) return false;
  const auto first = load<std::uint64_t>(table.span().data());
  return first != 0 && first != kMagicUses;
}

Status check_found(const std::string& path, CopiesKind kind, const Error& error, std::string& why) {
  if (kind == CopiesKind::kUnreadable) {
    why = fmt::format(
        "{}: cannot be read: {}: check the drive and whether this user may read it, or give another "
        "directory",
        path, error_text(error));
    return fail(error);
  }
  if (kind == CopiesKind::kNewer) {
    why =
        fmt::format("{}: was written by a newer version of kvdepot: run that version, or give another directory", path);
    return fail(Code::kStale, "the store was written by a newer version");
  }
  if (kind == CopiesKind::kForeign) {
    why = fmt::format("{}: is not a kvdepot store: move it away, or give another directory", path);
    return fail(Code::kInvalid, "the file is not a store's");
  }
  return {};
}

}  // namespace kvd::store
