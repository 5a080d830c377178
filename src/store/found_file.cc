#include "store/found_file.h"

#include <fmt/format.h>

#include "base/error_text.h"

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
