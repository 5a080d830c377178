#include "store/sync_queue.h"

#include <utility>

namespace kvd::store {

void SyncQueue::request(Done done) {
  waiting_.push_back(std::move(done));
  if (!running_) start();
}

void SyncQueue::start() {
  running_ = true;
  finishing_.swap(waiting_);
  if (begins_) begins_();
  op_.kind = io::DiskOp::Kind::kSync;
  op_.on_done = [this](Status status) { finish(status); };
  device_.submit(op_);
}

void SyncQueue::give_up() {
  for (auto* list : {&finishing_, &waiting_})
    for (auto& callback : std::exchange(*list, {})) callback(tier_is_off());
}

void SyncQueue::finish(Status status) {
  telling_.swap(finishing_);
  running_ = false;
  // Nobody knows what the flush of a device that went off meanwhile has covered.
  if (!device_.health.on()) {
    status = tier_is_off();
  } else if (ends_) {
    ends_(status.has_value());
  }
  if (!waiting_.empty()) start();
  for (auto& callback : telling_) callback(status);
  telling_.clear();
}

}  // namespace kvd::store
