// NamespaceTable: the namespaces that a client has declared, in order; a NamespaceId is a position in it plus one.
// Entries are never removed or changed, so a reference stays good for the client's life. Any thread.
#pragma once

#include <deque>
#include <mutex>

#include "base/result.h"
#include "block/key.h"
#include "block/schema.h"
#include "kvdepot/client.h"

namespace kvd::client {

inline constexpr std::size_t kNamespacesMax = 1024;  // of one client; an engine has one, or a few epochs of one

class NamespaceTable {
 public:
  struct Entry {
    Namespace ns;
    block::NamespaceHash hash;
    // Null when the namespace has no such group.
    [[nodiscard]] const GroupSchema* schema(std::uint16_t group) const noexcept;
  };

  // The id of `ns`; an equal one that is known already keeps its id. kInvalid: not a valid namespace, or known with
  // another schema. kNoSpace: kNamespacesMax are declared.
  Result<NamespaceId> add(const Namespace& ns);
  // Null when there is no such id.
  [[nodiscard]] const Entry* find(NamespaceId id) const;
  [[nodiscard]] std::size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::deque<Entry> entries_;
};

}  // namespace kvd::client
