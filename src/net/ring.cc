#include "net/ring.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "net/memory_file.h"

namespace kvd::net {
namespace {

bool is_size(std::uint64_t bytes) noexcept {
  if (bytes < RingMemory::kControlBytes || (bytes - RingMemory::kControlBytes) % 2 != 0) return false;
  const std::uint64_t ring = (bytes - RingMemory::kControlBytes) / 2;
  return std::has_single_bit(ring) && ring >= RingMemory::kRingBytesMin && ring <= RingMemory::kRingBytesMax;
}

constexpr Error kBadIndex{Code::kCorrupt, 0, "the peer has broken the rings"};

}  // namespace

Result<std::unique_ptr<RingMemory>> RingMemory::create(std::size_t ring_bytes) {
  const std::uint64_t bytes = kControlBytes + 2 * ring_bytes;
  KVD_CHECK(is_size(bytes));
  auto file = make_memory_file("kvdepot-rings", bytes);
  if (!file) return fail(file.error());
  const auto base = map_memory_file(*file, bytes, PROT_READ | PROT_WRITE);
  if (!base) return fail(base.error());
  return std::unique_ptr<RingMemory>(new RingMemory(std::move(*file), *base, bytes));
}

Result<std::unique_ptr<RingMemory>> RingMemory::map(io::PrivateFd file, std::uint64_t bytes) {
  if (!is_size(bytes)) return fail(Code::kInvalid, "the peer's rings have another size than rings have");
  if (const Status checked = check_memory_file(file, bytes); !checked) return fail(checked.error());
  const auto base = map_memory_file(file, bytes, PROT_READ | PROT_WRITE);
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

Result<std::size_t> RingWriter::room(std::size_t wanted) noexcept {
  if (const std::size_t known = capacity_ - (tail_ - head_seen_); known >= wanted) return known;
  const std::uint64_t head = control_.head.load(std::memory_order_seq_cst);
  if (tail_ - head > capacity_) return fail(kBadIndex);
  head_seen_ = head;
  return capacity_ - (tail_ - head);
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
