#include "node/resp_keyspace.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "block/checksum.h"

namespace kvd::node {
namespace {

constexpr std::string_view kFingerprint = "kvdepot.resp.1";

}  // namespace

Status RespKeyspace::open_one(const std::string& tenant, const std::string& fingerprint,
                              const std::vector<std::uint32_t>& sizes) {
  Namespace ns;
  ns.tenant = tenant;
  ns.fingerprint = fingerprint;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    ns.groups.push_back({.group = static_cast<std::uint16_t>(i),
                         .layers = 1,
                         .slab_bytes = sizes[i],
                         .parts = 1,
                         .block_tokens = 1,
                         .order = "RESP"});
    shapes_.push_back(block::shape_of(ns.groups.back(), false));
  }
  const auto handle = store_.open_own_namespace(ns);  // no other client may name it
  if (!handle) return fail(handle.error());
  handles_.push_back(*handle);
  return {};
}

Result<std::shared_ptr<RespKeyspace>> RespKeyspace::open(store::Store& store, const std::string& tenant,
                                                         std::uint64_t& next_part) {
  std::shared_ptr<RespKeyspace> keyspace(new RespKeyspace(store, next_part));
  if (Status opened = keyspace->open_one(tenant, fmt::format("{}.heads", kFingerprint), {kPageBytes}); !opened)
    return fail(opened.error());
  for (std::uint32_t first = 0; first < kRespSizes; first += kGroupsMax) {
    std::vector<std::uint32_t> sizes;
    for (std::uint32_t i = 0; i < kGroupsMax; ++i) sizes.push_back(resp_size_bytes(first + i));
    const std::string fingerprint = fmt::format("{}.parts.{}", kFingerprint, first / kGroupsMax);
    if (Status opened = keyspace->open_one(tenant, fingerprint, sizes); !opened) return fail(opened.error());
  }
  return keyspace;
}

RespKeyspace::~RespKeyspace() {
  for (const store::NamespaceHandle handle : handles_) store_.close_namespace(handle);
}

RespKeyspace::Place RespKeyspace::head(std::string_view key) const {
  Place place{handles_[0], {}, kPageBytes, 0};
  // Not as a foreign key of the engines, which has at most 256 bytes.
  place.id.key = block::next_native_key(store_.namespace_hash(place.ns), Key{}, {}, as_bytes(key));
  place.seed = block::record_seed(place.id, shapes_[0]);
  return place;
}

RespKeyspace::Place RespKeyspace::part(const Key& body, std::uint64_t value_bytes, std::uint32_t i) const {
  const std::uint32_t size = resp_size_of(resp_part_bytes(value_bytes, i));
  Place place{handles_[1 + size / kGroupsMax], {}, resp_size_bytes(size), 0};
  place.id = {{body.hi, body.lo + i}, 0, static_cast<std::uint16_t>(size % kGroupsMax)};
  place.seed = block::record_seed(place.id, shapes_[1 + size]);
  return place;
}

std::optional<RespKeyspace::Known> RespKeyspace::head_in_pool(std::string_view key) const {
  const Place place = head(key);
  if (store_.lookup(place.ns, place.id) != Tier::kPool) return std::nullopt;
  std::optional<Known> known;
  store::Get get;
  get.ns = place.ns;
  get.id = place.id;
  get.on_done = [&](Result<store::RecordView> view) {
    if (!view) return;
    const Bytes page(view->first_slab, kPageBytes);
    if (block::slab_checksum(place.seed, 0, page) != view->checksums[0]) return;
    const Result<RespHead> found = decode_resp_head(page);
    if (found && std::ranges::equal(found->key, as_bytes(key))) known = Known{found->value_bytes, found->body};
  };
  store_.start_get(get);  // answered inside, as it is in the pool
  return known;
}

bool RespKeyspace::present(std::string_view key) const {
  const Place place = head(key);
  const Tier tier = store_.lookup(place.ns, place.id);
  if (tier != Tier::kPool) return tier != Tier::kNone;
  const auto known = head_in_pool(key);
  if (!known || known->body == Key{}) return known.has_value();
  for (std::uint32_t i = 0; i < resp_parts(known->value_bytes); ++i) {
    const Place at = part(known->body, known->value_bytes, i);
    if (store_.lookup(at.ns, at.id) == Tier::kNone) return false;
  }
  return true;
}

void RespKeyspace::remove_parts(const Known& value) {
  if (value.body == Key{}) return;
  for (std::uint32_t i = 0; i < resp_parts(value.value_bytes); ++i) {
    const Place at = part(value.body, value.value_bytes, i);
    store_.remove(at.ns, at.id);
  }
}

void RespKeyspace::remove_replaced(const Known& value) {
  --replacements_;
  remove_parts(value);
}

bool RespKeyspace::remove(std::string_view key) {
  const bool was_present = present(key);
  if (const auto known = head_in_pool(key)) remove_parts(*known);
  const Place place = head(key);
  return store_.remove(place.ns, place.id) && was_present;
}

Key RespKeyspace::new_body(std::uint32_t parts) {
  // Openings are counted from 1, so a body's key is never Key{}.
  return {store_.boot_epoch(), std::exchange(next_part_, next_part_ + parts)};
}

}  // namespace kvd::node
