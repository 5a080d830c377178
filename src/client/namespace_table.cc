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
  for (auto& [id, slot] : slots_) {
    const Namespace& known = slot.entry->ns;
    if (known.tenant != ns.tenant || known.fingerprint != ns.fingerprint) continue;
    if (known.groups != ns.groups) return fail(Code::kInvalid, "the namespace is open with another schema");
    ++slot.opens;
    return id;
  }
  if (slots_.size() >= kNamespacesMax) return fail(Code::kNoSpace, "1,024 namespaces are open: close some");
  const NamespaceId id = next_++;
  const auto hash = block::hash_namespace(ns.tenant, as_bytes(ns.fingerprint));
  slots_[id] = {.entry = std::make_shared<const Entry>(Entry{.id = id, .ns = ns, .hash = hash}), .opens = 1};
  return id;
}

Result<bool> NamespaceTable::close(NamespaceId id) {
  const std::lock_guard lock(mutex_);
  const auto found = slots_.find(id);
  if (found == slots_.end()) return fail(Code::kNotFound, "no such namespace");
  if (--found->second.opens > 0) return false;
  slots_.erase(found);
  return true;
}

NamespaceTable::SharedEntry NamespaceTable::find(NamespaceId id) const {
  const std::lock_guard lock(mutex_);
  const auto found = slots_.find(id);
  return found == slots_.end() ? nullptr : found->second.entry;
}

std::vector<NamespaceTable::SharedEntry> NamespaceTable::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<SharedEntry> entries;
  entries.reserve(slots_.size());
  for (const auto& [id, slot] : slots_) entries.push_back(slot.entry);
  return entries;
}

}  // namespace kvd::client
