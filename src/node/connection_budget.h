// ConnectionBudget: what one connection may hold of one of the node's budgets. What it takes counts for its tenant,
// too, where there are any, of whom each has a part that the others leave to it. Owned by a session, or by what it
// leaves behind; belongs to the node's loop.
#pragma once

#include <cstdint>

#include "node/budget.h"
#include "node/tenant_parts.h"

namespace kvd::node {

class ConnectionBudget : public Budget {
 public:
  struct Taken {
    Budget::Share connection;
    TenantParts::Share tenant;
    Budget::Share node;
    explicit operator bool() const noexcept { return static_cast<bool>(node); }
    void release() { *this = {}; }
  };

  // `node` is borrowed.
  ConnectionBudget(std::uint64_t bytes_max, Budget& node) : Budget(bytes_max), node_(node) {}

  // Whose connection it is from now on. `parts` are the node's, of the same budget, and outlive what is taken.
  void set_tenant(TenantParts& parts, TenantParts::SharedOwn own) noexcept;
  // Whether so much more is within its tenant's part, which is there for its clients whatever others have.
  [[nodiscard]] bool is_within_part(std::uint64_t bytes) const noexcept {
    return own_ != nullptr && parts_->is_within_part(*own_, bytes);
  }
  // What is kept of the node's for other tenants.
  [[nodiscard]] std::uint64_t reserved() const noexcept;
  // Whether so much more may be taken, within the tenant's part or as of Budget::is_fair() of what is there for all.
  [[nodiscard]] bool is_fair(std::uint64_t bytes);
  // Of all three; empty when connection or node have no room.
  Taken take_of_all(std::uint64_t bytes);

 protected:
  [[nodiscard]] Budget& node() noexcept { return node_; }

 private:
  Budget& node_;
  TenantParts* parts_ = nullptr;
  TenantParts::SharedOwn own_;
};

}  // namespace kvd::node
