// EvictionPolicy: which segment to give up next. Pure and deterministic: a store on a simulated machine replays.
//
// A segment is known to the policy from when it holds records until it is given up. One owner, no locking; memory is 12
// bytes per segment, taken by the constructor.
// Default is least-recently-used by segment: on the published Mooncake conversation trace, segments of 4-8 blocks come
// within 0.3-0.7 points of perfect LRU by object with no rewrites, because the blocks of one request lie together;
// SIEVE and second-touch admission lose 8-14 points there. First-in-first-out costs 1-3 points and is for devices whose
// internal write amplification needs segments freed in order (docs/decisions/0003-segment-eviction.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace kvd::policy {

enum class Eviction : std::uint8_t { kLru, kFifo };

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // `segment` begins to hold records (as the youngest). Requires that it is not known.
  virtual void add(std::uint32_t segment) = 0;
  // A record of `segment` was used. Ignored when the segment is not known.
  virtual void touch(std::uint32_t segment) = 0;
  // `segment` holds little that is worth keeping: it becomes the next victim. Ignored when it is not known.
  virtual void demote(std::uint32_t segment) = 0;
  // `segment` holds nothing any more. Ignored when it is not known.
  virtual void remove(std::uint32_t segment) = 0;
  // The segment to give up next; it stays known until remove(). Empty when none is known.
  [[nodiscard]] virtual std::optional<std::uint32_t> victim() const = 0;
  // The next candidate after `segment` in the order of victims; empty at the end. Requires that `segment` is known.
  [[nodiscard]] virtual std::optional<std::uint32_t> next_victim(std::uint32_t segment) const = 0;
};

// For segments 0..segments-1.
std::unique_ptr<EvictionPolicy> make_eviction(Eviction kind, std::uint32_t segments);

}  // namespace kvd::policy
