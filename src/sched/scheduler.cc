#include "sched/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvd::sched {

namespace {

void insert_by_arrival(std::vector<RequestId>& list, RequestId id) {
  list.insert(std::upper_bound(list.begin(), list.end(), id), id);
}

void erase_from(std::vector<RequestId>& list, RequestId id) {
  const auto at = std::lower_bound(list.begin(), list.end(), id);
  KVD_CHECK(at != list.end() && *at == id);
  list.erase(at);
}

// The transitions that there are; the header draws them.
bool follows(State from, State to) noexcept {
  switch (from) {
    case State::kWaiting: return to == State::kRunning || to == State::kRejected;
    case State::kRunning:
      return to == State::kWaiting || to == State::kSwapped || to == State::kSwappingOut || to == State::kFinished;
    case State::kSwappingOut: return to == State::kSwapped;
    case State::kSwapped:
      return to == State::kRunning || to == State::kSwappingOut || to == State::kSwappingIn || to == State::kRejected;
    case State::kSwappingIn: return to == State::kRunning;
    case State::kFinished:
    case State::kRejected: return false;
  }
  return false;
}

void move_to(Request& r, State state) noexcept {
  KVD_CHECK(follows(r.state, state));
  r.state = state;
}

}  // namespace

Config vllm_0_4_2(std::uint32_t blocks, std::uint32_t pass_tokens_max) {
  Config config;
  config.blocks = blocks;
  config.pass_tokens_max = pass_tokens_max;
  config.watermark_blocks = blocks / 100;
  return config;
}

void Pass::clear() noexcept {
  items.clear();
  tokens = blocks_out = blocks_in = requests_out = requests_in = 0;
}

Scheduler::Scheduler(Config config) : config_(std::move(config)), pool_(config_.blocks) {
  KVD_CHECK(config_.blocks > 0 && config_.block_tokens > 0);
  KVD_CHECK(config_.pass_tokens_max > 0 && config_.pass_seqs_max > 0 && config_.chunk_tokens > 0);
  KVD_CHECK(config_.eviction != Eviction::kAdaptive || config_.prefers_swap);
}

RequestId Scheduler::add(std::uint32_t prompt, std::uint32_t output) {
  KVD_CHECK(prompt > 0 && output > 0);
  const auto id = static_cast<RequestId>(requests_.size());
  Request& r = requests_.emplace_back();
  r.prompt = prompt;
  r.output = output;
  waiting_.push_back(id);
  return id;
}

void Scheduler::suppose(std::function<bool(const Victim&)> prefers_swap) {
  KVD_CHECK(pass_.items.empty());
  config_.eviction = Eviction::kAdaptive;
  config_.prefers_swap = std::move(prefers_swap);
}

const Pass& Scheduler::schedule() {
  pass_.clear();
  copies_before_ = copies_.size();
  decide();
  // Preempted requests that still hold blocks can keep each other out when nobody runs: the last ones give way.
  while (config_.partial && pass_.items.empty() && copies_.empty() && !idle() && evict_from_paused()) decide();
  return pass_;
}

void Scheduler::decide() {
  preempted_.clear();
  swapped_out_ = false;
  sitting_out_ = 0;
  prompt_tokens_ = 0;
  cutting_ = config_.batching == Batching::kSelective && imbalanced();
  if (config_.batching == Batching::kPrefillFirst) {
    if (swapped_.empty() || recomputed_first()) admit_waiting();
    if (pass_.items.empty()) {
      run_running();
      if (preempted_.empty() && !swapped_out_ && sitting_out_ == 0) resume_swapped();
    }
  } else {
    run_running();
    if (preempted_.empty() && !swapped_out_ && sitting_out_ == 0) resume_swapped();
    admit_waiting();
  }
  for (const RequestId id : preempted_) waiting_.push_front(id);
  preempted_.clear();
}

// Whether, of preempted requests that went different ways, the next to come back is one that has to recompute. The
// order of arrival holds across both queues only with kAdaptive: vLLM 0.4.2 takes the swapped ones first.
bool Scheduler::recomputed_first() const noexcept {
  return config_.eviction == Eviction::kAdaptive && !waiting_.empty() && !swapped_.empty() &&
         requests_[waiting_.front()].resuming && waiting_.front() < swapped_.front();
}

// Whether `id`, which waits, comes behind a swapped one. New ones overtake those in mixed and chunked passes.
bool Scheduler::swapped_first(RequestId id) const noexcept {
  return config_.eviction == Eviction::kAdaptive && !swapped_.empty() && swapped_.front() < id &&
         (requests_[id].resuming || config_.batching == Batching::kPrefillFirst);
}

