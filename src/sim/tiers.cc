#include "sim/tiers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace kvd::sim {

using model::kPicosecondsPerSecond;
using model::Picoseconds;

namespace {

constexpr auto kDram = static_cast<std::size_t>(Tier::kDram);

std::uint32_t blocks_max(const TierConfig& config, std::uint32_t block_tokens) {
  const std::uint64_t blocks = config.tokens_max / block_tokens;
  if (config.tokens_max == 0 || blocks >= UINT32_MAX) return UINT32_MAX;
  return std::max<std::uint32_t>(1, static_cast<std::uint32_t>(blocks));
}

// For heaps: the earliest on top, among equals the one that was begun first.
constexpr auto kLater = [](const auto& a, const auto& b) {
  return a.ready != b.ready ? a.ready > b.ready : a.order > b.order;
};
constexpr auto kLaterLoad = [](const auto& a, const auto& b) {
  return a.ready != b.ready ? a.ready > b.ready : a.id > b.id;
};

// Of times and durations, kTransferEndMax at most.
constexpr Picoseconds capped_sum(Picoseconds a, Picoseconds b) noexcept {
  return a < kTransferEndMax - b ? a + b : kTransferEndMax;
}

}  // namespace

Picoseconds layerwise_time(Picoseconds load, Picoseconds compute, Picoseconds store, std::uint32_t layers) noexcept {
  const Picoseconds longest = std::max({load, compute, store});
  // Unsigned, any two of them can be added.
  const auto all =
      static_cast<std::uint64_t>(load) + static_cast<std::uint64_t>(compute) + static_cast<std::uint64_t>(store);
  const std::uint64_t fill = (all - static_cast<std::uint64_t>(longest)) / layers;
  return capped_sum(longest, static_cast<Picoseconds>(std::min<std::uint64_t>(fill, kTransferEndMax)));
}

Picoseconds Pipe::end(Picoseconds now, double bytes) const noexcept {
  const Picoseconds begin = contention_ ? std::max(now, free_at_) : now;
  if (bytes_per_s_ <= 0) return begin;
  const double seconds = bytes / bytes_per_s_;
  if (seconds < static_cast<double>(kTransferEndMax - begin) / kPicosecondsPerSecond) {
    return begin + model::picoseconds(seconds);
  }
  return std::max(begin, kTransferEndMax);
}

Picoseconds Pipe::take(Picoseconds now, double bytes) noexcept {
  free_at_ = end(now, bytes);
  return free_at_;
}

TierStore::TierStore(const TierConfig& config, const TiersConfig& all, std::uint32_t block_tokens,
                     std::uint32_t unit_blocks)
    : total_read(config.total_read_per_s, all.contention),
      total_write(config.total_write_per_s, all.contention),
      cache_(blocks_max(config, block_tokens), unit_blocks),
      block_bytes_(block_tokens * all.kv_bytes_per_token),
      budget_(config.write_budget_per_s, kBudgetBurstSeconds, kBudgetBurstSeconds) {}

void TierStore::settle(Picoseconds now) {
  while (!writes_.empty() && writes_.front().ready <= now) {
    cache_.remember(writes_.front().units, writes_.front().to);
    std::ranges::pop_heap(writes_, kLater);
    writes_.pop_back();
  }
}

std::uint32_t TierStore::match(const sched::Units& units, std::uint32_t most, Picoseconds now) {
  settle(now);
  return cache_.match(units, most);
}

std::uint32_t TierStore::blocks_held(Picoseconds now) {
  settle(now);
  return cache_.cached();
}

TierStore::Grant TierStore::grant(const sched::Units& units, std::uint32_t from, std::uint32_t to, Picoseconds now) {
  settle(now);
  const std::uint32_t missing = cache_.missing(units, to) - cache_.missing(units, from);
  Grant grant{to, missing};
  if (budget_.bounded()) {
    budget_.pass(static_cast<double>(now - budget_at_) / kPicosecondsPerSecond);
    budget_at_ = now;
    grant.blocks = static_cast<std::uint32_t>(std::min<double>(missing, std::floor(budget_.left() / block_bytes_)));
    // What is missing is a prompt's tail: prefixes are written from the head and evicted from the end.
    grant.to = to - std::min(to, missing - grant.blocks);
    budget_.spend(grant.blocks * block_bytes_);
  }
  traffic.written_bytes += grant.blocks * block_bytes_;
  traffic.refused_bytes += (missing - grant.blocks) * block_bytes_;
  return grant;
}

