#include "store/device_probe.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "store/format.h"
#include "store/read_watch.h"

namespace kvd::store {
namespace {

constexpr char kMagic[] = "KVDPROBE";
constexpr std::size_t kCountAt = 8;

const char* failed(io::DiskOp::Kind kind) {
  if (kind == io::DiskOp::Kind::kWrite) return "a probe's write failed";
  return kind == io::DiskOp::Kind::kSync ? "a probe's flush failed" : "a probe's page could not be read again";
}

const char* late(io::DiskOp::Kind kind) {
  if (kind == io::DiskOp::Kind::kWrite) return "a probe's write does not complete";
  return kind == io::DiskOp::Kind::kSync ? "a probe's flush does not complete" : "a probe's read does not complete";
}

}  // namespace

DeviceProbe::DeviceProbe(io::Loop& loop, io::Disk& disk)
    : loop_(loop), disk_(disk), page_(kPageBytes), read_(kPageBytes), timer_(loop, [this] { tell(); }) {
  std::memcpy(page_.data(), kMagic, kCountAt);
}

void DeviceProbe::start(OnEnd on_end) {
  KVD_CHECK(!busy());
  on_end_ = std::move(on_end);
  ended_ = false;
  ++count_;
  std::memcpy(page_.data() + kCountAt, &count_, sizeof count_);
  timer_.arm_in(kAnswerMax);
  submit(io::DiskOp::Kind::kWrite);
}

void DeviceProbe::stop() noexcept {
  on_end_ = nullptr;
  timer_.disarm();
}

void DeviceProbe::submit(io::DiskOp::Kind kind) {
  const AlignedBuffer& buffer = kind == io::DiskOp::Kind::kRead ? read_ : page_;
  buffer_ = {buffer.data(), buffer.size()};
  op_.kind = kind;
  op_.offset = kind == io::DiskOp::Kind::kSync ? 0 : kProbeAt;
  op_.buffers = kind == io::DiskOp::Kind::kSync ? std::span<const iovec>() : std::span<const iovec>(&buffer_, 1);
  op_.on_done = [this](Status status) { done(status); };
  read_at_ = loop_.now();  // of the last one, which is the read
  const Status submitted = disk_.submit(op_);
  with_device_ = submitted.has_value();
  if (!submitted) end(fail(submitted.error().code, failed(kind), submitted.error().sys_errno));
}

void DeviceProbe::done(const Status& status) {
  with_device_ = false;
  if (on_end_ == nullptr || ended_) return;  // too late
  if (!status) return end(fail(status.error().code, failed(op_.kind), status.error().sys_errno));
  if (op_.kind == io::DiskOp::Kind::kWrite) return submit(io::DiskOp::Kind::kSync);
  if (op_.kind == io::DiskOp::Kind::kSync) return submit(io::DiskOp::Kind::kRead);
  if (loop_.now() - read_at_ >= ReadWatch::kSlow) return end(fail(Code::kTimeout, "a probe's read takes too long"));
  const bool same = std::memcmp(read_.data(), page_.data(), kPageBytes) == 0;
  end(same ? Status{} : fail(Code::kCorrupt, "a probe's page was not what had been written"));
}

void DeviceProbe::end(const Status& how) {
  how_ = how;
  ended_ = true;
  timer_.arm(loop_.now());
}

void DeviceProbe::tell() {
  const Status how = ended_ ? how_ : Status(fail(Code::kTimeout, late(op_.kind)));
  auto on_end = std::exchange(on_end_, nullptr);
  on_end(how);
}

}  // namespace kvd::store
