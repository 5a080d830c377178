// NamespaceUse: a namespace that somebody has open on the store; closed when the last one lets go of it.
#pragma once

#include <memory>

#include "store/store.h"

namespace kvd::node {

class NamespaceUse {
 public:
  // Takes over one open_namespace(). The store outlives it.
  NamespaceUse(store::Store& store, store::NamespaceHandle handle) : store_(store), handle_(handle) {}
  ~NamespaceUse() { store_.close_namespace(handle_); }
  NamespaceUse(const NamespaceUse&) = delete;
  NamespaceUse& operator=(const NamespaceUse&) = delete;
  [[nodiscard]] store::NamespaceHandle handle() const noexcept { return handle_; }

 private:
  store::Store& store_;
  const store::NamespaceHandle handle_;
};

// Owners: a session, for as long as its client has the namespace open; each of its operations; reports that wait.
using SharedNamespace = std::shared_ptr<const NamespaceUse>;

}  // namespace kvd::node