bool Scheduler::imbalanced() const noexcept {
  std::uint64_t sum = 0;
  std::uint64_t count = 0;
  std::uint32_t longest = 0;
  bool decodes = false;
  const auto consider = [&](RequestId id) {
    const std::uint32_t tokens = requests_[id].length() - requests_[id].computed;
    sum += tokens;
    ++count;
    longest = std::max(longest, tokens);
  };
  for (const RequestId id : running_) {
    if (requests_[id].length() - requests_[id].computed > 1) {
      consider(id);
    } else {
      decodes = true;
    }
  }
  for (const RequestId id : waiting_) consider(id);
  return decodes && longest > config_.chunk_tokens && longest * count > sum;
}

// Tokens of prompts that the pass still takes.
std::uint32_t Scheduler::prompt_room() const noexcept {
  const std::uint32_t room = config_.pass_tokens_max - pass_.tokens;
  if (!cutting_) return room;
  return std::min(room, config_.chunk_tokens - std::min(config_.chunk_tokens, prompt_tokens_));
}

void Scheduler::run_running() {
  // running_ loses its last elements while it is walked: victims come from the end.
  for (std::size_t i = 0; i < running_.size() && pass_.tokens < config_.pass_tokens_max; ++i) {
    const RequestId id = running_[i];
    const Request& r = requests_[id];
    const std::uint32_t missing = r.length() - r.computed;
    const std::uint32_t tokens = missing > 1 ? std::min(missing, prompt_room()) : missing;
    if (tokens == 0) continue;
    const Room room = make_room(id);
    if (room == Room::kGone) break;
    if (room == Room::kComing && r.blocks.size() < blocks_for(r.computed + tokens)) {
      ++sitting_out_;
      continue;
    }
    grow(id, r.computed + tokens);
    put(id, tokens, missing > 1);
  }
}

// Whether a block is free for `needy`, which runs, or on its way out for it, or it had to go itself.
Scheduler::Room Scheduler::make_room(RequestId needy) {
  while (pool_.free() == 0) {
    if (leaving_ > sitting_out_) return Room::kComing;
    if (config_.partial && evict_from_paused()) continue;
    // The one that came last is on its way in and cannot go before it is there.
    if (!arriving_.empty() && arriving_.back() > running_.back()) return Room::kComing;
    const RequestId victim = running_.back();
    preempt(victim);
    if (victim == needy) return Room::kGone;
  }
  return Room::kFree;
}

bool Scheduler::chooses_swap(const Request& r) const {
  if (config_.eviction == Eviction::kRecompute) return false;
  return config_.eviction == Eviction::kSwap || config_.prefers_swap(facts_of(r));
}

// For a request that has just been taken out of running_.
Victim Scheduler::facts_of(const Request& r) const {
  Victim v;
  v.blocks = static_cast<std::uint32_t>(r.blocks.size());
  if (config_.partial) {
    const std::uint64_t preemptions = counts_.recomputes + counts_.swaps_out;
    const std::uint64_t mean = preemptions == 0 ? 1 : (counts_.evicted_blocks + preemptions - 1) / preemptions;
    v.blocks = static_cast<std::uint32_t>(std::min<std::uint64_t>(v.blocks, std::max<std::uint64_t>(mean, 1)));
  }
  const std::uint32_t kept = static_cast<std::uint32_t>(r.blocks.size()) - v.blocks;
  v.context = std::min(r.computed, kept * config_.block_tokens);
  v.tokens = r.length() - v.context;
  v.others = static_cast<std::uint32_t>(running_.size());
  const auto again = [&](RequestId id) {
    const double tokens = requests_[id].length() - requests_[id].computed;
    ++v.again_seqs;
    v.again_tokens += requests_[id].length() - requests_[id].computed;
    v.again_pairs += tokens * tokens / 2;
  };
  for (const RequestId id : preempted_) again(id);
  for (const RequestId id : waiting_) {
    if (!requests_[id].resuming) break;
    again(id);
  }
  for (const Copy& copy : copies_) v.copying += copy.blocks;
  v.disturbed = disturbed_ / kDisturbedTokens;
  return v;
}

void Scheduler::preempt(RequestId id) {
  KVD_CHECK(!running_.empty() && running_.back() == id);
  running_.pop_back();
  Request& r = requests_[id];
  r.resuming = true;
  const auto blocks = static_cast<std::uint32_t>(r.blocks.size());
  bool swap = chooses_swap(r);
  if (swap && host_used_ + blocks > config_.host_blocks) {
    swap = false;
    ++counts_.host_full;
  }
  if (swap) {
    move_to(r, config_.async_swap ? State::kSwappingOut : State::kSwapped);
    insert_by_arrival(swapped_, id);
    swapped_out_ = true;
    ++counts_.swaps_out;
    ++pass_.requests_out;
  } else {
    move_to(r, State::kWaiting);
    preempted_.push_back(id);
    ++counts_.recomputes;
  }
  evict_tail(id, config_.partial ? 1 : blocks);
}

