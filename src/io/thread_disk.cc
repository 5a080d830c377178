#include "io/thread_disk.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "io/sanitizer.h"
#include "io/workers.h"

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
      : file_(std::move(file)),
        depth_max_(depth_max),
        threads_(
            loop, [this](Transfer& transfer) { transfer_now(file_.fd.get(), transfer); },
            [this](Transfer& transfer) { finish(transfer); }) {}

  Status start() { return threads_.start(std::min(kThreadsMax, depth_max_)); }

  Status submit(DiskOp& op) override {
    if (Status checked = check_op(op, file_.bytes, file_.read_only); !checked) return checked;
    if (in_flight_ == depth_max_) return fail(Code::kBusy, "too many disk operations in flight");
    ++in_flight_;
    buffers_lent(op.buffers, op.kind == DiskOp::Kind::kRead, &op);
    threads_.submit(Transfer(op));
    return {};
  }

  [[nodiscard]] std::uint64_t size() const noexcept override { return file_.bytes; }
  [[nodiscard]] std::uint32_t in_flight() const noexcept override { return in_flight_; }
  [[nodiscard]] const char* engine() const noexcept override { return "threads"; }

 private:
  void finish(Transfer& transfer) {
    DiskOp& op = transfer.op();
    buffers_returned(op.buffers, op.kind == DiskOp::Kind::kRead, &op);
    --in_flight_;
    auto on_done = std::move(op.on_done);
    on_done(transfer.status());  // may destroy the disk
  }

  const DiskFile file_;
  const std::uint32_t depth_max_;
  std::uint32_t in_flight_ = 0;
  Workers<Transfer> threads_;  // last: they use the file until they have ended
};

}  // namespace

Result<std::unique_ptr<Disk>> make_thread_disk(Loop& loop, DiskFile file, std::uint32_t depth_max) {
  auto disk = std::make_unique<ThreadDisk>(loop, std::move(file), depth_max);
  if (const Status started = disk->start(); !started) return fail(started.error());
  return disk;
}

}  // namespace kvd::io
