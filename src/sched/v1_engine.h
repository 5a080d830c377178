// An engine as vLLM V1 schedules it: decodes and prompts in the same pass, prompts cut into chunks, prefix caching, and
// recomputation of the request that came last when blocks run short. Made for fleets: a pass in which sequences only
// decode costs constant time, and a run of such passes can be taken at once.
//
// A request's life (the only transitions, which are checked):
//
//   new --enqueue--> waiting
//   waiting --cached blocks on another tier, fetched ahead--> loading --all there--> prefilling
//   waiting --blocks for its first chunk--> prefilling --last chunk--> decoding --last token--> done
//   prefilling --last chunk, one token asked for--> done
//   prefilling, decoding --no blocks, came last--> waiting (at the head)
//
// Decodes are kept as sums: how many, their cached tokens together, and how many cross into a new block at each step
// modulo block_tokens. Steps count passes; a sequence that joins knows the step at which it ends.
//
// Pure and deterministic; one owner, no locking. Memory is the cache's, 4 bytes * block_tokens, and what runs at once.
#pragma once

#include <cstdint>
#include <deque>
#include <memory_resource>
#include <optional>
#include <span>
#include <vector>

#include "sched/prefix_cache.h"

namespace kvd::sched {

struct V1Config {
  std::uint32_t blocks = 0;
  std::uint32_t block_tokens = 16;
  std::uint32_t unit_blocks = 32;     // blocks of a trace's prefix id
  std::uint32_t chunk_tokens = 8192;  // vLLM's max_num_batched_tokens
  std::uint32_t seqs_max = 1024;      // its max_num_seqs
  bool prefix_caching = true;         // off: every request computes or fetches all of its prompt
  bool preemption = true;             // off: a request waits until its whole answer has blocks, and never goes back
};

// vLLM V1 as its server runs on an H100, which the defaults above are: chunked prefill of 8,192 tokens a pass, at most
// 1,024 sequences, prefix caching, preemption by recomputation. The counterpart of vllm_0_4_2() (scheduler.h).
V1Config vllm_v1(std::uint32_t blocks, std::uint32_t block_tokens);

enum class V1State : std::uint8_t { kNew, kWaiting, kLoading, kPrefilling, kDecoding, kDone };

struct V1Request {
  Units units;  // their ids stay where they are as long as the engine: its cache points at them
  std::uint32_t prompt = 0;
  std::uint32_t output = 0;
  // The engine's own:
  std::uint32_t generated = 0;
  std::uint32_t computed = 0;  // tokens with KV; while decoding, those of its join
  PrefixCache::Held held = {};
  std::uint32_t private_blocks = 0;
  std::uint32_t hit_tokens = 0;     // found in the engine's own cache at the first admission
  std::uint32_t loaded_tokens = 0;  // fetched from another tier
  std::uint32_t preemptions = 0;
  V1State state = V1State::kNew;
  [[nodiscard]] std::uint32_t target() const noexcept { return prompt + generated; }
};

using V1Id = std::uint32_t;  // into the span of requests that all engines share

// A tier behind the engine's own cache.
class OtherTier {
 public:
  virtual ~OtherTier() = default;
  // How many leading blocks of the prompt can be had, and are worth it, given that `have` are cached; at most `most`.
  virtual std::uint32_t match(const V1Request& request, std::uint32_t have, std::uint32_t most) = 0;
  // Starts to fetch blocks have..to. They are there when the engine is told with loaded(), or, layer by layer, when the
  // pass that is being decided needs them.
  virtual void fetch(V1Id id, std::uint32_t have, std::uint32_t to) = 0;
  // Whether fetches run inside the request's first pass instead of ahead of it.
  [[nodiscard]] virtual bool layerwise() const { return false; }
};

// What the step model needs to know of a pass. `prefill` tokens make `pairs` (query, key) pairs.
struct V1Pass {
  std::uint64_t prefill_tokens = 0;
  std::uint64_t pairs = 0;
  std::uint64_t decodes = 0;
  std::uint64_t context = 0;  // cached tokens that the decodes read
  std::uint64_t run = 0;      // passes that may be taken at once, 0 = nothing to do; context grows by `decodes` each
};

// A part of a prompt that the pass which was decided computes.
struct V1Chunk {
  V1Id id = 0;
  std::uint32_t to = 0;  // the request's tokens that are cached behind it
  bool first = false;    // since the request was admitted
};

class V1Engine {
 public:
  // `requests` must stay where it is for the engine's life, also when it grows; `memory` outlives the engine.
  V1Engine(const V1Config& config, std::vector<V1Request>& requests, OtherTier* tier = nullptr,
           std::pmr::memory_resource* memory = std::pmr::get_default_resource());

