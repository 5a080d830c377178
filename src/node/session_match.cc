// MATCH: the usable prefix over all shards and groups, its lease and its promotion. A small one is answered at once;
// one of many records goes on in later turns of the loop, a slice at a time.
#include <algorithm>
#include <utility>

#include "node/session.h"

namespace kvd::node {
namespace {

constexpr std::size_t kLookedUpAtOnce = 512;   // records: 0.1 ms of the loop at 210 ns each
constexpr std::size_t kLookedUpTogether = 32;  // of these: those behind a missing one are looked up for nothing
constexpr std::size_t kKeysForOne = 8;         // of a match in the node's bookkeeping: some 30 bytes each, not 300

}  // namespace

block::RecordId Session::RunningMatch::id(std::size_t group, std::uint32_t block, std::uint16_t shard) const {
  return {keys[group * blocks + block], shard, groups[group]};
}

Status Session::on_match(const wire::Header& header, Bytes meta) {
  const Time arrived = connection_->last_received();
  const Result<wire::Match> match = wire::decode<wire::Match>(header, meta);
  if (!match) return undecodable(header, match.error());
  Result<SharedNamespace> ns = namespace_of(match->ns);
  if (!ns) return refuse(header, ns.error());
  if (match->shards.size() * match->keys.count() > context_.limits.lookups_max) {
    return refuse(header, {Code::kInvalid, 0, "too many shards x groups x blocks in one request"});
  }
  const store::Store& store = context_.store;
  std::vector<MatchGroup> rules;
  for (const std::uint16_t group : match->groups) {
    const GroupSchema* const schema = store.schema((*ns)->handle(), group);
    if (schema == nullptr) return refuse(header, {Code::kInvalid, 0, "the namespace has no such group"});
    rules.push_back({schema->rule, schema->hit_blocks});
  }
  RunningMatch running{.request_id = header.request_id,
                       .ns = std::move(*ns),
                       .keys = {},
                       .shards = match->shards,
                       .groups = match->groups,
                       .blocks = match->blocks,
                       .lease_ms = std::min(match->lease_ms, context_.limits.lease_ms_max),
                       .promote = match->promote,
                       .readable = context_.loop.ready_since(),
                       .arrived = arrived,
                       .deadline = header.deadline_ms == 0 ? kNever : after(arrived, Millis(header.deadline_ms)),
                       .share = {},
                       .slot = {},
                       .search = PrefixSearch(std::move(rules), match->blocks)};
  running.keys.reserve(match->keys.count());
  const block::NamespaceHash& hash = store.namespace_hash(running.ns->handle());
  for (std::size_t i = 0; i < match->keys.count(); ++i) running.keys.push_back(block::key_at(hash, match->keys, i));
  if (match_some(running)) {
    answer_match(running);
    return {};
  }
  if (matches_.size() >= context_.limits.ops_max) {
    end_match(running);
    return refuse(header, {Code::kBusy, 0, "too many unfinished requests on this connection"});
  }
  Result<KeyShare> share = take_keys((running.keys.size() + kKeysForOne - 1) / kKeysForOne);
  if (!share) {
    end_match(running);
    return refuse(header, share.error());
  }
  running.share = std::move(*share);
  Result<TenantSlot> slot = take_slot();
  if (!slot) {
    end_match(running);
    return refuse(header, slot.error());
  }
  running.slot = std::move(*slot);
  matches_.push_back(std::move(running));
  match_slices_.enter();
  return {};
}

// A slice of its records: first where they are, then what the prefix needs of them is leased and promoted. True when
// both are through.
bool Session::match_some(RunningMatch& match) {
  std::size_t looked_up = 0;
  LookedUp ahead;
  for (; !match.search.done() && looked_up < kLookedUpAtOnce; looked_up += match.shards.size())
    match.search.found(slowest(match, ahead, match.search.next()));
  if (!match.search.done()) return false;
  if (!match.found) match.found = match.search.result();
  const std::uint32_t prefix = match.found->prefix_blocks;
  if (match.lease_ms == 0 && !match.promote) return true;
  for (; match.next_block < prefix && looked_up < kLookedUpAtOnce; looked_up += match.shards.size()) {
    if (match.next_block >= first_needed(match.search.groups()[match.next_group], prefix)) keep(match);
    if (++match.next_group < match.groups.size()) continue;
    match.next_group = 0;
    ++match.next_block;
  }
  return match.next_block == prefix;
}

// A search asks for the blocks of a group in order, so those that follow are looked up with the one that is asked for.
Tier Session::slowest(const RunningMatch& match, LookedUp& ahead, PrefixSearch::Place place) const {
  const std::size_t shards = match.shards.size();
  const auto end = ahead.first + ahead.tiers.size() / shards;
  if (ahead.tiers.empty() || place.group != ahead.group || place.block < ahead.first || place.block >= end) {
    const std::size_t blocks =
        std::min<std::size_t>(std::max<std::size_t>(kLookedUpTogether / shards, 1), match.blocks - place.block);
    ahead.group = place.group;
    ahead.first = place.block;
    ahead.ids.clear();
    for (std::uint32_t block = place.block; block < place.block + blocks; ++block)
      for (const std::uint16_t shard : match.shards) ahead.ids.push_back(match.id(place.group, block, shard));
    ahead.tiers.resize(ahead.ids.size());
    context_.store.lookup_all(match.ns->handle(), ahead.ids, ahead.tiers);
  }
  const auto found = std::span(ahead.tiers).subspan((place.block - ahead.first) * shards, shards);
  return std::ranges::find(found, Tier::kNone) != found.end() ? Tier::kNone : std::ranges::max(found);
}

// Leases the block's records that are in the pool and promotes the others.
void Session::keep(RunningMatch& match) {
  store::Store& store = context_.store;
  const store::NamespaceHandle ns = match.ns->handle();
  const bool some_on_flash = match.search.tier(match.next_group, match.next_block) == Tier::kFlash;
  for (const std::uint16_t shard : match.shards) {
    const block::RecordId id = match.id(match.next_group, match.next_block, shard);
    if (some_on_flash && match.promote) store.promote(ns, id);
    if (match.lease_ms == 0) continue;
    if (match.lease == 0 && !(context_.leases.has_room(number_) && context_.gate.may_lease(tenant_))) {
      match.lease_ms = 0;
      continue;
    }
    store::LeasePin pin = store.pin_for_lease(ns, id, context_.gate.lease_room(tenant_));
    if (!pin.pin) continue;
    if (match.lease == 0) {
      const Time expires = after(match.arrived, Millis(match.lease_ms));
      match.lease = context_.leases.grant(number_, std::move(pin), expires, context_.gate.take_lease(tenant_));
    } else if (!context_.leases.add(match.lease, std::move(pin))) {
      match.lease_ms = 0;  // what it has stays leased: the front of the prefix
    }
  }
}

void Session::answer_match(const RunningMatch& match) {
  const MatchResult& found = *match.found;
  const wire::MatchReply answer{
      .prefix_blocks = found.prefix_blocks, .lease = match.lease, .tiers = std::as_bytes(std::span(found.tiers))};
  NodeCounters& counters = context_.counters;
  counters.requests_match.add();
  counters.match_blocks.add(match.blocks);
  counters.match_blocks_hit.add(found.prefix_blocks);
  const wire::Header header{.flags = wire::kFlagLast, .request_id = match.request_id};
  connection_->send({.head = wire::frame(header, answer), .body = {}, .on_done = [this, readable = match.readable] {
                       if (connection_ == nullptr || connection_->closed()) return;
                       const Duration took = context_.loop.now() - readable;
                       const auto us = std::chrono::duration_cast<std::chrono::microseconds>(took).count();
                       context_.counters.match_residence_us.record_us(static_cast<std::uint64_t>(us));
                     }});
  context_.loop.expect();  // who looks up asks for what was found, or goes on looking
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(context_.loop.now() - match.arrived);
  counters.match_us.record_us(static_cast<std::uint64_t>(us.count()));
}

// Of a match that is refused in the middle.
void Session::end_match(const RunningMatch& match) {
  if (match.lease != 0) context_.leases.release(number_, match.lease);
}

// Returns whether there is more to do.
bool Session::match_next() {
  RunningMatch& match = matches_.front();
  const bool late = match.deadline <= context_.loop.now();
  const bool through = !late && match_some(match);
  if (through) answer_match(match);
  if (late) {
    end_match(match);
    context_.counters.timeouts.add();
    static_cast<void>(
        refuse(wire::Opcode::kMatchReply, match.request_id, {Code::kTimeout, 0, "the request's deadline has passed"}));
  }
  if (late || through) {
    matches_.pop_front();
    connection_->flush();
  }
  return !matches_.empty();
}

}  // namespace kvd::node
