#include "client/namespace_table.h"

namespace kvd::client {

const GroupSchema* NamespaceTable::Entry::schema(std::uint16_t group) const noexcept {
  for (const GroupSchema& candidate : ns.groups) {
    if (candidate.group == group) return &candidate;
  }
  return nullptr;
}

Result<NamespaceId> NamespaceTable::add(const Namespace& ns) {
  if (Status checked = block::check_namespace(ns); !checked) return fail(checked.error());
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Namespace& known = entries_[i].ns;
    if (known.tenant != ns.tenant || known.fingerprint != ns.fingerprint) continue;
    if (known.groups == ns.groups) return static_cast<NamespaceId>(i + 1);
    return fail(Code::kInvalid, "the namespace is open with another schema");
  }
  if (entries_.size() >= kNamespacesMax) return fail(Code::kNoSpace, "too many namespaces are open");
  entries_.push_back({.ns = ns, .hash = block::hash_namespace(ns.tenant, as_bytes(ns.fingerprint))});
  return static_cast<NamespaceId>(entries_.size());
}

const NamespaceTable::Entry* NamespaceTable::find(NamespaceId id) const {
  const std::lock_guard lock(mutex_);
  return id == 0 || id > entries_.size() ? nullptr : &entries_[id - 1];
}

std::size_t NamespaceTable::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace kvd::client
