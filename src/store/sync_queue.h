// SyncQueue: flushes of the device, shared: whoever asks while one is running waits for the next one together with
// everybody else, so that any number of waiting acknowledgements costs at most two flushes.
//
// Who waits: puts that ask for `synced`, removals, new headers, and segments that are to get their footers.
//
// One for a device. Belongs to the store's loop. Bounded by its callers, which bound what they have waiting.
#pragma once

#include <functional>
#include <vector>

#include "base/result.h"
#include "store/flash_device.h"

namespace kvd::store {

class SyncQueue {
 public:
  using Done = std::move_only_function<void(Status)>;

  static constexpr std::size_t kReserved = 1024;  // that wait at once, for which memory is taken at start

  explicit SyncQueue(FlashDevice& device) : device_(device) {
    for (auto* list : {&waiting_, &finishing_, &telling_}) list->reserve(kReserved);
  }

  // Called when a flush is submitted, and when it has ended and the device is on, before those that waited for it are
  // told. Must not request one.
  void on_flush(std::function<void()> begins, std::function<void(bool ok)> ends) {
    begins_ = std::move(begins);
    ends_ = std::move(ends);
  }
  // Calls `done` from the loop when everything that had completed before this call is durable, or with kIo. A failed
  // flush is never repeated on its own: the kernel may have dropped the pages it could not write.
  void request(Done done);
  // Tells all who wait kIo, from inside: the device may never answer.
  void give_up();

 private:
  void start();
  void finish(Status status);

  FlashDevice& device_;
  io::DiskOp op_;
  bool running_ = false;
  std::function<void()> begins_;
  std::function<void(bool)> ends_;
  std::vector<Done> waiting_;    // for the next flush
  std::vector<Done> finishing_;  // for the one that runs
  std::vector<Done> telling_;    // for the one that has ended, while they are told
};

}  // namespace kvd::store
