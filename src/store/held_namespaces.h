// HeldNamespaces: which namespaces a segment has something of, each once. Most have one; whoever may open a namespace
// may open thousands, for a record each. Value type, no locking.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <unordered_set>
#include <vector>

#include "store/namespaces.h"

namespace kvd::store {

class HeldNamespaces {
 public:
  static constexpr std::size_t kSearchedMax = 32;  // among so many it is looked for one by one
  static constexpr std::size_t kKeptMax = 1024;    // memory for so many is kept for the segment's next use

  // False where it is there.
  bool add(NamespaceHandle ns) {
    if (known_ != nullptr ? !known_->insert(ns).second : std::ranges::find(all_, ns) != all_.end()) return false;
    all_.push_back(ns);
    if (known_ == nullptr && all_.size() > kSearchedMax)
      known_ = std::make_unique<std::unordered_set<NamespaceHandle>>(all_.begin(), all_.end());
    return true;
  }
  void clear() {
    all_.clear();
    known_.reset();
    if (all_.capacity() > kKeptMax) std::vector<NamespaceHandle>().swap(all_);
  }
  [[nodiscard]] std::span<const NamespaceHandle> all() const noexcept { return all_; }

 private:
  std::vector<NamespaceHandle> all_;
  std::unique_ptr<std::unordered_set<NamespaceHandle>> known_;
};

}  // namespace kvd::store