// Frees the last `blocks` device blocks of a request that does not run, or begins to copy them out.
void Scheduler::evict_tail(RequestId id, std::uint32_t blocks) {
  Request& r = requests_[id];
  counts_.evicted_blocks += blocks;
  const bool to_host = r.state != State::kWaiting;
  if (to_host) {
    host_used_ += blocks;
    pass_.blocks_out += blocks;
  }
  if (to_host && config_.async_swap) {
    copy_out(id, blocks);
    return;
  }
  for (std::uint32_t i = 0; i < blocks; ++i) {
    pool_.give(r.blocks.back(), id);
    r.blocks.pop_back();
  }
  if (to_host) {
    r.host_blocks += blocks;
  } else {
    r.computed = std::min(r.computed, static_cast<std::uint32_t>(r.blocks.size()) * config_.block_tokens);
  }
}

// Begins to copy the last blocks that are not on their way yet; what goes in one pass is one copy.
void Scheduler::copy_out(RequestId id, std::uint32_t blocks) {
  Request& r = requests_[id];
  if (r.state == State::kSwapped) move_to(r, State::kSwappingOut);
  r.leaving += blocks;
  leaving_ += blocks;
  const auto begun = std::find_if(copies_.begin() + static_cast<std::ptrdiff_t>(copies_before_), copies_.end(),
                                  [id](const Copy& copy) { return copy.request == id && copy.out; });
  if (begun != copies_.end()) {
    begun->blocks += blocks;
  } else {
    copies_.push_back({id, blocks, true});
  }
}

void Scheduler::copied() {
  KVD_CHECK(!copies_.empty() && pass_.items.empty());
  const Copy copy = copies_.front();
  copies_.pop_front();
  Request& r = requests_[copy.request];
  if (!copy.out) {
    host_used_ -= r.host_blocks;
    r.host_blocks = 0;
    erase_from(arriving_, copy.request);
    insert_by_arrival(running_, copy.request);
    move_to(r, State::kRunning);
    return;
  }
  for (std::uint32_t i = 0; i < copy.blocks; ++i) {
    pool_.give(r.blocks.back(), copy.request);
    r.blocks.pop_back();
  }
  r.host_blocks += copy.blocks;
  r.leaving -= copy.blocks;
  leaving_ -= copy.blocks;
  if (r.leaving == 0) move_to(r, State::kSwapped);
}

// Takes one more block from the request that came last among those that are preempted but still hold some.
bool Scheduler::evict_from_paused() {
  RequestId last = kNobody;
  const auto consider = [&](RequestId id) {
    const bool holds = requests_[id].blocks.size() > requests_[id].leaving;
    if (holds && (last == kNobody || id > last)) last = id;
  };
  for (const RequestId id : preempted_) consider(id);
  for (const RequestId id : waiting_) {
    if (!requests_[id].resuming) break;
    consider(id);
  }
  for (const RequestId id : swapped_) {
    if (host_used_ < config_.host_blocks) consider(id);
  }
  if (last == kNobody) return false;
  evict_tail(last, 1);
  ++counts_.partial_evictions;
  return true;
}

void Scheduler::resume_swapped() {
  while (!swapped_.empty() && !recomputed_first()) {
    const RequestId id = swapped_.front();
    const Request& r = requests_[id];
    if (r.state == State::kSwappingOut) break;
    const std::uint32_t needed = r.host_blocks + 1;  // one for the token to come
    if (r.blocks.size() + needed + config_.watermark_blocks > config_.blocks) {
      swapped_.erase(swapped_.begin());
      reject(id);
      continue;
    }
    if (pool_.free() < needed + config_.watermark_blocks) break;
    if (running_.size() + arriving_.size() >= config_.pass_seqs_max) break;
    const std::uint32_t missing = r.length() - r.computed;
    const std::uint32_t tokens = missing > 1 ? std::min(missing, prompt_room()) : missing;
    if (pass_.tokens >= config_.pass_tokens_max || tokens == 0) break;
    swap_in(id);
    if (r.state == State::kSwappingIn) continue;
    grow(id, r.computed + tokens);
    put(id, tokens, missing > 1);
  }
}

