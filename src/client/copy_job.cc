#include "client/copy_job.h"

#include <algorithm>
#include <thread>

#include "base/check.h"
#include "base/cores.h"
#include "client/event_count.h"

namespace kvd::client {
namespace {

// For who is at a slab; longer than a claim takes. Who takes longer has lost his core, and gets this thread's.
constexpr Duration kSpin = std::chrono::microseconds(100);
constexpr Duration kPause = std::chrono::microseconds(50);
// Of what is left, so that two who are at it end at nearly the same time.
constexpr std::size_t kClaimPart = 4;

}  // namespace

void CopyJob::open(OpId op, const Work& work, std::size_t slabs, std::size_t slab_bytes) {
  const std::lock_guard lock(mutex_);
  KVD_CHECK(op_ == 0 && op != 0 && slabs > 0 && slab_bytes > 0);
  if (slabs > states_size_) {
    states_ = std::make_unique<std::atomic<State>[]>(slabs);
    states_size_ = slabs;
  }
  for (std::size_t slab = 0; slab < slabs; ++slab) states_[slab].store(State::kMissing, std::memory_order_relaxed);
  op_ = op;
  work_ = &work;
  slabs_ = slabs;
  next_ = 0;
  claim_max_ = std::max<std::size_t>(1, kClaimBytesMax / slab_bytes);
  claim_min_ = std::max<std::size_t>(1, kClaimBytesMin / slab_bytes);
  if (!shared_) return;
  wants_.store(op, std::memory_order_release);
  was_open_.store(true, std::memory_order_relaxed);
}

std::optional<CopyJob::Claim> CopyJob::claim(OpId op) {
  const std::lock_guard lock(mutex_);
  if (op == 0 || op != op_ || next_ == slabs_) return std::nullopt;
  const std::size_t left = slabs_ - next_;
  const std::size_t count = std::min(left, std::clamp(left / kClaimPart, claim_min_, claim_max_));
  const Claim claim{.work = work_, .states = states_.get(), .first = next_, .count = count};
  next_ += count;
  if (next_ == slabs_) wants_.store(0, std::memory_order_release);
  return claim;
}

void CopyJob::run(const Claim& claim) noexcept {
  for (std::size_t slab = claim.first; slab < claim.first + claim.count; ++slab) {
    const bool good = claim.work->run_slab(slab);
    claim.states[slab].store(good ? State::kGood : State::kDamaged, std::memory_order_release);
  }
}

std::size_t CopyJob::run_next() {
  const std::optional<Claim> mine = claim(op_);
  if (!mine) return 0;
  run(*mine);
  return mine->count;
}

void CopyJob::await(std::size_t slab, Duration limit) const noexcept {
  for (const Time end = monotonic_now() + limit; state(slab) == State::kMissing && monotonic_now() < end;) pause_core();
}

void CopyJob::close() noexcept {
  std::size_t claimed = 0;
  {
    const std::lock_guard lock(mutex_);
    if (op_ == 0) return;
    op_ = 0;
    wants_.store(0, std::memory_order_release);
    claimed = next_;
  }
  for (std::size_t slab = 0; slab < claimed; ++slab) {
    await(slab, kSpin);
    while (state(slab) == State::kMissing) std::this_thread::sleep_for(kPause);
  }
}

}  // namespace kvd::client
