#include "store/flash_device.h"

#include <utility>

namespace kvd::store {

FlashDevice::FlashDevice(io::Loop& loop, Log& log, StoreStats& stats, Segments& all, OpenedDevice opened,
                         policy::Eviction eviction)
    : volume(std::move(opened.volume)),
      segments(all.add_device(volume.segments(), policy::make_eviction(eviction, volume.segments()))),
      tombstones(all, segments),
      health(loop, log, volume.disk()),
      loop_(loop),
      stats_(stats),
      write_budget_(opened.write_budget),
      budget_at_(loop.now()),
      flights_(kFlightsReserved),
      refused_timer_(loop, [this] { fail_refused(); }) {}

void FlashDevice::submit(io::DiskOp& op) {
  const bool off = recovered && !health.on();
  std::uint64_t bytes = 0;
  for (const iovec& buffer : op.buffers) bytes += buffer.iov_len;
  if (op.kind == io::DiskOp::Kind::kRead && !off) stats_.flash_bytes_read.add(bytes);
  if (op.kind == io::DiskOp::Kind::kWrite && !off) {
    stats_.flash_bytes_written.add(bytes);
    write_budget_.spend(static_cast<double>(bytes));
  }
  const Time expected = health.submitted(op.kind);
  // Two pointers: what a move_only_function holds without taking memory.
  Flight& flight = flights_.take();
  flight.expected = expected;
  flight.hint = op.kind == io::DiskOp::Kind::kDiscard;
  flight.changes = flight.hint || op.kind == io::DiskOp::Kind::kWrite;
  flight.refused = off;
  writing_ += flight.changes ? 1 : 0;
  flight.on_done = std::move(op.on_done);
  op.on_done = [this, &flight](Status status) { landed(flight, status); };
  const bool late = ended_ && flight.changes;
  const Status submitted = off    ? Status(tier_is_off())
                           : late ? Status(fail(Code::kIo, "the store has ended"))
                                  : volume.disk().submit(op);
  if (!submitted) {
    refused_.emplace_back(&op, submitted);
    if (!refused_timer_.armed()) refused_timer_.arm(loop_.now());
  }
}

void FlashDevice::landed(Flight& flight, const Status& status) {
  const Time expected = flight.expected;
  const bool well = status.has_value() || flight.hint || flight.refused;
  writing_ -= flight.changes ? 1 : 0;
  auto on_done = std::move(flight.on_done);
  flights_.give_back(flight);
  health.completed(expected, well);
  if (!well) stats_.io_errors.add();
  on_done(status);
}

bool FlashDevice::over_budget(std::uint64_t more) {
  if (!write_budget_.bounded()) return false;
  const Time now = loop_.now();
  write_budget_.pass(std::chrono::duration<double>(now - budget_at_).count());
  budget_at_ = now;
  return write_budget_.left() <= static_cast<double>(more);
}

void FlashDevice::fail_refused() {
  const auto refused = std::exchange(refused_, {});
  for (const auto& [op, status] : refused) {
    auto done = std::move(op->on_done);
    done(status);
  }
}

}  // namespace kvd::store