void TierStore::refuse(const sched::Units& units, std::uint32_t from, std::uint32_t to) {
  if (to > from) traffic.refused_bytes += (cache_.missing(units, to) - cache_.missing(units, from)) * block_bytes_;
}

void TierStore::touch(const sched::Units& units, std::uint32_t to, Picoseconds now) {
  settle(now);
  cache_.remember(units, cache_.match(units, to));
}

void TierStore::write(const sched::Units& units, std::uint32_t to, Picoseconds ready) {
  writes_.push_back({ready, order_++, units, to});
  std::ranges::push_heap(writes_, kLater);
}

InstanceTiers::InstanceTiers(const TiersConfig& config, const model::LinearPass& pass,
                             const std::vector<sched::V1Request>& requests, std::uint32_t block_tokens,
                             std::uint32_t unit_blocks, TierStore* depot)
    : config_(config),
      pass_(pass),
      requests_(requests),
      block_tokens_(block_tokens),
      block_bytes_(block_tokens * config.kv_bytes_per_token) {
  own_.reserve(kTiers);  // sides_ point into it
  for (std::size_t t = 0; t < kTiers; ++t) {
    const TierConfig& c = config.tier[t];
    const bool shared = t == static_cast<std::size_t>(Tier::kDepot);
    KVD_CHECK(!shared || c.on == (depot != nullptr));
    if (c.on && !shared) own_.emplace_back(c, config, block_tokens, unit_blocks);
    sides_.push_back({!c.on    ? nullptr
                      : shared ? depot
                               : &own_.back(),
                      Pipe(c.read_bytes_per_s, config.contention), Pipe(c.write_bytes_per_s, config.contention),
                      c.latency_s});
  }
}

// Time to compute the prompt's tokens have..to in passes of their own: what a fetch competes with.
Picoseconds InstanceTiers::compute_time(std::uint64_t have, std::uint64_t to) const noexcept {
  const std::uint64_t n = to - have;
  const std::uint64_t pairs = n * have + n * (n + 1) / 2;
  return pass_.token * static_cast<Picoseconds>(n) + pass_.pair * static_cast<Picoseconds>(pairs);
}

// Time to the first token if the first `parts` parts were fetched now and the rest computed.
Picoseconds InstanceTiers::first_token(const sched::V1Request& request, std::size_t parts) const {
  Picoseconds end = now;
  Picoseconds latency = 0;
  for (std::size_t i = 0; i < parts; ++i) {
    const Part& part = parts_[i];
    const Side& side = sides_[part.tier];
    const double size = bytes(part.to - part.from);
    end = std::max({end, side.read.end(now, size), side.store->total_read.end(now, size)});
    latency = std::max(latency, model::picoseconds(side.latency_s));
  }
  const std::uint64_t have = std::uint64_t{parts == 0 ? parts_[0].from : parts_[parts - 1].to} * block_tokens_;
  const Picoseconds compute = compute_time(have, std::max<std::uint64_t>(request.target(), have));
  const Picoseconds load = end - now;
  return capped_sum(latency,
                    config_.layerwise ? layerwise_time(load, compute, 0, config_.layers) : capped_sum(load, compute));
}

std::uint32_t InstanceTiers::match(const sched::V1Request& request, std::uint32_t have, std::uint32_t most) {
  parts_.clear();
  std::uint32_t reached = have;
  for (std::size_t t = 0; t < kTiers; ++t) {
    if (sides_[t].store == nullptr) continue;
    const std::uint32_t there = sides_[t].store->match(request.units, most, now);
    if (there <= reached) continue;
    parts_.push_back({t, reached, there});
    reached = there;
  }
  if (parts_.empty()) return have;
  std::size_t best = 0;
  Picoseconds soonest = first_token(request, 0);
  for (std::size_t n = 1; n <= parts_.size(); ++n) {
    const Picoseconds time = first_token(request, n);
    if (time >= soonest) continue;
    soonest = time;
    best = n;
  }
  parts_.resize(best);
  return best == 0 ? have : parts_.back().to;
}

