// MATCH: the usable prefix over all shards and groups, its lease and its promotion.
#include <algorithm>
#include <utility>

#include "node/match.h"
#include "node/session.h"

namespace kvd::node {
namespace {

// A request with everything it names resolved.
struct Resolved {
  const wire::Match& match;
  store::NamespaceHandle ns;
  std::vector<MatchGroup> groups;
  std::vector<Key> keys;  // as in the request

  // Calls visit(record id, block) for every record that the prefix needs, in block order.
  template <class Visit>
  void for_needed(std::uint32_t prefix, Visit visit) const {
    for (std::uint32_t b = 0; b < prefix; ++b) {
      for (std::size_t g = 0; g < groups.size(); ++g) {
        if (b < first_needed(groups[g], prefix)) continue;
        for (const std::uint16_t shard : match.shards) visit(id(g, b, shard));
      }
    }
  }
  [[nodiscard]] block::RecordId id(std::size_t group, std::uint32_t block, std::uint16_t shard) const {
    return {keys[group * match.blocks + block], shard, match.groups[group]};
  }
};

Tier slowest(const store::Store& store, const Resolved& r, std::size_t group, std::uint32_t block) {
  Tier tier = Tier::kPool;
  for (const std::uint16_t shard : r.match.shards) {
    const Tier one = store.lookup(r.ns, r.id(group, block, shard));
    if (one == Tier::kNone) return one;
    tier = std::max(tier, one);
  }
  return tier;
}

}  // namespace

Status Session::on_match(const wire::Header& header, Bytes meta) {
  const Time arrived = context_.loop.now();
  const Result<wire::Match> match = wire::decode<wire::Match>(header, meta);
  if (!match) return undecodable(header, match.error());
  const Result<store::NamespaceHandle> ns = handle_of(match->ns);
  if (!ns) return refuse(header, ns.error());
  if (match->shards.size() * match->keys.count() > context_.limits.lookups_max) {
    return refuse(header, {Code::kInvalid, 0, "too many shards x groups x blocks in one request"});
  }
  store::Store& store = context_.store;
  Resolved r{.match = *match, .ns = *ns, .groups = {}, .keys = {}};
  for (const std::uint16_t group : match->groups) {
    const GroupSchema* const schema = store.schema(*ns, group);
    if (schema == nullptr) return refuse(header, {Code::kInvalid, 0, "the namespace has no such group"});
    r.groups.push_back({schema->rule, schema->hit_blocks});
  }
  r.keys.reserve(match->keys.count());
  for (std::size_t i = 0; i < match->keys.count(); ++i) {
    r.keys.push_back(block::key_at(store.namespace_hash(*ns), match->keys, i));
  }
  const MatchResult found =
      match_prefix(r.groups, match->blocks, [&](std::size_t g, std::uint32_t b) { return slowest(store, r, g, b); });

  std::vector<store::Pin> pins;
  const bool lease = match->lease_ms > 0 && context_.leases.has_room();
  if (lease || match->promote) {
    r.for_needed(found.prefix_blocks, [&](const block::RecordId& id) {
      const Tier tier = store.lookup(*ns, id);
      if (tier == Tier::kFlash && match->promote) store.promote(*ns, id);
      if (tier != Tier::kPool || !lease) return;
      if (store::Pin pin = store.pin_for_lease(*ns, id)) pins.push_back(std::move(pin));
    });
  }
  wire::MatchReply answer{
      .prefix_blocks = found.prefix_blocks, .lease = 0, .tiers = std::as_bytes(std::span(found.tiers))};
  if (!pins.empty()) {
    const Millis length(std::min(match->lease_ms, context_.limits.lease_ms_max));
    answer.lease = context_.leases.grant(number_, std::move(pins), after(arrived, length));
  }
  NodeCounters& counters = context_.counters;
  counters.requests_match.add();
  counters.match_blocks.add(match->blocks);
  counters.match_blocks_hit.add(found.prefix_blocks);
  const wire::Header reply_header{.flags = wire::kFlagLast, .request_id = header.request_id};
  connection_->send({.head = wire::frame(reply_header, answer), .body = {}, .on_done = {}});
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(context_.loop.now() - arrived);
  counters.match_us.record_us(static_cast<std::uint64_t>(us.count()));
  return {};
}

}  // namespace kvd::node
