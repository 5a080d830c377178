// DepotThread: an embedded depot's node on a thread of its own, and its end within a bounded time.
//
// A device that hangs keeps a node from ending: the kernel may still write into its buffers. Then the node, its memory
// and its thread are left behind; they go when the device answers, or with the process, and keep the directory locked
// until then. Started and ended by one caller.
#pragma once

#include <memory>

#include "base/log.h"
#include "base/result.h"
#include "io/loop.h"
#include "node/node.h"

namespace kvd::embed {

// What the thread owns. Ends in this order: node, loop, log.
struct Depot {
  std::unique_ptr<Log> log = std::make_unique<NullLog>();
  std::unique_ptr<io::Loop> loop;
  std::unique_ptr<node::Node> node;
};

struct DepotLimits {
  Duration drain = std::chrono::seconds(20);  // as `kvdepot serve` after SIGTERM: what is dirty then is lost
  Duration close = std::chrono::seconds(10);  // beyond it, for what is in flight: as long as a device may be silent
};

class DepotThread {
 public:
  // Runs the depot's loop. kNoSpace: there is no thread.
  static Result<std::unique_ptr<DepotThread>> start(std::unique_ptr<Depot> depot, const DepotLimits& limits);
  // Drains the node and ends it. Blocks for at most drain + close.
  ~DepotThread();
  DepotThread(const DepotThread&) = delete;
  DepotThread& operator=(const DepotThread&) = delete;

 private:
  struct State;
  DepotThread(std::shared_ptr<State> state, const DepotLimits& limits) : state_(std::move(state)), limits_(limits) {}

  std::shared_ptr<State> state_;  // owners: this and the thread, which may outlive it
  const DepotLimits limits_;
};

}  // namespace kvd::embed
