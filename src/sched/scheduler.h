// An engine's scheduler as vLLM 0.4.2 has it, and what the IPDPS'25 study varies or proposes: which requests take part
// in the next forward pass, and who gives up KV blocks when they run short. Knows no time: the caller says when a pass
// is done. Pure and deterministic; one owner, no locking.
//
// A request's life (the only transitions):
//
//   waiting --admit--> running --last token--> finished
//   running --preempt, recompute--> waiting      its blocks are dropped; it goes to the head of the queue
//   running --preempt, swap--> swapped --swap in--> running
//   waiting --longer than the device or a pass can hold--> rejected
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
};
enum class Eviction : std::uint8_t {
  kRecompute,  // drop the blocks, prefill again
  kSwap,       // copy the blocks to the host and back
  kAdaptive,   // per request, whichever Config::swap_is_cheaper says
};
enum class State : std::uint8_t { kWaiting, kRunning, kSwapped, kFinished, kRejected };

struct Config {
  std::uint32_t blocks = 0;
  std::uint32_t host_blocks = 0;
  std::uint32_t block_tokens = 16;
  std::uint32_t pass_tokens_max = 2048;  // the study's context window, or the chunk size
  std::uint32_t pass_seqs_max = 512;
  std::uint32_t watermark_blocks = 0;
  Batching batching = Batching::kPrefillFirst;
  Eviction eviction = Eviction::kRecompute;
  // Preemption takes only as many tail blocks of the victim as are needed, and more when they are.
  bool partial = false;
  // For kAdaptive: is it cheaper to move `blocks` out and in than to prefill `tokens` behind `context` again?
  std::function<bool(std::uint32_t blocks, std::uint32_t tokens, std::uint32_t context)> swap_is_cheaper;
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
  std::uint32_t blocks_out = 0;  // copied to the host before the pass
  std::uint32_t blocks_in = 0;
  std::uint32_t requests_out = 0;
  std::uint32_t requests_in = 0;
  void clear() noexcept;
};

struct Request {
  std::uint32_t prompt = 0;
  std::uint32_t output = 0;
  std::uint32_t generated = 0;
  std::uint32_t computed = 0;     // tokens whose KV exists, on the device or the host
  std::uint32_t host_blocks = 0;  // its tail, while swapped
  State state = State::kWaiting;
  bool resuming = false;        // was preempted and has not run since
  std::vector<BlockId> blocks;  // on the device, in the order of the tokens
  [[nodiscard]] std::uint32_t length() const noexcept { return prompt + generated; }
};

struct Counts {
  std::uint64_t recomputes = 0;
  std::uint64_t swaps_out = 0;
  std::uint64_t swaps_in = 0;
  std::uint64_t partial_evictions = 0;
  std::uint64_t host_full = 0;  // swaps that became recomputations because the host had no room
};

class Scheduler {
 public:
  // Requires blocks, block_tokens, pass_tokens_max and pass_seqs_max > 0, and swap_is_cheaper with kAdaptive.
  explicit Scheduler(Config config);

  // A new request behind all others. `prompt` and `output` > 0.
  RequestId add(std::uint32_t prompt, std::uint32_t output);
  // Decides the next pass. An empty pass means that there is nothing to do, or nothing that fits.
  const Pass& schedule();
  // The pass that schedule() returned has run: its tokens exist, and each sequence that is complete has one more.
  void complete();

  [[nodiscard]] bool idle() const noexcept { return waiting_.empty() && running_.empty() && swapped_.empty(); }
  [[nodiscard]] const Request& request(RequestId id) const noexcept { return requests_[id]; }
  [[nodiscard]] std::span<const Request> requests() const noexcept { return requests_; }
  [[nodiscard]] const std::deque<RequestId>& waiting() const noexcept { return waiting_; }
  [[nodiscard]] const std::vector<RequestId>& running() const noexcept { return running_; }
  [[nodiscard]] const std::vector<RequestId>& swapped() const noexcept { return swapped_; }
  [[nodiscard]] const BlockPool& pool() const noexcept { return pool_; }
  [[nodiscard]] std::uint32_t host_used() const noexcept { return host_used_; }
  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }
  [[nodiscard]] const Config& config() const noexcept { return config_; }

 private:
  [[nodiscard]] std::uint32_t blocks_for(std::uint32_t tokens) const noexcept {
    return (tokens + config_.block_tokens - 1) / config_.block_tokens;
  }
  void decide();
  void run_running();
  void resume_swapped();
  void admit_waiting();
  enum class Admission : std::uint8_t { kYes, kLater, kNever };
  [[nodiscard]] Admission admission(const Request& r) const noexcept;
  bool make_room(RequestId needy);
  void preempt(RequestId id);
  void evict_tail(RequestId id, std::uint32_t blocks);
  bool evict_from_paused();
  void grow(RequestId id, std::uint32_t tokens);
  void put(RequestId id, std::uint32_t tokens, bool prefill);
  void release(RequestId id);
  void reject(RequestId id);
  void finish(RequestId id);
  [[nodiscard]] bool chooses_swap(const Request& r) const;

  Config config_;
  BlockPool pool_;
  std::vector<Request> requests_;
  std::deque<RequestId> waiting_;     // preempted ones first, then in order of arrival
  std::vector<RequestId> running_;    // in order of arrival
  std::vector<RequestId> swapped_;    // in order of arrival
  std::vector<RequestId> preempted_;  // in this pass, for recomputation, last one first
  bool swapped_out_ = false;          // in this pass
  std::uint32_t host_used_ = 0;
  Pass pass_;
  Counts counts_;
};

}  // namespace kvd::sched
