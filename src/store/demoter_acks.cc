// Who waits for a record to be on flash, or for removals to be: the demoter's acknowledgements.
#include <algorithm>
#include <utility>

#include "store/demoter.h"

namespace kvd::store {

void Demoter::acknowledge(PoolRecord& record, AckLevel level, std::move_only_function<void(Status)> on_ack) {
  if (level == AckLevel::kPooled) return on_ack({});
  if (!flash_.on()) return on_ack(tier_is_off());
  if (record.missed && record.state == PoolRecord::State::kClean) static_cast<void>(take_copy(record));
  const bool backed =
      flash_.backs(record.place) && !flash_.usage.given_up(*record.tenant, record.place.segment, record.place.offset);
  const bool unsafe = backed && level == AckLevel::kSynced && flash_.segments.at(record.place.segment).unflushed;
  if (record.state == PoolRecord::State::kClean && record.load == nullptr && (!backed || unsafe)) {
    // It would only be dropped. Beside copies that count no more are begun than can be written.
    const bool admitted = Flash::admits(record);
    if (!admitted || over_budget(unsafe ? dirty_bytes_ + record.bytes() : 0)) {
      due_.emplace_back(std::move(on_ack), admitted ? budget_spent() : beyond_quota());
      return acks_.arm(flash_.loop.now());
    }
    // Its segment was given up while it stayed in DRAM, or a flush of it failed; now somebody wants it on flash. A copy
    // that there is counts until the new one is written.
    write_again(record);
  }
  if (record.state == PoolRecord::State::kDirty) {
    add_ack(record, level, std::move(on_ack));
    if (waiting_.holds(record)) {
      dequeue(record);
      urgent_.push_back(record);
    }
    return kick();
  }
  if (record.ends_elsewhere && backed) return tell_behind_removals(log_of(record.place), std::move(on_ack));
  acknowledge(record.key, record.place, level, std::move(on_ack));
}

void Demoter::acknowledge(const RecordKey& key, const FlashPlace& place, AckLevel level,
                          std::move_only_function<void(Status)> on_ack) {
  if (level == AckLevel::kSynced && flash_.segments.at(place.segment).unflushed)
    return on_ack(fail(Code::kIo, "a flush of the record's segment failed"));
  if (older_elsewhere(key.hash, place)) return tell_behind_removals(log_of(place), std::move(on_ack));
  if (level == AckLevel::kWritten) return on_ack({});
  log_of(place).syncs.request(std::move(on_ack));
}

// Whether a copy on another device, or one that nobody has seen, may be older and is not ended yet: the image may have
// left the pool since the put, and `ends_elsewhere` with it. Or the copy is as good, which costs a wait that need not
// be.
bool Demoter::older_elsewhere(std::uint64_t hash, const FlashPlace& place) const {
  if (flash_.unsure(hash)) return true;
  return std::ranges::any_of(logs_, [&](const auto& log) {
    const FlashDevice& device = log->device;
    if (&device == &flash_.device_of(place.segment)) return false;
    return device.strays.contains(hash) || device.tombstones.may_wait(hash);
  });
}

void Demoter::end_doubts() {
  flash_.doubts_end = true;
  if (flash_.in_doubt()) kick();
}

void Demoter::await_removals(std::move_only_function<void(Status)> on_ack) {
  const Removals how = removals_before(flash_.put_seq_next);
  if (how != Removals::kWaiting) return on_ack(how == Removals::kWritten ? Status{} : Status(tier_is_off()));
  removal_waits_.push_back({flash_.put_seq_next, std::move(on_ack)});
  kick();
}

// Of what a device that is off holds, and of what it may hold and nobody has read, the next start may find something.
Demoter::Removals Demoter::removals_before(std::uint64_t put_seq) const {
  if (!flash_.on()) return Removals::kLost;
  bool waiting = false;
  for (const auto& log : logs_) {
    const FlashDevice& device = log->device;
    if (device.unknown) return Removals::kLost;
    const bool in_doubt = flash_.doubts_end && device.in_doubt();
    if (!in_doubt && device.tombstones.written_before(put_seq)) continue;
    if (!device.health.on()) return Removals::kLost;
    waiting = true;
  }
  return waiting ? Removals::kWaiting : Removals::kWritten;
}

void Demoter::add_ack(PoolRecord& record, AckLevel level, std::move_only_function<void(Status)> on_ack) {
  PoolRecord::Ack& ack = ack_nodes_.take();
  ack.level = level;
  ack.on_ack = std::move(on_ack);
  (record.acks_first == nullptr ? record.acks_first : record.acks_last->next) = &ack;
  record.acks_last = &ack;
}

void Demoter::take_acks(PoolRecord& record, const Status& status) {
  PoolRecord::Ack* next = std::exchange(record.acks_first, nullptr);
  record.acks_last = nullptr;
  while (next != nullptr) {
    PoolRecord::Ack& ack = *std::exchange(next, next->next);
    if (status && ack.level == AckLevel::kSynced && flash_.segments.at(record.place.segment).unflushed) {
      due_.emplace_back(std::move(ack.on_ack), fail(Code::kIo, "a flush of the record's segment failed"));
    } else if (status && record.ends_elsewhere) {
      tell_behind_removals(log_of(record.place), std::move(ack.on_ack));
    } else if (status && ack.level == AckLevel::kSynced) {
      log_of(record.place).syncs.request(std::move(ack.on_ack));
    } else {
      due_.emplace_back(std::move(ack.on_ack), status);
    }
    ack_nodes_.give_back(ack);
  }
  if (!due_.empty()) acks_.arm(flash_.loop.now());
}

// Behind a flush of the device on which a record lies, with which what it replaces elsewhere gets its tombstones, and
// behind these.
void Demoter::tell_behind_removals(DeviceLog& log, std::move_only_function<void(Status)> on_ack) {
  log.syncs.request([this, on_ack = std::move(on_ack)](const Status& flushed) mutable {
    if (!flushed) return on_ack(flushed);
    await_removals(std::move(on_ack));
  });
}

void Demoter::take_removals() {
  while (!removal_waits_.empty()) {
    const Removals how = removals_before(removal_waits_.front().before);
    if (how == Removals::kWaiting) break;
    const Status told = how == Removals::kWritten ? Status{} : Status(tier_is_off());
    due_.emplace_back(std::move(removal_waits_.front().on_ack), told);
    removal_waits_.pop_front();
  }
  if (!due_.empty()) acks_.arm(flash_.loop.now());
}

void Demoter::tell_acks() {
  telling_.swap(due_);
  for (auto& [on_ack, status] : telling_) on_ack(status);
  telling_.clear();
}

}  // namespace kvd::store
