#include "store/flash_device.h"

#include <utility>

namespace kvd::store {

FlashDevice::FlashDevice(io::Loop& loop, Log& log, StoreStats& sums, Segments& all, OpenedDevice opened,
                         policy::Eviction eviction)
    : dir(std::move(opened.dir)),
      volume(std::move(opened.volume)),
      segments(all.add_device(volume.segments(), policy::make_eviction(eviction, volume.segments()))),
      tombstones(all, segments),
      health(loop, log, volume.disk(), std::move(opened.name)),
      loop_(loop),
      sums_(sums),
      write_budget_(opened.write_budget),
      budget_at_(loop.now()),
      flights_(kFlightsReserved),
      refused_timer_(loop, [this] { fail_refused(); }) {
  update_gauges();
}

void FlashDevice::submit(io::DiskOp& op) {
  const bool off = recovered && !health.on();
  std::uint64_t bytes = 0;
  for (const iovec& buffer : op.buffers) bytes += buffer.iov_len;
  if (op.kind == io::DiskOp::Kind::kRead && !off) {
    sums_.flash_bytes_read.add(bytes);
    stats.bytes_read.add(bytes);
  }
  if (op.kind == io::DiskOp::Kind::kWrite && !off) {
    sums_.flash_bytes_written.add(bytes);
    stats.bytes_written.add(bytes);
    write_budget_.spend(static_cast<double>(bytes));
  }
  stats.in_flight.add(1);
  // Two pointers: what a move_only_function holds without taking memory.
  Flight& flight = flights_.take();
  health.submitted(flight.watched, op.kind, bytes);
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
  const bool well = status.has_value() || flight.hint || flight.refused;
  writing_ -= flight.changes ? 1 : 0;
  health.completed(flight.watched, well);
  auto on_done = std::move(flight.on_done);
  flights_.give_back(flight);
  stats.in_flight.sub(1);
  if (!well) {
    sums_.io_errors.add();
    stats.io_errors.add();
  }
  on_done(status);
}

void FlashDevice::update_gauges() {
  stats.bytes.set(volume.offset_of(volume.segments()));
  stats.segments.set(segments.count());
  stats.segments_free.set(segments.count() - segments.occupied());
  stats.segments_doubtful.set(doubtful);
  stats.removals_waiting.set(tombstones.waiting());
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
