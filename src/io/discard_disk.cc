#include "io/discard_disk.h"

#include <linux/fs.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "io/disk_file.h"

namespace kvd::io {
namespace {

class DiscardDisk final : public Disk {
 public:
  DiscardDisk(Loop& loop, std::unique_ptr<Disk> engine, DiscardCall discard)
      : loop_(loop),
        engine_(std::move(engine)),
        discard_(std::move(discard)),
        self_(std::make_shared<DiscardDisk*>(this)) {}

  ~DiscardDisk() override {
    *self_ = nullptr;
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  Status start() {
    try {
      thread_ = std::thread([this] { serve(); });
    } catch (const std::system_error& error) {
      return fail(Code::kIo, "start a thread for discards", error.code().value());
    }
    return {};
  }

  Status submit(DiskOp& op) override {
    if (op.kind != DiskOp::Kind::kDiscard) return engine_->submit(op);
    if (Status checked = check_discard(op, engine_->size(), false); !checked) return checked;
    if (discards_ == kDiscardsMax) return fail(Code::kBusy, "too many discards in flight");
    ++discards_;
    {
      const std::lock_guard lock(mutex_);
      queued_.push_back(&op);
    }
    wake_.notify_one();
    return {};
  }

  void use_memory(std::span<std::byte> memory) override { engine_->use_memory(memory); }
  [[nodiscard]] std::uint64_t size() const noexcept override { return engine_->size(); }
  [[nodiscard]] std::uint32_t in_flight() const noexcept override { return engine_->in_flight() + discards_; }
  [[nodiscard]] bool discards() const noexcept override { return true; }
  [[nodiscard]] const char* engine() const noexcept override { return engine_->engine(); }

 private:
  struct Done {
    DiskOp* op;
    int error;
  };

  // The disk's thread.
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopped_ || !queued_.empty(); });
      if (stopped_) return;
      DiskOp* op = queued_.front();
      queued_.pop_front();
      lock.unlock();
      const int error = discard_(op->offset, op->discard_bytes);
      lock.lock();
      done_.push_back({op, error});
      if (stopped_ || done_.size() > 1) continue;  // what is first in done_ has posted
      loop_.post([self = self_] {
        if (*self != nullptr) (*self)->deliver();
      });
    }
  }

  // On the loop's thread.
  void deliver() {
    std::vector<Done> done;
    {
      const std::lock_guard lock(mutex_);
      done.swap(done_);
    }
    const std::shared_ptr<DiscardDisk*> self = self_;
    for (const auto& [op, error] : done) {
      --discards_;
      auto on_done = std::move(op->on_done);
      on_done(error == 0 ? Status{} : fail(Code::kIo, "discard on the device", error));
      if (*self == nullptr) return;  // the callback destroyed the disk
    }
  }

  // The loop's thread.
  Loop& loop_;
  const std::unique_ptr<Disk> engine_;
  DiscardCall discard_;  // the disk's thread, once it runs
  std::uint32_t discards_ = 0;
  // Owners: the disk and the completions it has posted, which outlive it; null once it is gone. Read and written on the
  // loop's thread only.
  const std::shared_ptr<DiscardDisk*> self_;
  std::thread thread_;

  std::mutex mutex_;  // guards the rest
  std::condition_variable wake_;
  std::deque<DiskOp*> queued_;
  std::vector<Done> done_;
  bool stopped_ = false;
};

}  // namespace

DiscardCall device_discard(UniqueFd fd) {
  return [fd = std::move(fd)](std::uint64_t offset, std::uint64_t bytes) {
    std::uint64_t range[2] = {offset, bytes};
    while (::ioctl(fd.get(), BLKDISCARD, range) != 0)
      if (errno != EINTR) return errno;
    return 0;
  };
}

Result<std::unique_ptr<Disk>> make_discard_disk(Loop& loop, std::unique_ptr<Disk> engine, DiscardCall discard) {
  auto disk = std::make_unique<DiscardDisk>(loop, std::move(engine), std::move(discard));
  if (const Status started = disk->start(); !started) return fail(started.error());
  return disk;
}

}  // namespace kvd::io
