#include "store/store_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/error_text.h"
#include "store/aligned_buffer.h"
#include "store/directory.h"

namespace kvd::store {
namespace {

// The file for reading: direct where it can be. One read tells, as some file systems refuse at the transfer only.
io::UniqueFd open_file(const std::string& path) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOCTTY;
  io::UniqueFd direct(::open(path.c_str(), kFlags | O_DIRECT));
  if (!direct.ok() && errno != EINVAL) return direct;
  const AlignedBuffer page(kPageBytes);
  if (direct.ok() && (::pread(direct.get(), page.data(), kPageBytes, 0) >= 0 || errno != EINVAL)) return direct;
  return io::UniqueFd(::open(path.c_str(), kFlags));
}

// Takes a shared lock, so that no depot starts meanwhile. A directory without LOCK has never been opened.
io::UniqueFd share_lock(const std::string& dir, std::string& holder) {
  io::UniqueFd lock(::open((dir + "/LOCK").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (lock.ok() && ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    holder = lock_holder(lock.get());
  return lock;
}

}  // namespace

Result<StoreReader> StoreReader::open(const std::string& dir, std::string& why) {
  struct stat info{};
  if (::stat(dir.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    const int error = S_ISDIR(info.st_mode) || info.st_mode == 0 ? errno : ENOTDIR;
    why = fmt::format("{}: {}: give the directory of a store", dir, error_text(error));
    return fail(Code::kNotFound, "no directory of a store", error);
  }
  const std::string path = dir + "/flash.kvd";
  std::string holder;
  io::UniqueFd lock = share_lock(dir, holder);
  io::UniqueFd file = open_file(path);
  if (!file.ok()) {
    const int error = errno;
    why = error == ENOENT ? fmt::format("{}: holds no flash.kvd: give the directory of a store", dir)
                          : fmt::format("{}: cannot be read: {}{}", path, error_text(error),
                                        error == EACCES ? ": run this as the owner of the store" : "");
    return fail(error == ENOENT ? Code::kNotFound : Code::kIo, "opening the flash file", error);
  }
  const off_t bytes = ::lseek(file.get(), 0, SEEK_END);  // works for block devices, too
  if (bytes < 0) {
    why = fmt::format("{}: is neither a file nor a device: {}", path, error_text(errno));
    return fail(Code::kInvalid, "the flash file has no size", errno);
  }
  StoreReader reader(path, std::move(file), std::move(lock), static_cast<std::uint64_t>(bytes));
  reader.holder_ = std::move(holder);
  if (auto read = reader.read_superblocks(why); !read) return fail(read.error());
  return reader;
}

Status StoreReader::read_superblocks(std::string& why) {
  const SuperblockScan copies =
      scan_superblocks(file_bytes_, [this](std::uint64_t offset, MutableBytes page) { return read(offset, page); });
  for (std::uint32_t i = 0; i < kSuperblockCopies; ++i)
    if (!copies.copy(i)) copy_damage_[i] = copies.copy(i).error().what;
  verdict_ = copies.verdict();
  seeds_ = FormatSeeds(verdict_.in_force.uuid);
  switch (verdict_.kind) {
    case SuperblockVerdict::Kind::kValid: return {};
    case SuperblockVerdict::Kind::kEmpty:
      why = fmt::format("{}: is empty: no store has been made in it yet", path_);
      return fail(Code::kInvalid, "the flash file is empty");
    case SuperblockVerdict::Kind::kLost:
      why = fmt::format("{}: no superblock is valid: the content is lost, a depot would start empty", path_);
      return fail(Code::kCorrupt, "no superblock is valid");
    case SuperblockVerdict::Kind::kForeign:
      why = fmt::format("{}: is not a kvdepot store", path_);
      return fail(Code::kInvalid, "the flash file is not a store");
    case SuperblockVerdict::Kind::kUnreadable:
      why = fmt::format("{}: cannot be read: {}", path_, error_text(copies.read_error()));
      return fail(copies.read_error());
    case SuperblockVerdict::Kind::kNewer: break;
  }
  why = fmt::format("{}: was written by a newer version of kvdepot: look at it with that version", path_);
  return fail(Code::kStale, "the store was written by a newer version");
}

Status StoreReader::read(std::uint64_t offset, MutableBytes to) const {
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t got = ::pread(file_.get(), to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(Code::kIo, "the device reports an error", errno);
    if (got == 0) return fail(Code::kIo, "the file ends before", 0);
    done += static_cast<std::size_t>(got);
  }
  return {};
}

}  // namespace kvd::store
