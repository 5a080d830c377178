#include "net/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "io/aligned_map.h"

namespace kvd::net {
namespace {

// A write to each of the pages that changes nothing, for kernels that cannot do it for us (before 5.14).
void write_pages(MutableBytes pages) {
  for (std::size_t at = 0; at < pages.size(); at += kPageBytes) {
    auto* const byte = static_cast<volatile std::byte*>(pages.data() + at);
    *byte = *byte;
  }
}

constexpr std::size_t kPagesAtATime = 256;  // whose presence is asked for in one system call

}  // namespace

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
  return map_checked(std::make_shared<const io::PrivateFd>(std::move(file)), bytes);
}

Result<std::unique_ptr<SharedMemory>> SharedMemory::map_checked(File file, std::uint64_t bytes) {
  void* const base = io::map_aligned(file->get(), bytes, PROT_READ, io::Mapping::kPrivate);
  if (base == MAP_FAILED) return fail(Code::kNoSpace, "map the peer's memory", errno);
  ::madvise(base, bytes, MADV_DONTFORK);
  ::madvise(base, bytes, MADV_DONTDUMP);
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(std::move(file), Bytes(static_cast<const std::byte*>(base), bytes)));
}

Result<std::unique_ptr<SharedMemory>> SharedMemory::again() const { return map_checked(file_, bytes_.size()); }

// By reading and not by MADV_POPULATE_READ (5.14): that makes pages that are not there, and keeps other threads from
// changing the process's map meanwhile. mincore() tells of a memory file that anybody may write to, as memfd_create()
// makes it, what it has in memory. No page of a pool goes away again but to swap; who reads a
// window's that has gone makes it anew, once.
std::uint64_t SharedMemory::prefault(Bytes part) const {
  const auto at = static_cast<std::uint64_t>(part.data() - bytes_.data());
  const std::uint64_t end = align_up(at + part.size(), kPageBytes);
  std::array<unsigned char, kPagesAtATime> present{};
  std::uint64_t missing = 0;
  for (std::uint64_t first = at / kPageBytes * kPageBytes; first < end;) {
    const std::uint64_t pages = std::min<std::uint64_t>(kPagesAtATime, (end - first) / kPageBytes);
    auto* const place = const_cast<std::byte*>(bytes_.data() + first);
    if (::mincore(place, pages * kPageBytes, present.data()) != 0) present.fill(0);
    for (std::size_t page = 0; page < pages; ++page) {
      if ((present[page] & 1U) == 0) {
        missing += kPageBytes;
      } else {
        static_cast<void>(*static_cast<const volatile std::byte*>(place + page * kPageBytes));
      }
    }
    first += pages * kPageBytes;
  }
  return missing;
}

// As a write to each page does. Asked for as a range the kernel answers when it has no memory, where a write would end
// the process. Under a cgroup's limit it may not answer: the kernel then ends a process of the group.
Status SharedMemory::cut_loose(Bytes part) const {
  const auto at = static_cast<std::uint64_t>(part.data() - bytes_.data());
  const std::uint64_t first = at / kPageBytes * kPageBytes;
  const std::uint64_t bytes = align_up(at + part.size(), kPageBytes) - first;
  auto* const place = const_cast<std::byte*>(bytes_.data() + first);
  if (::mprotect(place, bytes, PROT_READ | PROT_WRITE) != 0) return fail(Code::kNoSpace, "copy what is lent", errno);
  int copied = 0;
  do {
    copied = ::madvise(place, bytes, MADV_POPULATE_WRITE);
  } while (copied != 0 && errno == EINTR);
  const int why = errno;
  if (copied != 0 && why == EINVAL) write_pages({place, bytes});
  ::mprotect(place, bytes, PROT_READ);  // where it fails the copies can be written to: no harm to anybody else
  if (copied == 0 || why == EINVAL) return {};
  return fail(Code::kNoSpace, "copy what is lent", why);
}

SharedMemory::~SharedMemory() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace kvd::net
