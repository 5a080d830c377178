#include "store/flash.h"

#include <algorithm>
#include <utility>

namespace kvd::store {

void Flash::submit(io::DiskOp& op) {
  const bool off = recovered && !health.on();
  std::uint64_t bytes = 0;
  for (const iovec& buffer : op.buffers) bytes += buffer.iov_len;
  if (op.kind == io::DiskOp::Kind::kRead && !off) stats.flash_bytes_read.add(bytes);
  if (op.kind == io::DiskOp::Kind::kWrite && !off) {
    stats.flash_bytes_written.add(bytes);
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
    if (!refused_timer_.armed()) refused_timer_.arm(loop.now());
  }
}

void Flash::landed(Flight& flight, const Status& status) {
  const Time expected = flight.expected;
  const bool well = status.has_value() || flight.hint || flight.refused;
  writing_ -= flight.changes ? 1 : 0;
  auto on_done = std::move(flight.on_done);
  flights_.give_back(flight);
  health.completed(expected, well);
  if (!well) stats.io_errors.add();
  on_done(status);
}

bool Flash::over_budget(std::uint64_t more) {
  if (!write_budget_.bounded()) return false;
  const Time now = loop.now();
  write_budget_.pass(std::chrono::duration<double>(now - budget_at_).count());
  budget_at_ = now;
  return write_budget_.left() <= static_cast<double>(more);
}

void Flash::fail_refused() {
  const auto refused = std::exchange(refused_, {});
  for (const auto& [op, status] : refused) {
    auto done = std::move(op->on_done);
    done(status);
  }
}

bool Flash::enter(const RecordKey& key, const IndexEntry& entry, FlashPlace* outdated) {
  IndexEntry before;
  if (!index.insert(key.hash, entry, &before)) return false;
  TenantSpace& tenant = namespaces.tenant(key.ns);
  if (before.offset > 0) {
    usage.remove(tenant, before.segment, before.offset, before.pages);
    if (outdated != nullptr)
      *outdated = {before.segment, before.offset, segments.at(before.segment).generation, before.checksum};
  }
  usage.add(tenant, entry.segment, entry.offset, entry.pages);
  return true;
}

void Flash::leave(const RecordKey& key, std::uint32_t segment, std::uint32_t offset) {
  const std::uint32_t pages = index.erase(key.hash, segment, offset);
  if (pages > 0) usage.remove(namespaces.tenant(key.ns), segment, offset, pages);
}

void Flash::hold_namespace(std::uint32_t segment, NamespaceHandle ns) {
  auto& held = segment_namespaces_[segment];
  if (std::ranges::find(held, ns) != held.end()) return;
  held.push_back(ns);
  namespaces.hold(ns);
}

void Flash::release_namespaces(std::uint32_t segment) {
  for (const NamespaceHandle ns : segment_namespaces_[segment]) namespaces.release(ns);
  segment_namespaces_[segment].clear();
}

void Flash::bury(const RecordKey& key, std::uint32_t segment, std::uint64_t generation, std::uint64_t put_seq) {
  if (put_seq == 0) put_seq = put_seq_next++;
  if (!health.on() && tombstones.waiting() >= removals_waiting_max) {
    if (segments.at(segment).generation != generation) return;
    segments.at(segment).doomed = true;
    return tombstones.await_end(segment, put_seq);
  }
  hold_namespace(segment, key.ns);
  tombstones.add({key, put_seq, segment, generation});
}

void Flash::replaced_by(PoolRecord& record, const FlashPlace& place, const std::vector<ReplacedPlace>& outdated) {
  const auto replaced = std::exchange(record.replaced, {});
  for (const ReplacedPlace& old : replaced) imply(record, place, old, false);
  for (const ReplacedPlace& old : outdated)
    if (std::ranges::find(replaced, old) == replaced.end()) imply(record, place, old, true);
}

void Flash::imply(const PoolRecord& record, const FlashPlace& place, const ReplacedPlace& old, bool outdates) {
  if (old.segment == place.segment && old.generation == place.generation) return;  // they go together
  if (segments.at(old.segment).generation != old.generation) return;
  hold_namespace(old.segment, record.key.ns);
  Tombstone tombstone{record.key, record.put_seq, old.segment, old.generation};
  tombstone.outdates = outdates;
  // Where a flush has failed a scan may not come as far as the record.
  if (segments.at(place.segment).unflushed) {
    tombstones.add(tombstone);
  } else {
    tombstones.imply(tombstone, place.segment, place.generation);
  }
}

void Flash::bury_replaced(PoolRecord& record) {
  for (const ReplacedPlace& old : std::exchange(record.replaced, {}))
    if (segments.at(old.segment).generation == old.generation) bury(record.key, old.segment, old.generation);
}

}  // namespace kvd::store
