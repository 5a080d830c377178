#include "node/checker.h"

namespace kvd::node {

void Checker::report(const SharedNamespace& ns, const block::RecordId& id, std::uint64_t bytes, AtOnce& at_once) {
  if (bytes <= at_once.bytes) {
    at_once.bytes -= bytes;
    store_.check(ns->handle(), id);
    return;
  }
  at_once.bytes = 0;  // in order
  if (queue_.size() >= kQueuedMax) return;
  queue_.push_back({ns, id});
  if (!turn_.armed()) turn_.arm(loop_.now());
}

void Checker::next() {
  const Report report = queue_.front();
  queue_.pop_front();
  store_.check(report.ns->handle(), report.id);
  if (!queue_.empty()) turn_.arm(loop_.now());
}

}  // namespace kvd::node
