// An engine's scheduler as vLLM 0.4.2 has it, and what the IPDPS'25 study varies or proposes: which requests take part
// in the next forward pass, and who gives up KV blocks when they run short. Knows no time: the caller says when a pass
// is done. Pure and deterministic; one owner, no locking.
//
// A request's life (the only transitions):
//
//   waiting --admit--> running --last token--> finished
//   running --preempt, recompute--> waiting      its blocks are dropped; it goes to the head of the queue
//   running --preempt, swap--> swapped --swap in--> running         copies before the pass, which waits for them
//   waiting, swapped --longer than the device or a pass can hold--> rejected
// and with async_swap, where copies run beside passes and the caller says when each is done:
//   running --preempt, swap--> swapping out --copied--> swapped     its blocks are free from then on
//   swapped --more of its tail goes--> swapping out
//   swapped --swap in--> swapping in --copied--> running            takes part in passes from then on
//
// Meanwhile a running request that needs one of the blocks on their way out sits out the pass.
//
// Order: requests are served first come, first served; the victim of a preemption is the running request that came
// last. Block accounting is that of vLLM 0.4.2's first block manager: a prompt gets all its blocks at admission, a
// decode needs one free block even if it does not fill it, admission and swap-in leave `watermark_blocks` free.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "sched/block_pool.h"

namespace kvd::sched {

enum class Batching : std::uint8_t {
  kPrefillFirst,  // vLLM's default: whole prompts in passes of their own, before any decode
  kMixed,         // decodes first, then whole prompts into what is left of the pass
  kChunked,       // decodes first, then prompts, cut where the pass is full
  // The study's selective chunking: as kMixed, but while prompts are imbalanced - somebody decodes, and the longest
  // prompt that waits is longer than Config::chunk_tokens and than their mean - a pass takes at most chunk_tokens of
  // prompts, cut there. A prompt that no pass can hold is always cut.
  kSelective,
};
enum class Eviction : std::uint8_t {
  kRecompute,  // drop the blocks, prefill again
  kSwap,       // copy the blocks to the host and back
  kAdaptive,   // per request, as Config::prefers_swap says
};
enum class State : std::uint8_t { kWaiting, kRunning, kSwappingOut, kSwapped, kSwappingIn, kFinished, kRejected };

// Of how many of the last tokens Victim::disturbed speaks: a share of 1 % is known within a fifth from 10,000.
inline constexpr double kDisturbedTokens = 10'000;

// What is known of a request that has to give up blocks, for the choice between swapping and recomputation.
struct Victim {
  std::uint32_t blocks = 0;      // that will go: all; with partial eviction as many as went on average so far
  std::uint32_t tokens = 0;      // to compute again behind `context`, were they dropped
  std::uint32_t context = 0;     // its tokens that stay
  std::uint32_t others = 0;      // running requests, which wait while it is copied or computed
  std::uint32_t again_seqs = 0;  // preempted requests that wait for recomputation: they share its pass
  std::uint64_t again_tokens = 0;
  double again_pairs = 0;     // tokens * tokens / 2 of each
  std::uint64_t copying = 0;  // blocks whose copies are under way, with async_swap
  // Share of the last tokens that came late because their pass computed somebody's prompt or took somebody back. A swap
  // counts by its way in only, as often as its recomputation would: the share is the same whatever was chosen before.
  double disturbed = 0;
};

struct Config {
  std::uint32_t blocks = 0;
  std::uint32_t host_blocks = 0;
  std::uint32_t block_tokens = 16;
  std::uint32_t pass_tokens_max = 2048;  // the study's context window, or the chunk size
  std::uint32_t pass_seqs_max = 512;
  std::uint32_t watermark_blocks = 0;
  Batching batching = Batching::kPrefillFirst;
  Eviction eviction = Eviction::kRecompute;
  std::uint32_t chunk_tokens = 512;  // of kSelective: the smallest of the study's figure 4b
  // Preemption takes only as many tail blocks of the victim as are needed, and more when they are.
  bool partial = false;
  bool async_swap = false;  // copies run beside passes: see copies()
  // For kAdaptive: swap this one?
  std::function<bool(const Victim&)> prefers_swap;
};

// vLLM 0.4.2 with its default batching: watermark 1 %, at most 512 sequences as in the study.
Config vllm_0_4_2(std::uint32_t blocks, std::uint32_t pass_tokens_max);

// A request's part in a pass.
struct Item {
  RequestId request = 0;
  std::uint32_t tokens = 0;   // computed in this pass
  std::uint32_t context = 0;  // in the cache before
  bool prefill = false;
  bool resumed = false;  // first pass after a preemption
};

// The next forward pass; valid until the scheduler is called again.
struct Pass {
  std::vector<Item> items;
  std::uint32_t tokens = 0;
  std::uint32_t blocks_out = 0;  // copied to the host before the pass; with async_swap from its begin on
  std::uint32_t blocks_in = 0;
  std::uint32_t requests_out = 0;
  std::uint32_t requests_in = 0;
  void clear() noexcept;
};

struct Request {
  std::uint32_t prompt = 0;
  std::uint32_t output = 0;  // how long its answer becomes
  std::uint32_t generated = 0;
  std::uint32_t computed = 0;     // tokens whose KV exists, on the device or the host
  std::uint32_t host_blocks = 0;  // its tail, while swapped
  std::uint32_t leaving = 0;      // last ones of `blocks`: being copied to the host
  State state = State::kWaiting;
  bool resuming = false;        // was preempted and has not run since
  std::vector<BlockId> blocks;  // on the device, in the order of the tokens
  [[nodiscard]] std::uint32_t length() const noexcept { return prompt + generated; }
};

// Blocks that move between device and host beside the passes.
struct Copy {
  RequestId request = 0;
  std::uint32_t blocks = 0;
  bool out = false;  // to the host
};

struct Counts {
  std::uint64_t recomputes = 0;
  std::uint64_t swaps_out = 0;
  std::uint64_t swaps_in = 0;
  std::uint64_t partial_evictions = 0;
  std::uint64_t evicted_blocks = 0;  // dropped or copied out
  std::uint64_t host_full = 0;       // swaps that became recomputations because the host had no room
};

class Scheduler {
 public:
  // Requires blocks, block_tokens, pass_tokens_max, pass_seqs_max and chunk_tokens > 0, and prefers_swap with
  // kAdaptive.
  explicit Scheduler(Config config);

