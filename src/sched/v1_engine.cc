#include "sched/v1_engine.h"

#include <algorithm>

#include "base/check.h"

namespace kvd::sched {

namespace {

// For std::push_heap: the earliest end on top; among equals the one admitted first, so that the order is total.
constexpr auto kLater = [](const auto& a, const auto& b) {
  return a.end_step != b.end_step ? a.end_step > b.end_step : a.admitted > b.admitted;
};

std::uint32_t ceil_div(std::uint32_t a, std::uint32_t b) { return (a + b - 1) / b; }

// The transitions that there are; the header draws them.
bool follows(V1State from, V1State to) noexcept {
  switch (from) {
    case V1State::kNew: return to == V1State::kWaiting;
    case V1State::kWaiting: return to == V1State::kLoading || to == V1State::kPrefilling;
    case V1State::kLoading: return to == V1State::kPrefilling;
    case V1State::kPrefilling: return to == V1State::kDecoding || to == V1State::kDone || to == V1State::kWaiting;
    case V1State::kDecoding: return to == V1State::kDone || to == V1State::kWaiting;
    case V1State::kDone: return false;
  }
  return false;
}

void move_to(V1Request& r, V1State state) noexcept {
  KVD_CHECK(follows(r.state, state));
  r.state = state;
}

}  // namespace

V1Config vllm_v1(std::uint32_t blocks, std::uint32_t block_tokens) {
  return {.blocks = blocks, .block_tokens = block_tokens};
}

V1Engine::V1Engine(const V1Config& config, std::vector<V1Request>& requests, OtherTier* tier,
                   std::pmr::memory_resource* memory)
    : decodes_(memory),
      crossings_(config.block_tokens, memory),
      prefills_(memory),
      config_(config),
      tier_(tier),
      waiting_(memory),
      cache_(config.blocks, config.unit_blocks, memory),
      requests_(requests),
      loading_(memory) {
  KVD_CHECK(config.block_tokens > 0 && config.chunk_tokens > 0 && config.seqs_max > 0);
}

bool V1Engine::enqueue(V1Id id) {
  V1Request& r = requests_[id];
  if (final_blocks(r) > config_.blocks) return false;
  move_to(r, V1State::kWaiting);
  waiting_.push_back(id);
  return true;
}

void V1Engine::loaded(V1Id id) {
  move_to(requests_[id], V1State::kPrefilling);
  std::erase(loading_, id);
  prefills_.push_back({++admissions_, id, 0, false});
}

// Makes room for the request's first `tokens` tokens: whole blocks of its prompt are shared, the rest is its own.
bool V1Engine::hold(V1Request& r, std::uint32_t tokens) {
  const std::uint32_t shared = std::min(tokens / config_.block_tokens, shared_blocks(r));
  const std::uint32_t own = ceil_div(tokens, config_.block_tokens) - shared;
  if (!cache_.hold(r.units, shared, r.held, static_cast<std::int64_t>(own) - r.private_blocks)) return false;
  r.private_blocks = own;
  return true;
}

V1Pass V1Engine::schedule() {
  V1Pass pass;
  preempted_ = false;
  grown_ = false;
  for (Prefill& prefill : prefills_) prefill.tokens = 0;
  schedule_decodes();
  std::uint64_t budget = config_.chunk_tokens - std::min<std::uint64_t>(config_.chunk_tokens, decodes_.size());
  schedule_prefills(pass, budget);
  if (!preempted_) admit(pass, budget);
  pass.decodes = decodes_.size();
  pass.context = context_;
  if (pass.prefill_tokens > 0 || preempted_) {
    pass.run = pass.prefill_tokens + pass.decodes > 0 ? 1 : 0;
  } else if (pass.decodes > 0) {
    // What waits for blocks keeps waiting while others only decode, unless another tier may offer more by then.
    const bool may_change = tier_ != nullptr && !waiting_.empty();
    pass.run = may_change ? 1 : run_length();
  }
  return pass;
}

void V1Engine::schedule_decodes() {
  while (!decodes_.empty() && !cache_.take(crossings_[phase(step_)])) make_room();
  grown_ = true;
}

void V1Engine::add_chunk(V1Pass& pass, Prefill& prefill, std::uint64_t& budget) {
  const std::uint64_t tokens = prefill.tokens;
  const std::uint64_t context = requests_[prefill.id].computed;
  pass.prefill_tokens += tokens;
  pass.pairs += tokens * context + tokens * (tokens + 1) / 2;
  budget -= tokens;
}

void V1Engine::schedule_prefills(V1Pass& pass, std::uint64_t& budget) {
  for (std::size_t i = 0; i < prefills_.size() && budget > 0; ++i) {
    const V1Id id = prefills_[i].id;
    V1Request& r = requests_[id];
    const auto tokens = static_cast<std::uint32_t>(std::min<std::uint64_t>(r.target() - r.computed, budget));
    bool here = true;
    while (here && !hold(r, r.computed + tokens)) here = make_room() != id;
    if (!here) break;
    prefills_[i].tokens = tokens;
    add_chunk(pass, prefills_[i], budget);
  }
}

void V1Engine::admit(V1Pass& pass, std::uint64_t& budget) {
  while (!waiting_.empty() && budget > 0 && running() < config_.seqs_max) {
    const V1Id id = waiting_.front();
    V1Request& r = requests_[id];
    // At least one token has to be computed, and only whole blocks are found.
    const std::uint32_t most = std::min((r.target() - 1) / config_.block_tokens, prompt_blocks(r));
    const std::uint32_t have = cache_.match(r.units, most);
    const std::uint32_t more = tier_ == nullptr ? have : tier_->match(r, have, most);
    const std::uint32_t known = std::max(have, more) * config_.block_tokens;
    const auto tokens = static_cast<std::uint32_t>(std::min<std::uint64_t>(r.target() - known, budget));
    const bool fetches = more > have;
    const bool ahead = fetches && !tier_->layerwise();
    if (!config_.preemption && promised_ + final_blocks(r) > config_.blocks) break;
    if (!hold(r, ahead ? known : known + tokens)) {
      if (running() > 0) break;
      trim();
      continue;
    }
    waiting_.pop_front();
    promised_ += final_blocks(r);
    if (r.preemptions == 0) r.hit_tokens = have * config_.block_tokens;
    r.computed = known;
    if (fetches) {
      r.loaded_tokens += (more - have) * config_.block_tokens;
      tier_->fetch(id, have, more);
    }
    move_to(r, ahead ? V1State::kLoading : V1State::kPrefilling);
    if (ahead) {
      loading_.push_back(id);
      continue;
    }
    prefills_.push_back({++admissions_, id, tokens, false});
    add_chunk(pass, prefills_.back(), budget);
  }
}

// Frees blocks for somebody who needs more: sends back the request that was admitted last and returns it, or trims,
// where nobody else runs or nobody may be sent back. What runs then has room for its whole answers.
std::optional<V1Id> V1Engine::make_room() {
  if (config_.preemption && running() > 1) return preempt_last();
  trim();
  return std::nullopt;
}

// Drops all cached blocks that no request needs. A cached block counts as used while any of its unit is, so that what
// runs may hold more than it asked for: each lets go of its prompt and takes again what it needs.
void V1Engine::trim() {
  const std::uint32_t before = cache_.used() + cache_.cached();
  const auto for_running = [this](auto&& visit) {
    for (const Decode& decode : decodes_) visit(requests_[decode.id], 0U);
    for (const Prefill& prefill : prefills_) visit(requests_[prefill.id], prefill.tokens);
    for (const V1Id id : loading_) visit(requests_[id], 0U);
  };
  for_running([this](V1Request& r, std::uint32_t) { cache_.release(r.held, 0); });
  cache_.forget();
  for_running([this](V1Request& r, std::uint32_t tokens) {
    const std::uint32_t shared = std::min((r.computed + tokens) / config_.block_tokens, shared_blocks(r));
    KVD_CHECK(cache_.hold(r.units, shared, r.held, 0));
  });
  KVD_CHECK(cache_.used() + cache_.cached() < before);
}

// Sends back the request that was admitted last.
V1Id V1Engine::preempt_last() {
  const auto newest = std::ranges::max_element(decodes_, {}, &Decode::admitted);
  const bool prefilling =
      !prefills_.empty() && (newest == decodes_.end() || prefills_.back().admitted > newest->admitted);
  V1Id victim = 0;
  if (prefilling) {
    victim = prefills_.back().id;
    KVD_CHECK(prefills_.back().tokens == 0);  // chunks are given out in order of admission
    prefills_.pop_back();
  } else {
    KVD_CHECK(newest != decodes_.end());
    const Decode decode = *newest;
    victim = decode.id;
    decodes_.erase(newest);
    std::ranges::make_heap(decodes_, kLater);
    leave(decode);
  }
  requeue(victim);
  return victim;
}

void V1Engine::requeue(V1Id id) {
  V1Request& r = requests_[id];
  release(id);
  promised_ -= final_blocks(r);
  move_to(r, V1State::kWaiting);
  r.computed = 0;
  ++r.preemptions;
  ++preemptions_;
  preempted_ = true;
  waiting_.push_front(id);
}

void V1Engine::release(V1Id id) {
  V1Request& r = requests_[id];
  cache_.release(r.held, r.private_blocks);
  r.private_blocks = 0;
}

void V1Engine::finish(V1Id id, std::vector<V1Id>& done) {
  release(id);
  move_to(requests_[id], V1State::kDone);
  promised_ -= final_blocks(requests_[id]);
  done.push_back(id);
}

void V1Engine::chunks(std::vector<V1Chunk>& out) const {
  out.clear();
  for (const Prefill& prefill : prefills_) {
    if (prefill.tokens == 0) continue;
    out.push_back({prefill.id, requests_[prefill.id].computed + prefill.tokens, !prefill.begun});
  }
}

void V1Engine::join(const Prefill& prefill) {
  V1Request& r = requests_[prefill.id];
  move_to(r, V1State::kDecoding);
  decodes_.push_back({step_ + (r.output - r.generated), step_, prefill.admitted, prefill.id});
  std::ranges::push_heap(decodes_, kLater);
  context_ += r.computed;
  // It needs a block at steps where its cached tokens fill whole blocks.
  const std::uint32_t in_block = r.computed % config_.block_tokens;
  ++crossings_[phase(step_ + config_.block_tokens - in_block)];
}

// Takes a sequence out of the sums and brings its request up to date.
void V1Engine::leave(const Decode& decode) {
  V1Request& r = requests_[decode.id];
  const auto steps = static_cast<std::uint32_t>(step_ - decode.join_step);
  const std::uint32_t in_block = r.computed % config_.block_tokens;
  --crossings_[phase(decode.join_step + config_.block_tokens - in_block)];
  r.computed += steps;
  r.generated += steps;
  context_ -= r.computed;
  // One that is sent back in mid-schedule has its block for the coming token already.
  const std::uint32_t tokens = r.computed + (grown_ ? 1 : 0);
  r.private_blocks = ceil_div(tokens, config_.block_tokens) - shared_blocks(r);
}

// Blocks that the passes of a run take behind its first pass.
std::uint64_t V1Engine::blocks_of_run(std::uint64_t passes) const noexcept {
  const std::uint64_t further = passes - 1;
  std::uint64_t blocks = further / config_.block_tokens * decodes_.size();
  std::uint32_t at = phase(step_ + 1);
  for (std::uint64_t left = further % config_.block_tokens; left > 0; --left) {
    blocks += crossings_[at];
    if (++at == config_.block_tokens) at = 0;
  }
  return blocks;
}

std::uint64_t V1Engine::run_length() const noexcept {
  std::uint64_t most = decodes_.front().end_step - step_;
  const std::uint64_t rough = (most / config_.block_tokens + 1) * decodes_.size();
  if (rough <= cache_.available() || blocks_of_run(most) <= cache_.available()) return most;
  std::uint64_t fits = 1;
  while (most - fits > 1) {
    const std::uint64_t middle = fits + (most - fits) / 2;
    (blocks_of_run(middle) <= cache_.available() ? fits : most) = middle;
  }
  return fits;
}

void V1Engine::begun(std::uint64_t passes) {
  if (passes <= 1) return;
  const std::uint64_t blocks = blocks_of_run(passes);
  KVD_CHECK(blocks >= taken_ && cache_.take(static_cast<std::uint32_t>(blocks - taken_)));
  taken_ = blocks;
}

void V1Engine::complete(std::uint64_t passes, std::vector<V1Id>& first, std::vector<V1Id>& done) {
  first.clear();
  done.clear();
  KVD_CHECK(passes > 0);
  grown_ = false;
  begun(passes);
  taken_ = 0;
  context_ += passes * decodes_.size();
  step_ += passes;
  while (!decodes_.empty() && decodes_.front().end_step == step_) {
    const Decode decode = decodes_.front();
    std::ranges::pop_heap(decodes_, kLater);
    decodes_.pop_back();
    leave(decode);
    finish(decode.id, done);
  }
  std::size_t kept = 0;
  for (const Prefill& prefill : prefills_) {
    V1Request& r = requests_[prefill.id];
    r.computed += prefill.tokens;
    if (r.computed < r.target()) {
      prefills_[kept] = prefill;
      prefills_[kept++].begun |= prefill.tokens > 0;
      continue;
    }
    if (r.generated++ == 0) first.push_back(prefill.id);
    if (r.generated == r.output) {
      finish(prefill.id, done);
    } else {
      join(prefill);
    }
  }
  prefills_.resize(kept);
}

}  // namespace kvd::sched