  // False when the request can never run here: its tokens need more blocks than there are. Requires a new request.
  bool enqueue(V1Id id);
  // `id`'s fetched blocks have arrived. Requires one that loads.
  void loaded(V1Id id);

  // Decides the next pass.
  V1Pass schedule();
  // What the decided pass computes of prompts, in order of admission. Valid until complete().
  void chunks(std::vector<V1Chunk>& out) const;
  // The first `passes` <= run passes of schedule()'s answer have run. `first` gets the requests that have their first
  // token now, `done` those that have their last.
  void complete(std::uint64_t passes, std::vector<V1Id>& first, std::vector<V1Id>& done);

  [[nodiscard]] std::uint32_t waiting() const noexcept { return static_cast<std::uint32_t>(waiting_.size()); }
  [[nodiscard]] std::uint32_t running() const noexcept {
    return static_cast<std::uint32_t>(decodes_.size() + prefills_.size() + loading_.size());
  }
  [[nodiscard]] const PrefixCache& cache() const noexcept { return cache_; }
  // The first `passes` passes of schedule()'s answer have begun: their blocks are taken, so that the cache is what
  // somebody who looks at it now would see. Counts from the start of the run; complete() accounts for it.
  void begun(std::uint64_t passes);
  [[nodiscard]] std::uint64_t preemptions() const noexcept { return preemptions_; }
  // Leading tokens of the prompt that would be found in the cache.
  [[nodiscard]] std::uint32_t match_tokens(const Units& units, std::uint32_t prompt) const noexcept {
    return cache_.match(units, (prompt - 1) / config_.block_tokens) * config_.block_tokens;
  }

 private:
  struct Decode {
    std::uint64_t end_step = 0;  // has its last token after the pass before this step
    std::uint64_t join_step = 0;
    std::uint64_t admitted = 0;  // order of admission
    V1Id id = 0;
  };
  struct Prefill {
    std::uint64_t admitted = 0;
    V1Id id = 0;
    std::uint32_t tokens = 0;  // in the pass that is being decided
    bool begun = false;        // has run in a pass before
  };

  [[nodiscard]] std::uint32_t prompt_blocks(const V1Request& r) const noexcept {
    return r.prompt / config_.block_tokens;
  }
  // Of these, the ones that other requests can find.
  [[nodiscard]] std::uint32_t shared_blocks(const V1Request& r) const noexcept {
    return config_.prefix_caching ? prompt_blocks(r) : 0;
  }
  // Blocks of the request with its whole answer.
  [[nodiscard]] std::uint32_t final_blocks(const V1Request& r) const noexcept {
    return (r.prompt + r.output + config_.block_tokens - 1) / config_.block_tokens;
  }
  [[nodiscard]] std::uint32_t phase(std::uint64_t step) const noexcept {
    return static_cast<std::uint32_t>(step % config_.block_tokens);
  }
  bool hold(V1Request& r, std::uint32_t tokens);
  void schedule_decodes();
  void schedule_prefills(V1Pass& pass, std::uint64_t& budget);
  void admit(V1Pass& pass, std::uint64_t& budget);
  std::optional<V1Id> make_room();
  void trim();
  V1Id preempt_last();
  void add_chunk(V1Pass& pass, Prefill& prefill, std::uint64_t& budget);
  void join(const Prefill& prefill);
  void leave(const Decode& decode);
  void release(V1Id id);
  void finish(V1Id id, std::vector<V1Id>& done);
  void requeue(V1Id id);
  [[nodiscard]] std::uint64_t blocks_of_run(std::uint64_t passes) const noexcept;
  [[nodiscard]] std::uint64_t run_length() const noexcept;

  // First what every pass reads or writes, close together: in a fleet of thousands an engine has left the processor's
  // caches when its next pass comes.
  std::pmr::vector<Decode> decodes_;  // heap, the earliest end first
  std::uint64_t step_ = 0;
  std::uint64_t context_ = 0;
  std::uint64_t taken_ = 0;                    // blocks of the run's further passes that begun() has taken
  std::pmr::vector<std::uint32_t> crossings_;  // decodes that need a block at steps of this phase
  std::pmr::vector<Prefill> prefills_;         // in order of admission
  bool preempted_ = false;                     // in the pass that is being decided
  bool grown_ = false;                         // its decodes have their blocks
  V1Config config_;
  OtherTier* tier_;
  std::pmr::deque<V1Id> waiting_;
  PrefixCache cache_;
  std::vector<V1Request>& requests_;
  std::pmr::vector<V1Id> loading_;
  std::uint64_t admissions_ = 0;
  std::uint64_t preemptions_ = 0;
  std::uint64_t promised_ = 0;  // final blocks of what was admitted
};

}  // namespace kvd::sched
