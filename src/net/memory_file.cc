#include "net/memory_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace kvd::net {

Result<io::PrivateFd> make_memory_file(const char* name, std::uint64_t bytes) {
  io::PrivateFd file(io::UniqueFd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (!file.ok()) return fail(Code::kNoSpace, "create shared memory", errno);
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return fail(Code::kIo, "make shared memory", errno);
  }
  return file;
}

Status check_memory_file(const io::PrivateFd& file, std::uint64_t bytes) {
  constexpr int kWanted = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = file.ok() ? ::fcntl(file.get(), F_GET_SEALS) : -1;
  struct statfs system{};
  struct stat status{};
  if (seals < 0 || (seals & kWanted) != kWanted || ::fstatfs(file.get(), &system) != 0 ||
      system.f_type != TMPFS_MAGIC) {
    return fail(Code::kInvalid, "the peer's memory is not a sealed memory file");
  }
  if (::fstat(file.get(), &status) != 0 || bytes == 0 || static_cast<std::uint64_t>(status.st_size) != bytes) {
    return fail(Code::kInvalid, "the peer's memory has another size than it says");
  }
  return {};
}

Result<std::byte*> map_memory_file(const io::PrivateFd& file, std::uint64_t bytes, int protection) {
  void* const base = ::mmap(nullptr, bytes, protection, MAP_SHARED, file.get(), 0);
  if (base == MAP_FAILED) return fail(Code::kNoSpace, "map shared memory", errno);
  ::madvise(base, bytes, MADV_DONTFORK);  // a child would write to what is its parent's
  ::madvise(base, bytes, MADV_DONTDUMP);
  return static_cast<std::byte*>(base);
}

}  // namespace kvd::net