// Takes the blocks of the request at the head of swapped_ and copies, or begins to copy, its KV into them.
void Scheduler::swap_in(RequestId id) {
  Request& r = requests_[id];
  swapped_.erase(swapped_.begin());
  for (std::uint32_t i = 0; i < r.host_blocks; ++i) r.blocks.push_back(pool_.take(id));
  pass_.blocks_in += r.host_blocks;
  ++pass_.requests_in;
  ++counts_.swaps_in;
  if (config_.async_swap) {
    move_to(r, State::kSwappingIn);
    insert_by_arrival(arriving_, id);
    copies_.push_back({id, r.host_blocks, false});
    return;
  }
  move_to(r, State::kRunning);
  insert_by_arrival(running_, id);
  host_used_ -= r.host_blocks;
  r.host_blocks = 0;
}

Scheduler::Admission Scheduler::admission(const Request& r) const noexcept {
  const std::uint32_t needed = blocks_for(r.length());
  if (needed + config_.watermark_blocks > config_.blocks) return Admission::kNever;
  const bool cuts = config_.batching == Batching::kChunked || config_.batching == Batching::kSelective;
  if (!cuts && r.length() - r.computed > config_.pass_tokens_max) return Admission::kNever;
  const std::uint32_t missing = needed - static_cast<std::uint32_t>(r.blocks.size());
  return pool_.free() >= missing + config_.watermark_blocks ? Admission::kYes : Admission::kLater;
}

void Scheduler::admit_waiting() {
  while (!waiting_.empty()) {
    const RequestId id = waiting_.front();
    Request& r = requests_[id];
    if (swapped_first(id)) break;
    const Admission admitted = admission(r);
    if (admitted == Admission::kLater) break;
    if (admitted == Admission::kNever) {
      waiting_.pop_front();
      reject(id);
      continue;
    }
    const std::uint32_t budget = prompt_room();
    std::uint32_t tokens = r.length() - r.computed;
    const bool cut = config_.batching == Batching::kChunked || cutting_ ||
                     (config_.batching == Batching::kSelective && tokens > config_.pass_tokens_max);
    if (cut) tokens = std::min(tokens, budget);
    // Running requests count against the sequences of a pass even when a prefill pass leaves them out.
    const std::size_t seqs = std::max(pass_.items.size(), running_.size() + arriving_.size());
    if (tokens == 0 || tokens > budget || seqs >= config_.pass_seqs_max) break;
    waiting_.pop_front();
    move_to(r, State::kRunning);
    insert_by_arrival(running_, id);
    grow(id, r.length());
    put(id, tokens, true);
  }
}

// Takes blocks until `tokens` tokens have room.
void Scheduler::grow(RequestId id, std::uint32_t tokens) {
  Request& r = requests_[id];
  while (r.blocks.size() < blocks_for(tokens)) r.blocks.push_back(pool_.take(id));
}

void Scheduler::put(RequestId id, std::uint32_t tokens, bool prefill) {
  const Request& r = requests_[id];
  pass_.items.push_back({id, tokens, r.computed, prefill, r.resuming});
  pass_.tokens += tokens;
  if (prefill) prompt_tokens_ += tokens;
}

// Counts the decoding requests whose next token waits longer for this pass, and forgets old ones.
void Scheduler::note_disturbed() {
  const auto prefills = static_cast<std::size_t>(std::ranges::count_if(pass_.items, &Item::prefill));
  const bool copies_in = pass_.blocks_in > 0 && !config_.async_swap;
  disturbed_ *= std::max(0.0, 1 - static_cast<double>(pass_.items.size()) / kDisturbedTokens);
  if (copies_in || prefills > 0) disturbed_ += static_cast<double>(running_.size() - prefills);
}

void Scheduler::complete() {
  note_disturbed();
  for (const Item& item : pass_.items) {
    Request& r = requests_[item.request];
    r.computed += item.tokens;
    if (r.computed < r.length()) continue;  // a chunk of a prompt: no token yet
    r.resuming = false;
    if (++r.generated == r.output) finish(item.request);
  }
  pass_.items.clear();
}

void Scheduler::release(RequestId id) {
  Request& r = requests_[id];
  for (; !r.blocks.empty(); r.blocks.pop_back()) pool_.give(r.blocks.back(), id);
  host_used_ -= r.host_blocks;
  r.host_blocks = 0;
}

void Scheduler::reject(RequestId id) {
  release(id);
  move_to(requests_[id], State::kRejected);
}

void Scheduler::finish(RequestId id) {
  release(id);
  move_to(requests_[id], State::kFinished);
  erase_from(running_, id);
}

}  // namespace kvd::sched