void InstanceTiers::fetch(sched::V1Id id, std::uint32_t have, std::uint32_t to) {
  KVD_CHECK(!parts_.empty() && parts_.front().from == have && parts_.back().to == to);
  const sched::Units& units = requests_[id].units;
  Picoseconds end = now;
  Picoseconds latency = 0;
  for (const Part& part : parts_) {
    Side& side = sides_[part.tier];
    const double size = bytes(part.to - part.from);
    end = std::max({end, side.read.take(now, size), side.store->total_read.take(now, size)});
    latency = std::max(latency, model::picoseconds(side.latency_s));
    side.store->traffic.read_bytes += size;
    side.store->touch(units, part.to, now);
  }
  Side& dram = sides_[kDram];
  if (dram.store != nullptr) {
    const TierStore::Grant grant = dram.store->grant(units, 0, to, now);
    dram.store->write(units, grant.to, std::max(capped_sum(end, latency), dram.write.take(now, bytes(grant.blocks))));
    if (progress_.size() <= id) progress_.resize(id + 1);
    progress_[id].fetched_written = grant.to;
    progress_[id].fetched_asked = to;
  }
  if (config_.layerwise) {
    load_end_ = std::max(load_end_, end);
    load_latency_ = std::max(load_latency_, latency);
    return;
  }
  loads_.push_back({capped_sum(end, latency), id});
  std::ranges::push_heap(loads_, kLaterLoad);
}

sched::V1Id InstanceTiers::pop_load() {
  const sched::V1Id id = loads_.front().id;
  std::ranges::pop_heap(loads_, kLaterLoad);
  loads_.pop_back();
  return id;
}

std::uint32_t InstanceTiers::private_match(const sched::Units& units, std::uint32_t most, Picoseconds at) {
  std::uint32_t there = 0;
  for (TierStore& store : own_) there = std::max(there, store.match(units, most, at));
  return there;
}

// A prompt is written chunk by chunk, each block once; behind a chunk of which a tier refused a part nothing of that
// prompt is written there, because nobody would find it.
TierStore::Grant InstanceTiers::ask(const Store& store, std::size_t tier, Picoseconds at) {
  TierStore& where = *sides_[tier].store;
  std::uint32_t& written = progress_[store.id].written[tier];
  std::uint32_t& asked = progress_[store.id].asked[tier];
  if (written < asked) {
    where.refuse(store.units, asked, store.to);
    asked = std::max(asked, store.to);
    return {written, 0};
  }
  const TierStore::Grant grant = where.grant(store.units, written, std::max(written, store.to), at);
  written = grant.to;
  asked = std::max(asked, store.to);
  return grant;
}

Picoseconds InstanceTiers::begin_pass(const sched::V1Engine& engine, Picoseconds compute) {
  stores_.clear();
  engine.chunks(chunks_);
  for (const sched::V1Chunk& chunk : chunks_) {
    const sched::V1Request& r = requests_[chunk.id];
    stores_.push_back({chunk.id, r.units, std::min(chunk.to, r.prompt) / block_tokens_, {}});
    if (progress_.size() <= chunk.id) progress_.resize(chunk.id + 1);
    if (!chunk.first) continue;
    const Progress fetched = std::exchange(progress_[chunk.id], {});
    progress_[chunk.id].written[kDram] = fetched.fetched_written;
    progress_[chunk.id].asked[kDram] = fetched.fetched_asked;
  }
  if (!config_.layerwise) return compute;
  Picoseconds store_end = now;
  for (Store& s : stores_) {
    for (std::size_t t = 0; t < kTiers; ++t) {
      Side& side = sides_[t];
      if (side.store == nullptr) continue;
      s.grant[t] = ask(s, t, now);
      const double size = bytes(s.grant[t].blocks);
      store_end = std::max({store_end, side.write.take(now, size), side.store->total_write.take(now, size)});
    }
  }
  const Picoseconds load = std::max<Picoseconds>(0, load_end_ - now);
  const Picoseconds time = capped_sum(load_latency_, layerwise_time(load, compute, store_end - now, config_.layers));
  load_end_ = load_latency_ = 0;
  return std::max(compute, std::min(time, kTransferEndMax - now));
}

void InstanceTiers::end_pass(Picoseconds at) {
  for (Store& s : stores_) {
    for (std::size_t t = 0; t < kTiers; ++t) {
      Side& side = sides_[t];
      if (side.store == nullptr) continue;
      Picoseconds ready = at;
      if (!config_.layerwise) {
        s.grant[t] = ask(s, t, at);
        const double size = bytes(s.grant[t].blocks);
        ready = std::max(side.write.take(at, size), side.store->total_write.take(at, size));
      }
      side.store->write(s.units, s.grant[t].to, ready);
    }
  }
  stores_.clear();
}

}  // namespace kvd::sim
