#include "io/uring_disk.h"

#include <liburing.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error_text.h"
#include "io/sanitizer.h"

namespace kvd::io {
namespace {

// Completions copied out of the ring at a time, before their callbacks run.
constexpr std::uint32_t kReapBatch = 64;
// When the kernel has no memory for a request or its completion queue is full, submission is tried again after this.
// The same for a look at work that seems to be deferred and is not found.
constexpr Duration kRetryDelay = Millis(1);

class UringDisk final : public Disk {
 public:
  UringDisk(Loop& loop, Log& log, DiskFile file, Uring ring, std::uint32_t depth_max, std::uint64_t buffer_bytes)
      : log_(log),
        file_(std::move(file)),
        depth_max_(depth_max),
        buffer_bytes_(buffer_bytes),
        ring_(std::make_unique<Uring>(std::move(ring))),
        flush_(loop, [this] { flush(); }),
        look_again_(loop, [this] { reap(); }),
        register_(loop, [this] { register_memory(); }),
        watch_(loop, [this](std::uint32_t) { reap(); }),
        slots_(depth_max) {
    free_.reserve(depth_max);
    queued_.reserve(depth_max);
    for (std::uint32_t slot = depth_max; slot > 0; --slot) free_.push_back(slot - 1);
  }

  ~UringDisk() override {
    if (gone_ != nullptr) *gone_ = true;
    watch_.stop();
    wait_for_kernel();
    ::flock(file_.fd.get(), LOCK_UN);  // the ring keeps the file for a while
  }

  Status submit(DiskOp& op) override {
    if (Status checked = check_op(op, file_.bytes, file_.read_only); !checked) return checked;
    if (free_.empty()) return fail(Code::kBusy, "too many disk operations in flight");
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    slots_[slot] = Slot{.transfer = Transfer(op), .used = true};
    queue(slot);
    buffers_lent(op.buffers, op.kind == DiskOp::Kind::kRead, &op);
    return {};
  }

  void use_memory(std::span<std::byte> memory) override {
    KVD_CHECK(memory_.empty());
    memory_ = memory;
    register_.arm(Time::min());
  }

  [[nodiscard]] std::uint64_t size() const noexcept override { return file_.bytes; }
  [[nodiscard]] std::uint32_t in_flight() const noexcept override {
    return depth_max_ - static_cast<std::uint32_t>(free_.size());
  }
  [[nodiscard]] const char* engine() const noexcept override { return "io_uring"; }

 private:
  struct Slot {
    Transfer transfer;
    iovec rest{};       // of a buffer that a short transfer ended in
    bool used = false;  // queued, in the submission ring or in the kernel
  };
  struct Completion {
    std::uint32_t slot;
    std::int32_t result;
  };

  void queue(std::uint32_t slot);
  void flush();
  [[nodiscard]] bool ready();
  void move_to_this_thread();
  void prepare(io_uring_sqe& sqe, std::uint32_t slot);
  void prepare_transfer(io_uring_sqe& sqe, Slot& slot);
  void register_memory();
  // The registered buffer that `part` lies in; nothing when it lies in none, or in two.
  [[nodiscard]] std::optional<int> buffer_of(const iovec& part) const;
  [[nodiscard]] bool enter();
  void reap();
  [[nodiscard]] bool run_completions();
  [[nodiscard]] bool finish(std::uint32_t slot, const Status& status);
  void fail_all(const Error& error);
  void give_up_ring();
  void wait_for_kernel();

  Log& log_;
  const DiskFile file_;
  const std::uint32_t depth_max_;
  const std::uint64_t buffer_bytes_;  // of memory_, registered as one
  std::unique_ptr<Uring> ring_;       // null after it failed, until the next flush
  bool enabled_ = false;              // ring_ belongs to a thread and is watched
  std::uint32_t in_kernel_ = 0;       // submitted and not reaped
  Timer flush_;                       // armed while something is queued
  Timer look_again_;                  // see reap()
  Timer register_;                    // armed while memory is to be registered
  std::span<std::byte> memory_;       // of use_memory(); empty when it cannot be registered
  std::uint64_t registered_ = 0;      // bytes of it, from the start, in ring_
  Watch watch_;                       // of the ring's eventfd
  std::vector<Slot> slots_;           // index = io_uring's user data
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> queued_;  // in order of submission
  bool* gone_ = nullptr;               // set while callbacks run: they may destroy the disk
};

void UringDisk::queue(std::uint32_t slot) {
  queued_.push_back(slot);
  if (!flush_.armed()) flush_.arm(Time::min());
}

// Timer: hands everything that was queued in this turn to the kernel with one system call.
void UringDisk::flush() {
  if (!ready()) return;
  std::size_t prepared = 0;
  while (prepared < queued_.size()) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_->ring());
    if (sqe != nullptr) {
      prepare(*sqe, queued_[prepared++]);
      continue;
    }
    // The ring is full with what an earlier flush could not submit: make room.
    queued_.erase(queued_.begin(), queued_.begin() + static_cast<std::ptrdiff_t>(std::exchange(prepared, 0)));
    if (!enter()) return;
  }
  queued_.clear();
  (void)enter();
}

