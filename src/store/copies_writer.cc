#include "store/copies_writer.h"

#include <array>
#include <optional>
#include <utility>

#include "base/check.h"
#include "store/format.h"

namespace kvd::store {
namespace {

constexpr int kFlush = -1;
constexpr std::array kSteps = {kFlush, 0, 1, kFlush, 2, 3, kFlush};  // or which copy is written

}  // namespace

CopiesWriter::CopiesWriter(io::Loop& loop, io::Disk& disk, std::uint64_t stride)
    : loop_(loop), disk_(disk), stride_(stride), pages_(kSuperblockCopies * kPageBytes), refused_(loop, [this] {
        end(how_);
      }) {}

void CopiesWriter::write(const Encode& encode, std::move_only_function<void(Status)> on_done) {
  KVD_CHECK(!busy());
  on_done_ = std::move(on_done);
  for (std::uint32_t copy = 0; copy < kSuperblockCopies; ++copy)
    encode(pages_.span().subspan(copy * kPageBytes, kPageBytes), copy);
  step_ = 0;
  next();
}

void CopiesWriter::next() {
  const int step = kSteps[step_++];
  if (step == kFlush) {
    op_.kind = io::DiskOp::Kind::kSync;
    op_.offset = 0;
    op_.buffers = {};
  } else {
    const auto copy = static_cast<std::size_t>(step);
    buffer_ = {pages_.data() + copy * kPageBytes, kPageBytes};
    op_.kind = io::DiskOp::Kind::kWrite;
    op_.offset = copy * stride_;
    op_.buffers = {&buffer_, 1};
  }
  op_.on_done = [this](const Status& done) {
    if (!done || step_ == kSteps.size()) return end(done);
    next();
  };
  how_ = disk_.submit(op_);
  if (!how_) refused_.arm(loop_.now());
}

void CopiesWriter::end(const Status& how) {
  const Status told = how;
  std::exchange(on_done_, nullptr)(told);
}

Status write_copies(io::Loop& loop, io::Disk& disk, std::uint64_t stride, const CopiesWriter::Encode& encode) {
  std::optional<Status> how;
  CopiesWriter writer(loop, disk, stride);
  writer.write(encode, [&how](Status done) { how = done; });
  while (!how) loop.run_once(Duration::max());
  return *how;
}

}  // namespace kvd::store
