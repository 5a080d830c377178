#include "store/blocking_disk.h"

#include <sys/uio.h>

namespace kvd::store {

Status BlockingDisk::run(io::DiskOp::Kind kind, std::uint64_t offset, MutableBytes bytes) {
  const Status status = run_uncounted(kind, offset, bytes);
  if (!status && errors_ != nullptr) errors_->add();
  return status;
}

Status BlockingDisk::run_uncounted(io::DiskOp::Kind kind, std::uint64_t offset, MutableBytes bytes) {
  const iovec buffer{bytes.data(), bytes.size()};
  Status result;
  bool done = false;
  io::DiskOp op;
  op.kind = kind;
  op.offset = offset;
  if (kind != io::DiskOp::Kind::kSync) op.buffers = {&buffer, 1};
  op.on_done = [&](Status status) {
    result = status;
    done = true;
  };
  if (auto submitted = disk_.submit(op); !submitted) return submitted;
  FlashHealth::Operation watched;
  if (health_ != nullptr) health_->submitted(watched, kind, bytes.size());
  while (!done) loop_.run_once(Duration::max());
  if (health_ != nullptr) health_->completed(watched, true);
  return result;
}

}  // namespace kvd::store
