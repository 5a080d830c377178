#include "sched/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvd::sched {

namespace {

void insert_by_arrival(std::vector<RequestId>& list, RequestId id) {
  list.insert(std::upper_bound(list.begin(), list.end(), id), id);
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
  KVD_CHECK(config_.pass_tokens_max > 0 && config_.pass_seqs_max > 0);
  KVD_CHECK(config_.eviction != Eviction::kAdaptive || config_.swap_is_cheaper);
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

const Pass& Scheduler::schedule() {
  pass_.clear();
  decide();
  // Preempted requests that still hold blocks can keep each other out when nobody runs: the last ones give way.
  while (config_.partial && pass_.items.empty() && !idle() && evict_from_paused()) decide();
  return pass_;
}

void Scheduler::decide() {
  preempted_.clear();
  swapped_out_ = false;
  if (config_.batching == Batching::kPrefillFirst) {
    if (swapped_.empty()) admit_waiting();
    if (pass_.items.empty()) {
      run_running();
      if (preempted_.empty() && !swapped_out_) resume_swapped();
    }
  } else {
    run_running();
    if (preempted_.empty() && !swapped_out_) resume_swapped();
    admit_waiting();
  }
  for (const RequestId id : preempted_) waiting_.push_front(id);
  preempted_.clear();
}

void Scheduler::run_running() {
  // running_ loses its last elements while it is walked: victims come from the end.
  for (std::size_t i = 0; i < running_.size(); ++i) {
    const RequestId id = running_[i];
    const Request& r = requests_[id];
    const std::uint32_t tokens = std::min(r.length() - r.computed, config_.pass_tokens_max - pass_.tokens);
    if (tokens == 0) break;
    if (!make_room(id)) break;
    grow(id, r.computed + tokens);
    put(id, tokens, r.length() - r.computed > 1);
  }
}

// True when a block is free for `needy`, which runs; false when it had to go itself.
bool Scheduler::make_room(RequestId needy) {
  while (pool_.free() == 0) {
    if (config_.partial && evict_from_paused()) continue;
    const RequestId victim = running_.back();
    preempt(victim);
    if (victim == needy) return false;
  }
  return true;
}

bool Scheduler::chooses_swap(const Request& r) const {
  if (config_.eviction == Eviction::kRecompute) return false;
  if (config_.eviction == Eviction::kSwap) return true;
  const auto blocks = static_cast<std::uint32_t>(r.blocks.size());
  return config_.swap_is_cheaper(blocks, r.length(), 0);
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
    r.state = State::kSwapped;
    insert_by_arrival(swapped_, id);
    swapped_out_ = true;
    ++counts_.swaps_out;
    ++pass_.requests_out;
  } else {
    r.state = State::kWaiting;
    preempted_.push_back(id);
    ++counts_.recomputes;
  }
  evict_tail(id, config_.partial ? 1 : blocks);
}

// Frees the last `blocks` device blocks of a request that does not run.
void Scheduler::evict_tail(RequestId id, std::uint32_t blocks) {
  Request& r = requests_[id];
  for (std::uint32_t i = 0; i < blocks; ++i) {
    pool_.give(r.blocks.back(), id);
    r.blocks.pop_back();
  }
  if (r.state == State::kSwapped) {
    r.host_blocks += blocks;
    host_used_ += blocks;
    pass_.blocks_out += blocks;
  } else {
    r.computed = std::min(r.computed, static_cast<std::uint32_t>(r.blocks.size()) * config_.block_tokens);
  }
}

// Takes one more block from the request that came last among those that are preempted but still hold some.
bool Scheduler::evict_from_paused() {
  RequestId last = kNobody;
  const auto consider = [&](RequestId id) {
    if (!requests_[id].blocks.empty() && (last == kNobody || id > last)) last = id;
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
  while (!swapped_.empty()) {
    const RequestId id = swapped_.front();
    Request& r = requests_[id];
    const std::uint32_t needed = r.host_blocks + 1;  // one for the token to come
    if (r.blocks.size() + needed + config_.watermark_blocks > config_.blocks) {
      swapped_.erase(swapped_.begin());
      reject(id);
      continue;
    }
    if (pool_.free() < needed + config_.watermark_blocks) break;
    if (pass_.tokens >= config_.pass_tokens_max || pass_.items.size() >= config_.pass_seqs_max) break;
    swapped_.erase(swapped_.begin());
    r.state = State::kRunning;
    insert_by_arrival(running_, id);
    for (std::uint32_t i = 0; i < r.host_blocks; ++i) r.blocks.push_back(pool_.take(id));
    pass_.blocks_in += r.host_blocks;
    ++pass_.requests_in;
    ++counts_.swaps_in;
    host_used_ -= r.host_blocks;
    r.host_blocks = 0;
    const std::uint32_t tokens = std::min(r.length() - r.computed, config_.pass_tokens_max - pass_.tokens);
    grow(id, r.computed + tokens);
    put(id, tokens, r.length() - r.computed > 1);
  }
}

Scheduler::Admission Scheduler::admission(const Request& r) const noexcept {
  const std::uint32_t needed = blocks_for(r.length());
  if (needed + config_.watermark_blocks > config_.blocks) return Admission::kNever;
  if (config_.batching != Batching::kChunked && r.length() - r.computed > config_.pass_tokens_max) {
    return Admission::kNever;
  }
  const std::uint32_t missing = needed - static_cast<std::uint32_t>(r.blocks.size());
  return pool_.free() >= missing + config_.watermark_blocks ? Admission::kYes : Admission::kLater;
}

void Scheduler::admit_waiting() {
  while (!waiting_.empty()) {
    const RequestId id = waiting_.front();
    Request& r = requests_[id];
    const Admission admitted = admission(r);
    if (admitted == Admission::kLater) break;
    if (admitted == Admission::kNever) {
      waiting_.pop_front();
      reject(id);
      continue;
    }
    const std::uint32_t budget = config_.pass_tokens_max - pass_.tokens;
    std::uint32_t tokens = r.length() - r.computed;
    if (config_.batching == Batching::kChunked) tokens = std::min(tokens, budget);
    // Running requests count against the sequences of a pass even when a prefill pass leaves them out.
    const std::size_t seqs = std::max(pass_.items.size(), running_.size());
    if (tokens == 0 || tokens > budget || seqs >= config_.pass_seqs_max) break;
    waiting_.pop_front();
    r.state = State::kRunning;
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
}

void Scheduler::complete() {
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
  requests_[id].state = State::kRejected;
}

void Scheduler::finish(RequestId id) {
  release(id);
  requests_[id].state = State::kFinished;
  running_.erase(std::lower_bound(running_.begin(), running_.end(), id));
}

}  // namespace kvd::sched
