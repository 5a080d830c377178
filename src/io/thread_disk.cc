#include "io/thread_disk.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "io/sanitizer.h"

namespace kvd::io {
namespace {

// Enough to keep an NVMe drive busy at requests of 256 KiB and more (its bandwidth is reached at a depth of about 16).
constexpr std::uint32_t kThreadsMax = 16;

// Transfers all of `transfer` on the calling thread.
void transfer_now(int fd, Transfer& transfer) {
  for (;;) {
    std::int64_t result = 0;
    const DiskOp& op = transfer.op();
    if (op.kind == DiskOp::Kind::kSync) {
      result = ::fdatasync(fd);
    } else {
      iovec rest{};
      const std::span<const iovec> piece = transfer.piece(rest);
      const auto offset = static_cast<off_t>(transfer.offset());
      const auto count = static_cast<int>(piece.size());
      result = op.kind == DiskOp::Kind::kRead ? ::preadv(fd, piece.data(), count, offset)
                                              : ::pwritev(fd, piece.data(), count, offset);
    }
    if (transfer.advance(result < 0 ? -errno : result) == Transfer::Step::kDone) return;
  }
}

class ThreadDisk final : public Disk {
 public:
  ThreadDisk(Loop& loop, DiskFile file, std::uint32_t depth_max)
      : loop_(loop), file_(std::move(file)), depth_max_(depth_max), self_(std::make_shared<ThreadDisk*>(this)) {}

  ~ThreadDisk() override {
    *self_ = nullptr;
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      queued_.clear();
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Status start() {
    const std::uint32_t count = std::min(kThreadsMax, depth_max_);
    threads_.reserve(count);
    try {
      while (threads_.size() < count) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error& error) {
      // Fewer threads are slower, not wrong.
      if (threads_.empty()) return fail(Code::kIo, "start a thread for the disk", error.code().value());
    }
    return {};
  }

  Status submit(DiskOp& op) override {
    if (Status checked = check_op(op, file_.bytes, file_.read_only); !checked) return checked;
    if (in_flight_ == depth_max_) return fail(Code::kBusy, "too many disk operations in flight");
    ++in_flight_;
    buffers_lent(op.buffers, op.kind == DiskOp::Kind::kRead, &op);
    {
      const std::lock_guard lock(mutex_);
      queued_.emplace_back(op);
    }
    wake_.notify_one();
    return {};
  }

  [[nodiscard]] std::uint64_t size() const noexcept override { return file_.bytes; }
  [[nodiscard]] std::uint32_t in_flight() const noexcept override { return in_flight_; }
  [[nodiscard]] const char* engine() const noexcept override { return "threads"; }

 private:
  // A thread of the pool.
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopped_ || !queued_.empty(); });
      if (stopped_) return;
      Transfer transfer = std::move(queued_.front());
      queued_.pop_front();
      lock.unlock();
      transfer_now(file_.fd.get(), transfer);
      lock.lock();
      done_.push_back(std::move(transfer));
      if (stopped_ || done_.size() > 1) continue;  // what is first in done_ has posted
      loop_.post([self = self_] {
        if (*self != nullptr) (*self)->deliver();
      });
    }
  }

  // On the loop's thread.
  void deliver() {
    std::vector<Transfer> done;
    {
      const std::lock_guard lock(mutex_);
      done.swap(done_);
    }
    const std::shared_ptr<ThreadDisk*> self = self_;
    for (Transfer& transfer : done) {
      DiskOp& op = transfer.op();
      buffers_returned(op.buffers, op.kind == DiskOp::Kind::kRead, &op);
      --in_flight_;
      auto on_done = std::move(op.on_done);
      on_done(transfer.status());
      if (*self == nullptr) return;  // the callback destroyed the disk
    }
  }

  // The loop's thread.
  Loop& loop_;
  const DiskFile file_;
  const std::uint32_t depth_max_;
  std::uint32_t in_flight_ = 0;
  std::vector<std::thread> threads_;
  // Owners: the disk and the completions it has posted, which outlive it; null once it is gone. Read and written on the
  // loop's thread only.
  const std::shared_ptr<ThreadDisk*> self_;

  std::mutex mutex_;  // guards the rest
  std::condition_variable wake_;
  std::deque<Transfer> queued_;
  std::vector<Transfer> done_;
  bool stopped_ = false;
};

}  // namespace

Result<std::unique_ptr<Disk>> make_thread_disk(Loop& loop, DiskFile file, std::uint32_t depth_max) {
  auto disk = std::make_unique<ThreadDisk>(loop, std::move(file), depth_max);
  if (const Status started = disk->start(); !started) return fail(started.error());
  return disk;
}

}  // namespace kvd::io