// Makes sure of a ring that belongs to this thread and is watched; otherwise fails all operations and returns false.
bool UringDisk::ready() {
  if (enabled_) return true;
  if (ring_ == nullptr) {
    Result<Uring> ring = Uring::create(file_.fd.get(), depth_max_);
    if (!ring) {
      fail_all(ring.error());
      return false;
    }
    ring_ = std::make_unique<Uring>(std::move(*ring));
  }
  Status started = ring_->enable();
  if (started) started = watch_.start(ring_->wake_fd(), Watch::kRead);
  if (!started) {
    give_up_ring();
    fail_all(started.error());
    return false;
  }
  enabled_ = true;
  if (!memory_.empty()) register_.arm(Time::min());
  return true;
}

// Timer: the next part of memory_. Operations go on meanwhile, and begin to use what is registered.
void UringDisk::register_memory() {
  if (!enabled_ || registered_ >= memory_.size()) return;  // without a ring ready() comes back to it
  const std::uint64_t count = (memory_.size() - 1) / buffer_bytes_ + 1;
  Status done = count > kRegisteredMax ? fail(Code::kIo, "register so much memory", E2BIG) : Status();
  if (done && registered_ == 0) done = ring_->begin_buffers(static_cast<std::uint32_t>(count));
  if (done) {
    const std::uint64_t bytes = std::min(buffer_bytes_, memory_.size() - registered_);
    done =
        ring_->set_buffer(static_cast<std::uint32_t>(registered_ / buffer_bytes_), memory_.subspan(registered_, bytes));
    if (done) registered_ += bytes;
  }
  if (!done && done.error().sys_errno == EEXIST) {  // the loop runs on another thread than before
    move_to_this_thread();
  } else if (!done) {
    log_.info(fmt::format("disk: {} of {} MiB of memory are registered with io_uring ({}), which only costs speed",
                          registered_ >> 20, memory_.size() >> 20, error_text(done.error())));
    memory_ = memory_.first(registered_);
  } else if (registered_ < memory_.size()) {
    register_.arm(Time::min());
  }
}

std::optional<int> UringDisk::buffer_of(const iovec& part) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(part.iov_base) - reinterpret_cast<std::uintptr_t>(memory_.data());
  if (begin >= registered_ || part.iov_len > registered_ - begin) return std::nullopt;
  const std::uint64_t index = begin / buffer_bytes_;
  if ((begin + part.iov_len - 1) / buffer_bytes_ != index) return std::nullopt;
  return static_cast<int>(index);
}

// The loop runs on another thread than before, from which io_uring takes nothing: start all over in a new ring.
void UringDisk::move_to_this_thread() {
  give_up_ring();
  queued_.clear();
  for (std::uint32_t slot = 0; slot < depth_max_; ++slot) {
    if (slots_[slot].used) queue(slot);
  }
}

