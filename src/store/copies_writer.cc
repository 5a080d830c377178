#include "store/copies_writer.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "store/device_table.h"
#include "store/quorum.h"

namespace kvd::store {
namespace {

enum class Step : std::uint8_t { kFlush, kRead, kWrite };
using enum Step;
constexpr std::array kSteps = {kFlush, kRead, kRead, kRead, kRead, kWrite, kWrite, kFlush, kWrite, kWrite, kFlush};

// Where both structures that lie in copies have what tells one from another.
constexpr std::size_t kMagicAt = 0, kCopyAt = 12, kUuidAt = 16, kGenerationAt = 32;
static_assert(offsetof(Superblock, magic) == kMagicAt && offsetof(DeviceTableHead, magic) == kMagicAt);
static_assert(offsetof(Superblock, copy) == kCopyAt && offsetof(DeviceTableHead, copy) == kCopyAt);
static_assert(offsetof(Superblock, uuid) == kUuidAt && offsetof(DeviceTableHead, store) == kUuidAt);
static_assert(offsetof(Superblock, generation) == kGenerationAt);
static_assert(offsetof(DeviceTableHead, generation) == kGenerationAt);

// Whether both say the same, which copy each is apart.
bool alike(Bytes a, Bytes b) {
  return std::memcmp(a.data(), b.data(), kCopyAt) == 0 &&
         std::memcmp(a.data() + kUuidAt, b.data() + kUuidAt, kPageChecksumAt - kUuidAt) == 0;
}

}  // namespace

CopiesWriter::CopiesWriter(io::Loop& loop, io::Disk& disk, std::uint64_t stride)
    : loop_(loop),
      disk_(disk),
      stride_(stride),
      pages_(kSuperblockCopies * kPageBytes),
      found_(kSuperblockCopies * kPageBytes),
      refused_(loop, [this] { end(how_); }) {}

void CopiesWriter::write(const Encode& encode, std::move_only_function<void(Status)> on_done) {
  KVD_CHECK(!busy());
  on_done_ = std::move(on_done);
  for (std::uint32_t copy = 0; copy < kSuperblockCopies; ++copy)
    encode(pages_.span().subspan(copy * kPageBytes, kPageBytes), copy);
  std::memset(found_.data(), 0, found_.size());
  step_ = 0;
  next();
}

void CopiesWriter::next() {
  const auto nth = static_cast<std::size_t>(std::count(kSteps.begin(), kSteps.begin() + step_, kSteps[step_]));
  switch (kSteps[step_++]) {
    case kFlush: return submit(io::DiskOp::Kind::kSync, 0);
    case kRead: return submit(io::DiskOp::Kind::kRead, static_cast<std::uint32_t>(nth));
    case kWrite:
      if (nth == 0) choose_order();
      return submit(io::DiskOp::Kind::kWrite, order_[nth]);
  }
}

void CopiesWriter::submit(io::DiskOp::Kind kind, std::uint32_t copy) {
  op_.kind = kind;
  if (kind == io::DiskOp::Kind::kSync) {
    op_.offset = 0;
    op_.buffers = {};
  } else {
    const AlignedBuffer& pages = kind == io::DiskOp::Kind::kRead ? found_ : pages_;
    buffer_ = {pages.data() + copy * kPageBytes, kPageBytes};
    op_.offset = copy * stride_;
    op_.buffers = {&buffer_, 1};
  }
  op_.on_done = [this, kind, copy](const Status& done) {
    if (!done && kind == io::DiskOp::Kind::kRead) {  // a copy that cannot be read is one to be written first
      std::memset(found_.data() + copy * kPageBytes, 0, kPageBytes);
      return next();
    }
    if (!done || step_ == kSteps.size()) return end(done);
    next();
  };
  how_ = disk_.submit(op_);
  if (!how_) refused_.arm(loop_.now());
}

// Those that agree with what is in force last.
void CopiesWriter::choose_order() {
  const auto page = [this](std::uint32_t i) { return Bytes(found_.data() + i * kPageBytes, kPageBytes); };
  const auto magic = load<std::uint64_t>(pages_.data() + kMagicAt);
  const auto valid = [&](std::uint32_t i) {
    return load<std::uint64_t>(page(i).data() + kMagicAt) == magic && page_checksum_ok(page(i), magic) &&
           load<std::uint32_t>(page(i).data() + kCopyAt) == i;
  };
  const auto say_the_same = [&](std::uint32_t i, std::uint32_t j) { return alike(page(i), page(j)); };
  const CopiesChoice choice = choose_copy(
      valid, say_the_same, [&](std::uint32_t i) { return load<std::uint64_t>(page(i).data() + kGenerationAt); });
  std::iota(order_.begin(), order_.end(), 0U);
  std::ranges::sort(order_, {}, [&](std::uint32_t i) {
    const bool in_force = choice.agree[i] > 0 && say_the_same(i, choice.best);
    return std::pair(in_force, i);
  });
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
