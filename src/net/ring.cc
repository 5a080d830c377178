#include "net/ring.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace kvd::net {
namespace {

bool is_size(std::uint64_t bytes) noexcept {
  if (bytes < RingMemory::kControlBytes || (bytes - RingMemory::kControlBytes) % 2 != 0) return false;
  const std::uint64_t ring = (bytes - RingMemory::kControlBytes) / 2;
  return std::has_single_bit(ring) && ring >= RingMemory::kRingBytesMin && ring <= RingMemory::kRingBytesMax;
}

Result<std::byte*> map_file(int fd, std::uint64_t bytes) {
  void* const base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return fail(Code::kNoSpace, "map the rings", errno);
  ::madvise(base, bytes, MADV_DONTFORK);  // a child would read what is its parent's
  ::madvise(base, bytes, MADV_DONTDUMP);
  return static_cast<std::byte*>(base);
}

constexpr Error kBadIndex{Code::kCorrupt, 0, "the peer has broken the rings"};

}  // namespace

Result<std::unique_ptr<RingMemory>> RingMemory::create(std::size_t ring_bytes) {
  const std::uint64_t bytes = kControlBytes + 2 * ring_bytes;
  KVD_CHECK(is_size(bytes));
  io::PrivateFd file(io::UniqueFd(::memfd_create("kvdepot-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (!file.ok()) return fail(Code::kNoSpace, "create the memory of the rings", errno);
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return fail(Code::kIo, "make the memory of the rings", errno);
  }
  const auto base = map_file(file.get(), bytes);
  if (!base) return fail(base.error());
  return std::unique_ptr<RingMemory>(new RingMemory(std::move(file), *base, bytes));
}

Result<std::unique_ptr<RingMemory>> RingMemory::map(io::PrivateFd file, std::uint64_t bytes) {
  constexpr int kWanted = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = file.ok() ? ::fcntl(file.get(), F_GET_SEALS) : -1;
  struct statfs system{};
  struct stat status{};
  if (seals < 0 || (seals & kWanted) != kWanted || ::fstatfs(file.get(), &system) != 0 ||
      system.f_type != TMPFS_MAGIC) {
    return fail(Code::kInvalid, "the peer's rings are not a sealed memory file");
  }
  if (::fstat(file.get(), &status) != 0 || static_cast<std::uint64_t>(status.st_size) != bytes || !is_size(bytes)) {
    return fail(Code::kInvalid, "the peer's rings have another size than rings have");
  }
  const auto base = map_file(file.get(), bytes);
  if (!base) return fail(base.error());
  return std::unique_ptr<RingMemory>(new RingMemory({}, *base, bytes));
}

RingMemory::RingMemory(io::PrivateFd file, std::byte* base, std::uint64_t bytes)
    : file_(std::move(file)), base_(base), bytes_(bytes) {}

RingMemory::~RingMemory() { ::munmap(base_, bytes_); }

// Zeros are a RingControl's beginning, which is what a new memory file has.
RingControl& RingMemory::control(int direction) const noexcept {
  return *std::launder(
      reinterpret_cast<RingControl*>(base_ + static_cast<std::size_t>(direction) * sizeof(RingControl)));
}

std::byte* RingMemory::data(int direction) const noexcept {
  return base_ + kControlBytes + static_cast<std::size_t>(direction) * ring_bytes();
}

RingWriter::RingWriter(const RingMemory& memory, int direction)
    : control_(memory.control(direction)), data_(memory.data(direction)), capacity_(memory.ring_bytes()) {}

Result<std::size_t> RingWriter::room() noexcept {
  const std::uint64_t used = tail_ - control_.head.load(std::memory_order_seq_cst);
  if (used > capacity_) return fail(kBadIndex);
  return capacity_ - used;
}

void RingWriter::put(Bytes bytes) noexcept {
  const std::size_t at = tail_ & (capacity_ - 1);
  const std::size_t first = std::min(bytes.size(), capacity_ - at);
  std::memcpy(data_ + at, bytes.data(), first);
  std::memcpy(data_, bytes.data() + first, bytes.size() - first);
  tail_ += bytes.size();
}

bool RingWriter::publish() noexcept {
  control_.tail.store(tail_, std::memory_order_seq_cst);
  return control_.reader_waits.load(std::memory_order_seq_cst) != 0 &&
         control_.reader_waits.exchange(0, std::memory_order_seq_cst) != 0;
}

void RingWriter::announce(bool waits) noexcept {
  control_.writer_waits.store(waits ? 1 : 0, std::memory_order_seq_cst);
}

RingReader::RingReader(const RingMemory& memory, int direction)
    : control_(memory.control(direction)), data_(memory.data(direction)), capacity_(memory.ring_bytes()) {}

Result<std::size_t> RingReader::available() noexcept {
  const std::uint64_t there = control_.tail.load(std::memory_order_seq_cst) - head_;
  if (there > capacity_) return fail(kBadIndex);
  return there;
}

void RingReader::take(MutableBytes out) noexcept {
  const std::size_t at = head_ & (capacity_ - 1);
  const std::size_t first = std::min(out.size(), capacity_ - at);
  std::memcpy(out.data(), data_ + at, first);
  std::memcpy(out.data() + first, data_, out.size() - first);
  head_ += out.size();
}

bool RingReader::publish() noexcept {
  control_.head.store(head_, std::memory_order_seq_cst);
  return control_.writer_waits.load(std::memory_order_seq_cst) != 0 &&
         control_.writer_waits.exchange(0, std::memory_order_seq_cst) != 0;
}

void RingReader::announce(bool waits) noexcept {
  control_.reader_waits.store(waits ? 1 : 0, std::memory_order_seq_cst);
}

}  // namespace kvd::net
