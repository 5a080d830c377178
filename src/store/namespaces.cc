#include "store/namespaces.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "store/tenant_space.h"

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

Namespaces::Namespaces(std::uint64_t record_bytes_max, std::size_t devices)
    : record_bytes_max_(record_bytes_max), tenants_(std::make_unique<TenantSpaces>(devices)) {}

Namespaces::~Namespaces() = default;

NamespaceHandle Namespaces::find_or_add(const NamespaceName& name) {
  const auto hash = block::hash_namespace(name.tenant, as_bytes(name.fingerprint));
  const auto [at, added] = by_hash_.try_emplace(hash, 0);
  if (!added) return at->second;
  if (free_.empty()) {
    free_.push_back(static_cast<NamespaceHandle>(entries_.size()));
    entries_.emplace_back();
  }
  at->second = free_.back();
  free_.pop_back();
  NamespaceInfo& entry = entries_[at->second];
  entry.name = name;
  entry.hash = hash;
  entry.tenant = &tenants_->enter(name.tenant);
  entry.known = true;
  return at->second;
}

// Nobody names it any more.
void Namespaces::forget_unused(NamespaceHandle handle) {
  NamespaceInfo& entry = entries_[handle];
  if (entry.users > 0 || entry.holds > 0) return;
  by_hash_.erase(entry.hash);
  tenants_->leave(*entry.tenant);
  entry = NamespaceInfo();
  free_.push_back(handle);
}

Result<NamespaceHandle> Namespaces::open(const Namespace& ns, bool own) {
  if (auto checked = block::check_namespace(ns); !checked) return fail(checked.error());
  std::vector<GroupInfo> groups;
  for (const auto& schema : ns.groups) {
    groups.push_back(group_info(schema));
    if (groups.back().foreign.record_bytes() > record_bytes_max_)
      return fail(Code::kInvalid, "a record of this namespace is larger than a quarter of the pool or than a segment");
  }
  std::ranges::sort(groups, {}, [](const GroupInfo& info) { return info.schema.group; });

  const auto noted = by_hash_.find(block::hash_namespace(ns.tenant, as_bytes(ns.fingerprint)));
  const NamespaceInfo* const before = noted == by_hash_.end() ? nullptr : &entries_[noted->second];
  const bool open_already = before != nullptr && before->users > 0;
  // What is open stays as it is. What flash or pool hold of it counts, too: removals must stay writable for as long as
  // the segments live.
  const bool equal = before == nullptr || std::ranges::all_of(groups, [&](const GroupInfo& info) {
                       const GroupInfo* known = before->group(info.schema.group);
                       return known == nullptr ? reading_ || !open_already : known->schema == info.schema;
                     });
  const bool covers =
      before == nullptr || std::ranges::all_of(before->groups, [&](const GroupInfo& known) {
        return std::ranges::any_of(groups, [&](const auto& info) { return info.schema.group == known.schema.group; });
      });
  if (!equal || !covers)
    return fail(Code::kInvalid, "this namespace is stored with another schema: give it another fingerprint");
  const bool told = before != nullptr && before->groups.size() == groups.size();
  if (reading_ && !told && !own)
    return fail(Code::kUnavailable, "the depot is recovering: it has not read yet what it holds of this namespace");
  if (Status may = open_already ? Status{} : may_open(ns.tenant); !may) return fail(may.error());
  const NamespaceHandle handle = find_or_add({ns.tenant, ns.fingerprint});
  NamespaceInfo& entry = entries_[handle];
  if (entry.users++ > 0) return handle;
  ++opened_;
  entry.tenant->opened.add(1);
  for (GroupInfo& info : groups)
    if (entry.group(info.schema.group) == nullptr) entry.groups.push_back(std::move(info));
  return handle;
}

// One namespace more.
Status Namespaces::may_open(const std::string& tenant) const {
  if (opened_ == kOpenedMax) return fail(Code::kNoSpace, "65,535 namespaces are open: close some");
  TenantSpace* const space = tenants_->find(tenant);
  if (space == nullptr || space->opened.value() < space->quota.namespaces) return {};
  space->open_refused.add();
  return fail(Code::kNoSpace, "the tenant has as many namespaces open as it may: close some");
}

void Namespaces::close(NamespaceHandle handle) {
  KVD_CHECK(opened(handle));
  if (--entries_[handle].users > 0) return;
  --opened_;
  entries_[handle].tenant->opened.sub(1);
  forget_unused(handle);
}

Namespaces::Told Namespaces::learn(const NamespaceName& name, const GroupSchema& schema) {
  const NamespaceHandle handle = find_or_add(name);
  const GroupInfo* const known = entries_[handle].group(schema.group);
  if (known != nullptr) return {handle, known->schema == schema};
  entries_[handle].groups.push_back(group_info(schema));
  return {handle, true};
}

void Namespaces::hold(NamespaceHandle handle) {
  KVD_CHECK(known(handle));
  ++entries_[handle].holds;
}

void Namespaces::release(NamespaceHandle handle) {
  KVD_CHECK(known(handle) && entries_[handle].holds > 0);
  --entries_[handle].holds;
  forget_unused(handle);
}

}  // namespace kvd::store
