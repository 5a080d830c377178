// CopyJob: the slabs of one view (GET view), which the I/O thread copies out of the depot's memory and verifies, shared
// out between it and callers that wait for that get: who would sleep until they are there does a part of them.
//
// One per client, as one view is copied at a time. Slabs are claimed in the order in which they travel, some at a time,
// so layers still complete in order. A helper does nothing but Work::run_slab() for what it has claimed, and notes what
// came of each slab; everything that follows from that is the I/O thread's. What a job works on (the get's flow, the
// mapping, the places in the caller's memory) is borrowed until close() returns, which waits for those who are at it.
//
// open() to close() belong to the I/O thread, or to who takes its turns; the rest is any thread's. Memory: a byte for
// each slab of the largest view so far.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "base/time.h"
#include "kvdepot/client.h"

namespace kvd::client {

// What is claimed at once, in whole slabs: 256 KiB are 13 us at 20 GB/s, the time that the other may have to wait at
// the end; towards the end of a view less, so that it is a few.
inline constexpr std::size_t kClaimBytesMax = std::size_t{256} << 10;
inline constexpr std::size_t kClaimBytesMin = std::size_t{64} << 10;

// A view of less is not worth to be shared with those who wait for it and look. One of less than the second not to wake
// others, which takes a few us of the I/O thread and some 20 of the other's, nor a get of less to look for its view
// before one sleeps. Larger slabs than kSharedSlabMax are copied by the I/O thread, in steps.
inline constexpr std::size_t kSharedViewMin = std::size_t{128} << 10;
inline constexpr std::size_t kCallingViewMin = std::size_t{512} << 10;
inline constexpr std::size_t kSharedSlabMax = std::size_t{1} << 20;

class CopyJob {
 public:
  class Work {
   public:
    // Copies and verifies slab number `slab` of the view; false: it is damaged. Several threads call it at a time, each
    // for slabs of its own.
    [[nodiscard]] virtual bool run_slab(std::size_t slab) const noexcept = 0;

   protected:
    ~Work() = default;
  };
  enum class State : std::uint8_t { kMissing, kGood, kDamaged };
  // Slabs that somebody has taken on: he runs them, whatever happens.
  struct Claim {
    const Work* work = nullptr;
    std::atomic<State>* states = nullptr;
    std::size_t first = 0;
    std::size_t count = 0;
  };

  // `shared`: others than the I/O thread may help. Not where they would have to share its core.
  explicit CopyJob(bool shared) : shared_(shared) {}
  [[nodiscard]] bool shared() const noexcept { return shared_; }

  // --- the I/O thread ---

  // `slabs` of `slab_bytes` each that `op` waits for. The job before it is closed. Borrows `work`.
  void open(OpId op, const Work& work, std::size_t slabs, std::size_t slab_bytes);
  // Runs the next ones here; how many. 0: all are taken.
  std::size_t run_next();
  [[nodiscard]] State state(std::size_t slab) const noexcept { return states_[slab].load(std::memory_order_acquire); }
  // Looks at a slab that another has taken until it is there, at most for `limit`.
  void await(std::size_t slab, Duration limit) const noexcept;
  // From now on nobody gets anything; returns when nobody is at anything any more. Blocks for as long as a helper that
  // has lost its core does not go on. May be called again.
  void close() noexcept;

  // --- any thread ---

  // There was a view to share before.
  [[nodiscard]] bool was_open() const noexcept { return was_open_.load(std::memory_order_relaxed); }
  // There is something to claim for who waits for this operation, or was a moment ago.
  [[nodiscard]] bool wants(OpId op) const noexcept { return wants_.load(std::memory_order_acquire) == op; }
  // The next slabs of that operation's view; none: there are none, or it is not its turn.
  std::optional<Claim> claim(OpId op);
  static void run(const Claim& claim) noexcept;

 private:
  const bool shared_;
  std::atomic<OpId> wants_{0};
  std::atomic<bool> was_open_{false};
  std::mutex mutex_;  // guards the rest, but for what `states_` points to
  OpId op_ = 0;       // 0: closed
  const Work* work_ = nullptr;
  std::size_t slabs_ = 0;
  std::size_t next_ = 0;  // to be claimed
  std::size_t claim_max_ = 1;
  std::size_t claim_min_ = 1;
  std::unique_ptr<std::atomic<State>[]> states_;
  std::size_t states_size_ = 0;
};

}  // namespace kvd::client
