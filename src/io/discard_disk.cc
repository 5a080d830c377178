#include "io/discard_disk.h"

#include <linux/fs.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <span>
#include <utility>

#include "io/disk_file.h"
#include "io/workers.h"

namespace kvd::io {
namespace {

struct Discard {
  DiskOp* op;
  int error;
};

class DiscardDisk final : public Disk {
 public:
  DiscardDisk(Loop& loop, std::unique_ptr<Disk> engine, DiscardCall call)
      : engine_(std::move(engine)),
        call_(std::move(call)),
        thread_(
            loop, [this](Discard& discard) { discard.error = call_(discard.op->offset, discard.op->discard_bytes); },
            [this](Discard& discard) { finish(discard); }) {}

  Status start() { return thread_.start(1); }

  Status submit(DiskOp& op) override {
    if (op.kind != DiskOp::Kind::kDiscard) return engine_->submit(op);
    if (Status checked = check_discard(op, engine_->size(), false); !checked) return checked;
    if (discards_ == kDiscardsMax) return fail(Code::kBusy, "too many discards in flight");
    ++discards_;
    thread_.submit({&op, 0});
    return {};
  }

  void use_memory(std::span<std::byte> memory) override { engine_->use_memory(memory); }
  [[nodiscard]] std::uint64_t size() const noexcept override { return engine_->size(); }
  [[nodiscard]] std::uint32_t in_flight() const noexcept override { return engine_->in_flight() + discards_; }
  [[nodiscard]] bool discards() const noexcept override { return true; }
  [[nodiscard]] const char* engine() const noexcept override { return engine_->engine(); }

 private:
  void finish(const Discard& discard) {
    --discards_;
    auto on_done = std::move(discard.op->on_done);
    on_done(discard.error == 0 ? Status{} : fail(Code::kIo, "discard on the device", discard.error));
  }

  const std::unique_ptr<Disk> engine_;
  DiscardCall call_;  // the disk's thread, once it runs
  std::uint32_t discards_ = 0;
  Workers<Discard> thread_;  // last: it uses the call until it has ended
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
