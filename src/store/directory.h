// StoreDirectory: the directory of a store, checked, private (0700) and locked for one process.
//
// Control path: opening blocks on the file system. The lock is an exclusive flock on LOCK, held until destruction; the
// kernel drops it when the process dies, so a crash never leaves a stale one; forked children do not keep it.
#pragma once

#include <cstdint>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "io/private_fd.h"

namespace kvd::store {

class StoreDirectory {
 public:
  // Creates `dir` (its parent must exist) or takes an existing one that is empty or a store's. On error, `why` is one
  // line that says what is wrong and what to do. kBusy: another process holds it; kIo: not a directory, not writable;
  // kInvalid: it holds files of something else.
  static Result<StoreDirectory> open(const std::string& dir, Log& log, std::string& why);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::string flash_path() const;

 private:
  StoreDirectory(std::string path, io::UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  io::PrivateFd lock_;
};

// Whether `dir` may be a store's as far as its content goes: kInvalid and `why` when it holds files of something else.
// Changes nothing, and leaves all else that may be wrong to StoreDirectory::open().
Status check_not_foreign(const std::string& dir, std::string& why);

// Where the flash file of a directory lies.
std::string flash_path_in(const std::string& dir);
// Where the list of a store's devices lies in its directory.
std::string list_path_in(const std::string& dir);
// Length of the flash file in `dir`; 0 when there is none, or a device in its place.
std::uint64_t flash_file_bytes(const std::string& dir);

// Who holds a lock file, as its content says: "process 4711", or "another process". `lock` is open for reading.
std::string lock_holder(int lock);

}  // namespace kvd::store
