// Workers: threads that do what blocks for one loop, and hand it back to that loop. Internal to io.
//
// Belongs to its loop's thread. Jobs are begun in the order of their submission. Nothing here bounds how many wait: the
// owner does. The end waits for jobs under way and drops all others; they are not handed back.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "io/loop.h"

namespace kvd::io {

template <class Job>
class Workers {
 public:
  // `work` runs on the threads, on several at once where there are several; `on_done` on the loop's thread, where it
  // may end its Workers.
  Workers(Loop& loop, std::function<void(Job&)> work, std::function<void(Job&)> on_done)
      : loop_(loop), work_(std::move(work)), back_(std::make_shared<Back>(this, std::move(on_done))) {}
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  ~Workers() {
    back_->workers = nullptr;
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      queued_.clear();
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // kIo when not one of `count` threads can be had: fewer are slower, not wrong.
  Status start(std::uint32_t count) {
    threads_.reserve(count);
    try {
      while (threads_.size() < count) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error& error) {
      if (threads_.empty()) return fail(Code::kIo, "start a thread for the disk", error.code().value());
    }
    return {};
  }

  void submit(Job job) {
    {
      const std::lock_guard lock(mutex_);
      queued_.push_back(std::move(job));
    }
    wake_.notify_one();
  }

 private:
  // The way back to the loop. Owners: this and the completions that it has posted, which outlive it.
  struct Back {
    Workers* workers;  // null once they are gone; read and written on the loop's thread only
    const std::function<void(Job&)> on_done;
  };

  // One of the threads.
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopped_ || !queued_.empty(); });
      if (stopped_) return;
      Job job = std::move(queued_.front());
      queued_.pop_front();
      lock.unlock();
      work_(job);
      lock.lock();
      done_.push_back(std::move(job));
      if (stopped_ || done_.size() > 1) continue;  // what is first in done_ has posted
      loop_.post([back = back_] {
        if (back->workers != nullptr) back->workers->deliver();
      });
    }
  }

  // On the loop's thread.
  void deliver() {
    std::vector<Job> done;
    {
      const std::lock_guard lock(mutex_);
      done.swap(done_);
    }
    const std::shared_ptr<Back> back = back_;
    for (Job& job : done) {
      back->on_done(job);
      if (back->workers == nullptr) return;
    }
  }

  Loop& loop_;
  const std::function<void(Job&)> work_;
  const std::shared_ptr<Back> back_;
  std::vector<std::thread> threads_;

  std::mutex mutex_;  // guards the rest
  std::condition_variable wake_;
  std::deque<Job> queued_;
  std::vector<Job> done_;
  bool stopped_ = false;
};

}  // namespace kvd::io
