#include "node/checker.h"

#include <utility>

namespace kvd::node {

std::size_t Checker::verify(const NamespaceUse& ns, std::span<const block::RecordId> ids, std::size_t bytes) {
  if (user_.waits()) return 0;
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

void Checker::enter(SharedNamespace ns, std::span<const block::RecordId> ids, std::size_t bytes,
                    ConnectionBudget::Taken share) {
  if (ids.empty()) return;
  queue_.push_back(
      {.ns = std::move(ns), .ids = {ids.begin(), ids.end()}, .bytes = bytes, .next = 0, .share = std::move(share)});
  user_.enter();
}

void Checker::clear() noexcept {
  queue_.clear();
  user_.leave();
}

bool Checker::next() {
  Reports& reports = queue_.front();
  for (std::size_t bytes = 0; reports.next < reports.ids.size() && bytes < kSliceBytes; bytes += reports.bytes)
    store_.check(reports.ns->handle(), reports.ids[reports.next++]);
  if (reports.next == reports.ids.size()) queue_.pop_front();
  return !queue_.empty();
}

}  // namespace kvd::node
