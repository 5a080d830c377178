// SubmitStack: hands ops with new commands from callers to the I/O thread. Push is one compare-and-swap, take is one
// exchange; an op is in it at most once, so it is bounded by the op table and never allocates.
#pragma once

#include <atomic>

#include "client/op.h"

namespace kvd::client {

class SubmitStack {
 public:
  // Adds `command` to the op's commands and queues the op unless it is queued already. Any thread. True when the
  // stack was empty: whoever gets true wakes the I/O thread.
  bool push(Op& op, Op::Command command) noexcept {
    if (op.commands.fetch_or(command, std::memory_order_acq_rel) != 0) return false;
    Op* head = head_.load(std::memory_order_relaxed);
    do {
      op.next_submitted = head;
    } while (!head_.compare_exchange_weak(head, &op, std::memory_order_acq_rel, std::memory_order_relaxed));
    return head == nullptr;
  }

  // Takes all queued ops, calling run(op, commands) in the order in which they were pushed. I/O thread only.
  template <class F>
  void take_all(F&& run) {
    Op* newest = head_.exchange(nullptr, std::memory_order_acq_rel);
    Op* oldest = nullptr;
    while (newest != nullptr) {
      Op* const next = newest->next_submitted;
      newest->next_submitted = oldest;
      oldest = newest;
      newest = next;
    }
    while (oldest != nullptr) {
      Op& op = *oldest;
      oldest = op.next_submitted;  // before the commands are taken: from then on the op can be pushed again
      run(op, op.commands.exchange(0, std::memory_order_acq_rel));
    }
  }

 private:
  std::atomic<Op*> head_{nullptr};
};

}  // namespace kvd::client