  // A new request behind all others. `prompt` and `output` > 0.
  RequestId add(std::uint32_t prompt, std::uint32_t output);
  // Decides the next pass. An empty pass means that there is nothing to do, or nothing that fits, or that everybody
  // waits for copies().
  const Pass& schedule();
  // The pass that schedule() returned has run: its tokens exist, and each sequence that is complete has one more.
  void complete();
  // With async_swap: copies under way, which are made one after the other in this order. schedule() begins more.
  [[nodiscard]] const std::deque<Copy>& copies() const noexcept { return copies_; }
  // The first of copies() is done. Not between schedule() and complete(). Requires one.
  void copied();

  // From here on kAdaptive with `prefers_swap`: for a copy that shows how the other would go on. Between two passes.
  void suppose(std::function<bool(const Victim&)> prefers_swap);

  [[nodiscard]] bool idle() const noexcept {
    return waiting_.empty() && running_.empty() && swapped_.empty() && arriving_.empty();
  }
  [[nodiscard]] const Request& request(RequestId id) const noexcept { return requests_[id]; }
  [[nodiscard]] std::span<const Request> requests() const noexcept { return requests_; }
  [[nodiscard]] const std::deque<RequestId>& waiting() const noexcept { return waiting_; }
  [[nodiscard]] const std::vector<RequestId>& running() const noexcept { return running_; }
  // Swapped and swapping out.
  [[nodiscard]] const std::vector<RequestId>& swapped() const noexcept { return swapped_; }
  // Swapping in.
  [[nodiscard]] const std::vector<RequestId>& arriving() const noexcept { return arriving_; }
  [[nodiscard]] const BlockPool& pool() const noexcept { return pool_; }
  [[nodiscard]] std::uint32_t host_used() const noexcept { return host_used_; }
  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }
  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  [[nodiscard]] std::uint32_t blocks_for(std::uint32_t tokens) const noexcept {
    return (tokens + config_.block_tokens - 1) / config_.block_tokens;
  }
  void decide();
  [[nodiscard]] bool recomputed_first() const noexcept;
  [[nodiscard]] bool swapped_first(RequestId id) const noexcept;
  [[nodiscard]] bool imbalanced() const noexcept;
  [[nodiscard]] std::uint32_t prompt_room() const noexcept;
  void run_running();
  void resume_swapped();
  void swap_in(RequestId id);
  void admit_waiting();
  enum class Admission : std::uint8_t { kYes, kLater, kNever };
  [[nodiscard]] Admission admission(const Request& r) const noexcept;
  enum class Room : std::uint8_t { kFree, kComing, kGone };
  Room make_room(RequestId needy);
  void preempt(RequestId id);
  void evict_tail(RequestId id, std::uint32_t blocks);
  void copy_out(RequestId id, std::uint32_t blocks);
  bool evict_from_paused();
  void grow(RequestId id, std::uint32_t tokens);
  void put(RequestId id, std::uint32_t tokens, bool prefill);
  void release(RequestId id);
  void reject(RequestId id);
  void finish(RequestId id);
  [[nodiscard]] bool chooses_swap(const Request& r) const;
  [[nodiscard]] Victim facts_of(const Request& r) const;
  void note_disturbed();

  Config config_;
  BlockPool pool_;
  std::vector<Request> requests_;
  std::deque<RequestId> waiting_;     // preempted ones first, then in order of arrival
  std::vector<RequestId> running_;    // in order of arrival
  std::vector<RequestId> swapped_;    // in order of arrival
  std::vector<RequestId> arriving_;   // in order of arrival
  std::vector<RequestId> preempted_;  // in this pass, for recomputation, last one first
  std::deque<Copy> copies_;
  std::size_t copies_before_ = 0;    // this pass: those behind are its own
  std::uint32_t leaving_ = 0;        // blocks of all requests
  std::uint32_t sitting_out_ = 0;    // running requests that are not in this pass for want of a block
  bool swapped_out_ = false;         // in this pass
  bool cutting_ = false;             // kSelective, in this pass
  std::uint32_t prompt_tokens_ = 0;  // in this pass
  double disturbed_ = 0;             // of the last kDisturbedTokens tokens
  std::uint32_t host_used_ = 0;      // with what is on its way there
  Pass pass_;
  Counts counts_;
};

}  // namespace kvd::sched