void UringDisk::prepare(io_uring_sqe& sqe, std::uint32_t slot) {
  if (slots_[slot].transfer.op().kind == DiskOp::Kind::kSync) {
    io_uring_prep_fsync(&sqe, Uring::kFileIndex, IORING_FSYNC_DATASYNC);
  } else {
    prepare_transfer(sqe, slots_[slot]);
  }
  io_uring_sqe_set_flags(&sqe, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(&sqe, slot);
}

void UringDisk::prepare_transfer(io_uring_sqe& sqe, Slot& slot) {
  constexpr int kFile = Uring::kFileIndex;
  const bool read = slot.transfer.op().kind == DiskOp::Kind::kRead;
  const std::span<const iovec> piece = slot.transfer.piece(slot.rest);
  const std::uint64_t offset = slot.transfer.offset();
  const auto count = static_cast<unsigned>(piece.size());
  if (count > 1) {
    read ? io_uring_prep_readv(&sqe, kFile, piece.data(), count, offset)
         : io_uring_prep_writev(&sqe, kFile, piece.data(), count, offset);
    return;
  }
  void* const base = piece[0].iov_base;
  const auto bytes = static_cast<unsigned>(piece[0].iov_len);
  if (const std::optional<int> buffer = buffer_of(piece[0])) {
    read ? io_uring_prep_read_fixed(&sqe, kFile, base, bytes, offset, *buffer)
         : io_uring_prep_write_fixed(&sqe, kFile, base, bytes, offset, *buffer);
  } else {
    read ? io_uring_prep_read(&sqe, kFile, base, bytes, offset) : io_uring_prep_write(&sqe, kFile, base, bytes, offset);
  }
}

// Submits what is in the ring. False when it could not, and then it has arranged for what follows: a later flush, a new
// ring, or the failure of all operations (after which this disk may be gone).
bool UringDisk::enter() {
  while (io_uring_sq_ready(&ring_->ring()) > 0) {
    const int result = io_uring_submit(&ring_->ring());
    if (result >= 0) {
      in_kernel_ += static_cast<std::uint32_t>(result);
    } else if (result == -EAGAIN || result == -EBUSY || result == -ENOMEM) {
      flush_.arm_in(kRetryDelay);
      return false;
    } else if (result == -EEXIST) {
      move_to_this_thread();
      return false;
    } else if (result != -EINTR) {
      give_up_ring();
      fail_all(Error{Code::kIo, -result, "submit to io_uring"});
      return false;
    }
  }
  return true;
}

// Watch: the ring has completions, or work that makes some once we ask for it.
void UringDisk::reap() {
  bool gone = false;
  gone_ = &gone;
  for (;;) {
    if (io_uring_get_events(&ring_->ring()) == -EEXIST) {
      move_to_this_thread();
      break;
    }
    // Between the two: making completions signals them, and what comes from here on either signals again or shows in
    // more_deferred().
    ring_->clear_wake();
    const std::uint32_t before = in_kernel_;
    if (!run_completions()) return;
    if (in_kernel_ == 0 || !ring_->more_deferred()) break;
    // The kernel puts work into its list first and sets the flag after that. Where it is interrupted between the two we
    // may take the work before, and the flag stays set with nothing behind it: what comes next will signal. Only work
    // that makes no completion could be left.
    if (in_kernel_ == before) {
      look_again_.arm_in(kRetryDelay);
      break;
    }
  }
  gone_ = nullptr;
}

// Takes all completions out of the ring and runs their callbacks. False when one destroyed the disk. gone_ is set.
bool UringDisk::run_completions() {
  for (;;) {
    std::array<io_uring_cqe*, kReapBatch> cqes;
    std::array<Completion, kReapBatch> batch;
    const unsigned count = io_uring_peek_batch_cqe(&ring_->ring(), cqes.data(), kReapBatch);
    for (unsigned i = 0; i < count; ++i) {
      batch[i] = {static_cast<std::uint32_t>(io_uring_cqe_get_data64(cqes[i])), cqes[i]->res};
    }
    io_uring_cq_advance(&ring_->ring(), count);
    in_kernel_ -= count;
    for (unsigned i = 0; i < count; ++i) {
      Transfer& transfer = slots_[batch[i].slot].transfer;
      if (transfer.advance(batch[i].result) == Transfer::Step::kAgain) {
        queue(batch[i].slot);
      } else if (!finish(batch[i].slot, transfer.status())) {
        return false;
      }
    }
    if (count < kReapBatch) return true;
  }
}

// Runs the operation's callback; false when it destroyed the disk. gone_ is set.
bool UringDisk::finish(std::uint32_t slot, const Status& status) {
  DiskOp& op = slots_[slot].transfer.op();
  const Status result = status;
  slots_[slot].used = false;
  free_.push_back(slot);
  buffers_returned(op.buffers, op.kind == DiskOp::Kind::kRead, &op);
  const bool* gone = gone_;
  auto on_done = std::move(op.on_done);
  on_done(result);
  return !*gone;
}

// There is no ring, and none can be had: every operation fails.
void UringDisk::fail_all(const Error& error) {
  KVD_CHECK(!enabled_ && in_kernel_ == 0);
  std::vector<std::uint32_t> failed;
  for (std::uint32_t slot = 0; slot < depth_max_; ++slot) {
    if (slots_[slot].used) failed.push_back(slot);
  }
  queued_.clear();
  flush_.disarm();
  bool gone = false;
  gone_ = &gone;
  for (const std::uint32_t slot : failed) {
    if (!finish(slot, fail(error))) return;
  }
  gone_ = nullptr;
}

// Closes the ring; what is in the kernel ends, unobserved, before this returns.
void UringDisk::give_up_ring() {
  watch_.stop();
  look_again_.disarm();
  register_.disarm();
  enabled_ = false;
  registered_ = 0;  // the next ring begins anew
  if (std::exchange(in_kernel_, 0) > 0) {
    Uring::abandon(std::move(ring_));
  } else {
    ring_.reset();
  }
}

void UringDisk::wait_for_kernel() {
  while (in_kernel_ > 0) {
    io_uring_cqe* cqe = nullptr;
    const int result = io_uring_wait_cqe(&ring_->ring(), &cqe);
    if (result == -EINTR) continue;
    if (result < 0) return give_up_ring();  // -EEXIST: destroyed on another thread than the loop's
    io_uring_cqe_seen(&ring_->ring(), cqe);
    --in_kernel_;
  }
}

}  // namespace

std::unique_ptr<Disk> make_uring_disk(Loop& loop, Log& log, DiskFile file, Uring ring, std::uint32_t depth_max,
                                      std::uint64_t registered_bytes) {
  return std::make_unique<UringDisk>(loop, log, std::move(file), std::move(ring), depth_max, registered_bytes);
}

}  // namespace kvd::io
