#include "io/uring.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "base/check.h"

// linux/io_uring.h of kernel 5.19 and 6.0; liburing 2.3 has them, older copies do not.
#ifndef IORING_SETUP_COOP_TASKRUN
#define IORING_SETUP_COOP_TASKRUN (1U << 8)
#endif
#ifndef IORING_SETUP_SINGLE_ISSUER
#define IORING_SETUP_SINGLE_ISSUER (1U << 12)
#endif
#ifndef IORING_SETUP_DEFER_TASKRUN
#define IORING_SETUP_DEFER_TASKRUN (1U << 13)
#endif

namespace kvd::io {
namespace {

struct Mode {
  unsigned flags;
  const char* name;
};

// TASKRUN_FLAG: the ring shows when work is deferred, see more_deferred().
constexpr unsigned kDeferred =
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_R_DISABLED;

// Best first. A kernel answers EINVAL to flags it does not know.
constexpr Mode kModes[] = {
    {kDeferred, "deferred"},
    {IORING_SETUP_COOP_TASKRUN | IORING_SETUP_R_DISABLED, "cooperative"},
    {IORING_SETUP_R_DISABLED, "interrupting"},
};

// How long abandon() waits for the kernel to free a ring. A forked child may hold it for ever; no transfer takes longer
// than this: the kernel's NVMe and SCSI drivers give up on a command after 30 s (nvme_core.io_timeout).
constexpr int kFreedWaitMs = 60'000;

Status check_opcodes(io_uring& ring) {
  const std::unique_ptr<io_uring_probe, decltype(&std::free)> probe(io_uring_get_probe_ring(&ring), &std::free);
  if (probe == nullptr) return fail(Code::kIo, "ask io_uring for its operations", EOPNOTSUPP);
  for (const int opcode : {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READV, IORING_OP_WRITEV, IORING_OP_FSYNC}) {
    if (io_uring_opcode_supported(probe.get(), opcode) == 0) {
      return fail(Code::kIo, "find io_uring's reads and writes", EOPNOTSUPP);
    }
  }
  return {};
}

}  // namespace

Result<Uring> Uring::create(int file_fd, std::uint32_t entries) {
  int error = EINVAL;
  for (const Mode& mode : kModes) {
    auto ring = std::make_unique<io_uring>();
    error = -io_uring_queue_init(entries, ring.get(), mode.flags | IORING_SETUP_CLAMP);
    if (error == EINVAL) continue;
    if (error != 0) break;
    Uring uring(std::move(ring), mode.name);
    if (const Status checked = check_opcodes(uring.ring()); !checked) return fail(checked.error());
    if (const Status registered = uring.register_fds(file_fd); !registered) return fail(registered.error());
    return uring;
  }
  return fail(Code::kIo, "set up io_uring", error);
}

Uring::~Uring() {
  if (ring_ != nullptr) io_uring_queue_exit(ring_.get());
}

Status Uring::register_fds(int file_fd) {
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.ok()) return fail(Code::kIo, "create an eventfd", errno);
  if (const int result = io_uring_register_eventfd(ring_.get(), wake_.get()); result < 0) {
    return fail(Code::kIo, "register an eventfd with io_uring", -result);
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail(Code::kIo, "create a pipe", errno);
  freed_.reset(ends[0]);
  const UniqueFd held_by_ring(ends[1]);
  const int files[] = {file_fd, held_by_ring.get()};
  if (const int result = io_uring_register_files(ring_.get(), files, 2); result < 0) {
    return fail(Code::kIo, "register the file with io_uring", -result);
  }
  return {};
}

Status Uring::enable() {
  // io_uring_enable_rings(), which liburing 2.3 declares and does not export.
  if (const int result =
          io_uring_register(static_cast<unsigned>(ring_->ring_fd), IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
      result < 0) {
    return fail(Code::kIo, "enable io_uring", -result);
  }
  return {};
}

Status Uring::begin_buffers(std::uint32_t count) {
  if (const int result = io_uring_register_buffers_sparse(ring_.get(), count); result < 0) {
    return fail(Code::kIo, "make a table of buffers in io_uring", -result);
  }
  return {};
}

Status Uring::set_buffer(std::uint32_t index, std::span<std::byte> memory) {
  const iovec buffer{memory.data(), memory.size()};
  const __u64 tag = 0;
  if (const int result = io_uring_register_buffers_update_tag(ring_.get(), index, &buffer, &tag, 1); result < 0) {
    return fail(Code::kIo, "register memory with io_uring", -result);
  }
  return {};
}

void Uring::clear_wake() noexcept {
  std::uint64_t count = 0;
  const ssize_t got = ::read(wake_.get(), &count, sizeof count);
  KVD_CHECK(got == sizeof count || errno == EAGAIN || errno == EINTR);
}

bool Uring::more_deferred() const noexcept {
  return (std::atomic_ref(*ring_->sq.kflags).load(std::memory_order_acquire) & IORING_SQ_TASKRUN) != 0;
}

void Uring::abandon(std::unique_ptr<Uring> uring) {
  const UniqueFd freed = std::move(uring->freed_);
  uring.reset();  // the kernel frees the ring in the background, once its operations have ended
  pollfd wait{.fd = freed.get(), .events = POLLIN, .revents = 0};
  while (::poll(&wait, 1, kFreedWaitMs) < 0 && errno == EINTR) {
  }
}

}  // namespace kvd::io
