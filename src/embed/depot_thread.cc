#include "embed/depot_thread.h"

#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace kvd::embed {

struct DepotThread::State {
  std::unique_ptr<Depot> depot;  // the thread's, once it runs
  std::thread thread;            // the owner's
  std::mutex mutex;              // guards ended
  std::condition_variable changed;
  bool ended = false;

  void run() {
    depot->loop->run();
    depot->node.reset();
    depot.reset();
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  }
};

Result<std::unique_ptr<DepotThread>> DepotThread::start(std::unique_ptr<Depot> depot, const DepotLimits& limits) {
  auto state = std::make_shared<State>();
  state->depot = std::move(depot);
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Status started;
  try {
    state->thread = std::thread([state] { state->run(); });
    ::pthread_setname_np(state->thread.native_handle(), "kvd-depot");
  } catch (const std::system_error& error) {
    started = fail(Code::kNoSpace, "start the embedded depot's thread", error.code().value());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started) return fail(started.error());
  return std::unique_ptr<DepotThread>(new DepotThread(std::move(state), limits));
}

DepotThread::~DepotThread() {
  Depot& depot = *state_->depot;  // there until the loop has been told to stop
  depot.loop->post([&depot, limit = limits_.drain] { depot.node->drain(limit, [&depot] { depot.loop->stop(); }); });
  std::unique_lock lock(state_->mutex);
  const bool ended = state_->changed.wait_for(lock, limits_.drain + limits_.close, [this] { return state_->ended; });
  lock.unlock();
  ended ? state_->thread.join() : state_->thread.detach();
}

}  // namespace kvd::embed
