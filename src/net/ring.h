// Ring: bytes in one direction between two processes of one host, through memory that both write to. RingMemory holds
// two of them, one for each direction; RingWriter and RingReader are a process's ends.
//
// One writer, one reader, one thread each. Each end keeps its own index for itself and only tells it; the other's index
// is read once a call at most and must lie where it can, or the call says kCorrupt: whatever the peer writes there,
// nothing outside of the ring is read or written, and what is read is copied out before anybody looks at it. Bytes that
// the peer changes while they are copied are its own.
//
// Sleeping: an end that is about to sleep says so in memory (announce) and looks once more; the other, having moved its
// index, looks whether somebody sleeps, takes the word back and wakes it by other means (net/ring_stream.h: a byte on
// the socket). Both are sequentially consistent, so one of the two sees the other.
//
// Layout (docs/formats/wire.md): a page of control words, each in a cache line of its own, then the bytes of direction
// 0 (client to depot) and of direction 1.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/bytes.h"
#include "base/result.h"
#include "io/private_fd.h"

namespace kvd::net {

// A direction's control words in shared memory.
struct RingControl {
  alignas(64) std::atomic<std::uint64_t> tail;          // bytes written since the beginning
  alignas(64) std::atomic<std::uint64_t> head;          // bytes read
  alignas(64) std::atomic<std::uint32_t> reader_waits;  // 1: wake it when there are bytes
  alignas(64) std::atomic<std::uint32_t> writer_waits;  // 1: wake it when there is room
};
static_assert(sizeof(RingControl) == 256 && std::atomic<std::uint64_t>::is_always_lock_free);

class RingMemory {
 public:
  static constexpr std::size_t kControlBytes = 4096;
  static constexpr std::size_t kRingBytes = std::size_t{128} << 10;  // of a direction: many lookups
  static constexpr std::size_t kRingBytesMin = 4096;
  static constexpr std::size_t kRingBytesMax = std::size_t{16} << 20;

  // A new one, whose size nobody can change. kNoSpace, kIo.
  static Result<std::unique_ptr<RingMemory>> create(std::size_t ring_bytes = kRingBytes);
  // The peer's. kInvalid: not a memory file that keeps its size, or not of a size that rings have; kNoSpace.
  static Result<std::unique_ptr<RingMemory>> map(io::PrivateFd file, std::uint64_t bytes);
  ~RingMemory();
  RingMemory(const RingMemory&) = delete;
  RingMemory& operator=(const RingMemory&) = delete;

  [[nodiscard]] int fd() const noexcept { return file_.get(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t ring_bytes() const noexcept { return (bytes_ - kControlBytes) / 2; }
  // Direction 0 or 1.
  [[nodiscard]] RingControl& control(int direction) const noexcept;
  [[nodiscard]] std::byte* data(int direction) const noexcept;

 private:
  RingMemory(io::PrivateFd file, std::byte* base, std::uint64_t bytes);

  io::PrivateFd file_;
  std::byte* base_;
  std::uint64_t bytes_;
};

class RingWriter {
 public:
  RingWriter(const RingMemory& memory, int direction);

  // Room for so many bytes. Looks at the reader's index, which comes from another core's cache, only where there was
  // less than `wanted` when it looked the last time: there may be more room than it says, then. kCorrupt.
  Result<std::size_t> room(std::size_t wanted) noexcept;
  // Copies the bytes behind those written before; not seen by the reader until publish(). Requires room for them.
  void put(Bytes bytes) noexcept;
  // Shows what was put. True: the reader sleeps and must be woken, by the caller.
  [[nodiscard]] bool publish() noexcept;
  // Says that this end sleeps until there is room, or does not any more.
  void announce(bool waits) noexcept;

 private:
  RingControl& control_;
  std::byte* const data_;
  const std::size_t capacity_;  // a power of two
  std::uint64_t tail_ = 0;
  std::uint64_t head_seen_ = 0;
};

class RingReader {
 public:
  RingReader(const RingMemory& memory, int direction);

  // So many bytes can be read. kCorrupt.
  Result<std::size_t> available() noexcept;
  // Copies the next bytes out. Requires that so many are available.
  void take(MutableBytes out) noexcept;
  // Gives the room of what was taken back. True: the writer waits for it and must be woken, by the caller.
  [[nodiscard]] bool publish() noexcept;
  void announce(bool waits) noexcept;

 private:
  RingControl& control_;
  const std::byte* const data_;
  const std::size_t capacity_;
  std::uint64_t head_ = 0;
};

}  // namespace kvd::net
