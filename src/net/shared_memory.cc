#include "net/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>

#include "io/aligned_map.h"

namespace kvd::net {

Result<std::unique_ptr<SharedMemory>> SharedMemory::map(io::PrivateFd file, std::uint64_t bytes) {
  const int seals = file.ok() ? ::fcntl(file.get(), F_GET_SEALS) : -1;
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return fail(Code::kInvalid, "the peer's memory is not a sealed memory file");
  }
  struct statfs system{};
  if (::fstatfs(file.get(), &system) != 0 || system.f_type != TMPFS_MAGIC) {
    return fail(Code::kInvalid, "the peer's memory is not ordinary shared memory");  // huge pages can run out
  }
  struct stat status{};
  if (::fstat(file.get(), &status) != 0 || bytes == 0 || static_cast<std::uint64_t>(status.st_size) != bytes) {
    return fail(Code::kInvalid, "the peer's memory has another size than it says");
  }
  void* const base = io::map_aligned(file.get(), bytes, PROT_READ);
  if (base == MAP_FAILED) return fail(Code::kNoSpace, "map the peer's memory", errno);
  ::madvise(base, bytes, MADV_DONTFORK);
  ::madvise(base, bytes, MADV_DONTDUMP);
  return std::unique_ptr<SharedMemory>(new SharedMemory(Bytes(static_cast<const std::byte*>(base), bytes)));
}

SharedMemory::~SharedMemory() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace kvd::net
