// NamespaceTable: the namespaces that a client has open. A NamespaceId is never used again. Any thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "block/key.h"
#include "block/schema.h"
#include "kvdepot/client.h"

namespace kvd::client {

inline constexpr std::size_t kNamespacesMax = 1024;  // open in one client; an engine has one, or a few epochs of one

class NamespaceTable {
 public:
  struct Entry {
    NamespaceId id = 0;
    Namespace ns;
    block::NamespaceHash hash;
    // Null when the namespace has no such group.
    [[nodiscard]] const GroupSchema* schema(std::uint16_t group) const noexcept;
  };
  // Owners: the table, and whoever makes a request or an OPEN of it at the moment.
  using SharedEntry = std::shared_ptr<const Entry>;

  // The id of `ns`; an equal one that is open keeps its id, and is to be closed once more. kInvalid: not a valid
  // namespace, or open with another schema. kNoSpace: kNamespacesMax are open.
  Result<NamespaceId> add(const Namespace& ns);
  // Takes one add() back; true: it was the last, the id is not known any more. kNotFound.
  Result<bool> close(NamespaceId id);
  // Null when there is no such id.
  [[nodiscard]] SharedEntry find(NamespaceId id) const;
  [[nodiscard]] std::vector<SharedEntry> all() const;

 private:
  struct Slot {
    SharedEntry entry;
    std::uint64_t opens = 0;
  };
  mutable std::mutex mutex_;
  std::map<NamespaceId, Slot> slots_;
  NamespaceId next_ = 1;
};

}  // namespace kvd::client
