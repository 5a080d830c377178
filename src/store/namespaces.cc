#include "store/namespaces.h"

#include <xxhash.h>

#include <algorithm>

namespace kvd::store {
namespace {

GroupInfo group_info(const GroupSchema& schema) {
  return {schema, block::shape_of(schema, true), block::shape_of(schema, false)};
}

}  // namespace

const block::RecordShape* GroupInfo::shape_of_pages(std::uint32_t pages) const noexcept {
  const std::uint64_t bytes = std::uint64_t{pages} * kPageBytes;
  if (foreign.record_bytes() == bytes) return &foreign;
  return native.record_bytes() == bytes ? &native : nullptr;
}

const GroupInfo* NamespaceInfo::group(std::uint16_t number) const noexcept {
  for (const auto& info : groups)
    if (info.schema.group == number) return &info;
  return nullptr;
}

std::uint64_t record_hash(const block::NamespaceHash& ns, const block::RecordId& id) noexcept {
  const std::uint64_t parts[3] = {ns.hi, ns.lo, block::hash_record(id)};
  return XXH3_64bits(parts, sizeof parts);
}

NamespaceHandle Namespaces::find_or_add(const NamespaceName& name) {
  const auto hash = block::hash_namespace(name.tenant, as_bytes(name.fingerprint));
  const auto [at, added] = by_hash_.try_emplace(hash, static_cast<NamespaceHandle>(entries_.size()));
  if (added) entries_.push_back({name, hash, {}, false});
  return at->second;
}

Result<NamespaceHandle> Namespaces::open(const Namespace& ns) {
  if (auto checked = block::check_namespace(ns); !checked) return fail(checked.error());
  std::vector<GroupInfo> groups;
  for (const auto& schema : ns.groups) {
    groups.push_back(group_info(schema));
    if (groups.back().foreign.record_bytes() > record_bytes_max_)
      return fail(Code::kInvalid, "a record of this namespace is larger than a quarter of the pool or than a segment");
  }
  std::ranges::sort(groups, {}, [](const GroupInfo& info) { return info.schema.group; });

  // What is open stays open; a new one must not be noted when there is no room for it.
  const bool noted = by_hash_.contains(block::hash_namespace(ns.tenant, as_bytes(ns.fingerprint)));
  if (!noted && opened_ == kOpenedMax) return fail(Code::kNoSpace, "65,535 namespaces are open");
  const NamespaceHandle handle = find_or_add({ns.tenant, ns.fingerprint});
  NamespaceInfo& entry = entries_[handle];
  const bool equal = std::ranges::all_of(groups, [&](const GroupInfo& info) {
    const GroupInfo* known = entry.group(info.schema.group);
    return known == nullptr ? !entry.opened : known->schema == info.schema;
  });
  // What flash holds counts, too: removals of its records must stay writable for as long as their segments live.
  const bool covers = std::ranges::all_of(entry.groups, [&](const GroupInfo& known) {
    return std::ranges::any_of(groups, [&](const auto& info) { return info.schema.group == known.schema.group; });
  });
  if (!equal || !covers)
    return fail(Code::kInvalid, "this namespace is stored with another schema: give it another fingerprint");
  if (entry.opened) return handle;
  if (opened_ == kOpenedMax) return fail(Code::kNoSpace, "65,535 namespaces are open");
  entry.groups = std::move(groups);
  entry.opened = true;
  ++opened_;
  return handle;
}

NamespaceHandle Namespaces::learn(const NamespaceName& name, const GroupSchema& schema) {
  const NamespaceHandle handle = find_or_add(name);
  NamespaceInfo& entry = entries_[handle];
  if (!entry.opened && entry.group(schema.group) == nullptr) entry.groups.push_back(group_info(schema));
  return handle;
}

}  // namespace kvd::store
