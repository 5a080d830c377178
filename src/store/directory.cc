#include "store/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error_text.h"

namespace kvd::store {
namespace {

constexpr std::string_view kFlashName = "flash.kvd";
constexpr std::string_view kListName = "devices.kvd";
constexpr std::string_view kLockName = "LOCK";

// Whether an entry may be there before the first store is made: a lock file of an interrupted start, our own sockets
// and the lock files of their names, which are empty.
bool harmless(int dir, const dirent& entry) {
  const std::string_view name = entry.d_name;
  if (name == "." || name == ".." || name == kLockName || entry.d_type == DT_SOCK) return true;
  struct stat info{};
  return name.ends_with(".lock") && ::fstatat(dir, entry.d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
         S_ISREG(info.st_mode) && info.st_size == 0;
}

// A store's directory holds flash.kvd or the list of its devices, whatever else; one without must be empty to become
// one.
Status check_content(const std::string& dir, std::string& why) {
  const std::unique_ptr<DIR, int (*)(DIR*)> handle(::opendir(dir.c_str()), ::closedir);
  if (handle == nullptr) {
    const int error = errno;
    why = fmt::format("{}: cannot be read: {}: make it readable to this user, or give another directory", dir,
                      error_text(error));
    return fail(Code::kIo, "reading the store's directory", error);
  }
  std::string stranger;
  while (const dirent* entry = ::readdir(handle.get())) {
    if (entry->d_name == kFlashName || entry->d_name == kListName) return {};
    if (stranger.empty() && !harmless(::dirfd(handle.get()), *entry)) stranger = entry->d_name;
  }
  if (stranger.empty()) return {};
  why = fmt::format("{}: holds '{}' and is not a kvdepot store: give an empty directory or one that does not exist",
                    dir, stranger);
  return fail(Code::kInvalid, "the directory holds files of something else");
}

// A power loss could take a new directory's name although its files were synced.
void sync_parent(const std::string& dir, Log& log) {
  const std::filesystem::path parent = std::filesystem::absolute(dir).lexically_normal().parent_path();
  const io::UniqueFd fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EINVAL: the file system has no directory sync.
  if (fd.ok() && (::fsync(fd.get()) == 0 || errno == EINVAL)) return;
  log.warn(fmt::format("store {}: its parent directory cannot be synced: {}", dir, error_text(errno)));
}

Status make_directory(const std::string& dir, Log& log, std::string& why) {
  const bool made = ::mkdir(dir.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) {
    const int error = errno;
    why = fmt::format("{}: cannot be created: {}: {}", dir, error_text(error),
                      error == ENOENT ? "create its parent directory first" : "give one that this user may create");
    return fail(Code::kIo, "creating the store's directory", error);
  }
  struct stat info{};
  if (::stat(dir.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    why = fmt::format("{}: is not a directory: give a directory, or a path where one can be made", dir);
    return fail(Code::kIo, "the store's directory is not a directory", ENOTDIR);
  }
  if (made) sync_parent(dir, log);
  if (auto checked = check_content(dir, why); !checked) return checked;
  if ((info.st_mode & 0077) == 0) return {};
  // KV caches reveal prompts: nobody else may look.
  if (::chmod(dir.c_str(), 0700) != 0) {
    const int error = errno;
    why = fmt::format("{}: is open to other users and cannot be closed to them: {}: give a directory of this user", dir,
                      error_text(error));
    return fail(Code::kIo, "making the store's directory private", error);
  }
  log.info(fmt::format("store {}: mode set to 0700, it was {:04o}", dir, info.st_mode & 07777));
  return {};
}

}  // namespace

std::string flash_path_in(const std::string& dir) { return dir + "/" + std::string(kFlashName); }

std::string list_path_in(const std::string& dir) { return dir + "/" + std::string(kListName); }

Status check_not_foreign(const std::string& dir, std::string& why) {
  std::string reason;
  const Status checked = check_content(dir, reason);
  if (checked || checked.error().code != Code::kInvalid) return {};
  why = std::move(reason);
  return checked;
}

std::uint64_t flash_file_bytes(const std::string& dir) {
  struct stat info{};
  const bool file = ::stat(flash_path_in(dir).c_str(), &info) == 0 && S_ISREG(info.st_mode);
  return file ? static_cast<std::uint64_t>(info.st_size) : 0;
}

std::string lock_holder(int lock) {
  char text[32] = {};
  const ssize_t got = ::pread(lock, text, sizeof text - 1, 0);
  const std::string_view digits(text, got > 0 ? static_cast<std::size_t>(got) : 0);
  const auto end = digits.find_first_not_of("0123456789");
  return digits.empty() || end == 0 ? "another process" : fmt::format("process {}", digits.substr(0, end));
}

std::string StoreDirectory::flash_path() const { return flash_path_in(path_); }

Result<StoreDirectory> StoreDirectory::open(const std::string& dir, Log& log, std::string& why) {
  if (dir.empty()) {
    why = "a flash tier needs a directory: name one, or ask for no flash";
    return fail(Code::kInvalid, "a flash tier needs a directory");
  }
  if (auto made = make_directory(dir, log, why); !made) return fail(made.error());
  const std::string path = dir + "/" + std::string(kLockName);
  io::UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.ok()) {
    const int error = errno;
    why = fmt::format("{}: is not writable: {}: make it writable to this user, or give another directory", dir,
                      error_text(error));
    return fail(Code::kIo, "creating the store's lock file", error);
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    if (error != EWOULDBLOCK) {
      why = fmt::format("{}: cannot be locked: {}: give a directory on a local disk", dir, error_text(error));
      return fail(Code::kIo, "locking the store's directory", error);
    }
    why = fmt::format("{}: is in use by {}: stop it, connect to it, or give another directory", dir,
                      lock_holder(lock.get()));
    return fail(Code::kBusy, "another process holds the store's directory");
  }
  // For the message above; the lock itself does not depend on it.
  const std::string pid = fmt::format("{}\n", ::getpid());
  if (::ftruncate(lock.get(), 0) != 0 || ::pwrite(lock.get(), pid.data(), pid.size(), 0) < 0)
    log.warn(fmt::format("store {}: the lock file cannot be written: {}", dir, error_text(errno)));
  return StoreDirectory(dir, std::move(lock));
}

}  // namespace kvd::store
