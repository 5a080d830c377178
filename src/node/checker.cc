#include "node/checker.h"

#include <algorithm>
#include <utility>

namespace kvd::node {

std::size_t Checker::verify(const NamespaceUse& ns, std::span<const block::RecordId> ids, std::size_t bytes) {
  for (std::size_t verified = 0; verified < ids.size(); ++verified) {
    const std::size_t taken = at_once_.take(bytes);
    if (taken < bytes) {
      at_once_.give_back(taken);
      return verified;
    }
    store_.check(ns.handle(), ids[verified]);
  }
  return ids.size();
}

void Checker::enter(SharedNamespace ns, std::vector<block::RecordId> ids, ConnectionBudget::Taken share) {
  if (ids.empty()) return;
  std::ranges::reverse(ids);
  queue_.push_back({.ns = std::move(ns), .ids = std::move(ids), .share = std::move(share)});
  user_.enter();
}

void Checker::clear() noexcept {
  queue_.clear();
  user_.leave();
}

bool Checker::next() {
  Reports& reports = queue_.front();
  store_.check(reports.ns->handle(), reports.ids.back());
  reports.ids.pop_back();
  if (reports.ids.empty()) queue_.pop_front();
  return !queue_.empty();
}

}  // namespace kvd::node
