#include "store/flash.h"

#include <algorithm>
#include <utility>

namespace kvd::store {

namespace {

std::vector<std::unique_ptr<FlashDevice>> make_devices(io::Loop& loop, Log& log, StoreStats& stats, Segments& segments,
                                                       std::vector<OpenedDevice> opened, policy::Eviction eviction) {
  std::vector<std::unique_ptr<FlashDevice>> devices;
  for (OpenedDevice& one : opened)
    devices.push_back(std::make_unique<FlashDevice>(loop, log, stats, segments, std::move(one), eviction));
  return devices;
}

}  // namespace

Flash::Flash(io::Loop& loop_in, Log& log_in, StoreStats& stats_in, Namespaces& namespaces_in,
             std::vector<OpenedDevice> opened, std::uint64_t index_records_max, policy::Eviction eviction)
    : loop(loop_in),
      log(log_in),
      stats(stats_in),
      namespaces(namespaces_in),
      index(index_records_max),
      devices(make_devices(loop, log, stats, segments, std::move(opened), eviction)),
      usage(segments, segment_pages()),
      segment_namespaces_(segments.count()),
      hidden_(index_records_max),
      unsure_(index_records_max) {
  if (devices.size() == 1) return;
  for (const auto& device : devices) device->tombstones.tell_apart();
}

bool Flash::enter(const RecordKey& key, const IndexEntry& entry, FlashPlace* outdated) {
  IndexEntry before;
  if (!index.insert(key.hash, entry, &before)) return false;
  TenantSpace& tenant = namespaces.tenant(key.ns);
  if (before.offset > 0) {
    usage.remove(tenant, before.segment, before.offset, before.pages);
    device_of(before.segment).stats.records.sub(1);
    if (outdated != nullptr)
      *outdated = {before.segment, before.offset, segments.at(before.segment).generation, before.checksum};
  }
  usage.add(tenant, entry.segment, entry.offset, entry.pages);
  device_of(entry.segment).stats.records.add(1);
  return true;
}

void Flash::leave(const RecordKey& key, std::uint32_t segment, std::uint32_t offset) {
  const std::uint32_t pages = index.erase(key.hash, segment, offset);
  if (pages == 0) return;
  usage.remove(namespaces.tenant(key.ns), segment, offset, pages);
  device_of(segment).stats.records.sub(1);
}

void Flash::note_half_known(std::uint32_t segment) {
  FlashDevice& device = device_of(segment);
  device.segments.exclude(segment);
  if (half_known(segment)) return;
  const auto generation = [this](std::uint32_t s) { return segments.at(s).generation; };
  device.half_known.insert(std::ranges::lower_bound(device.half_known, generation(segment), {}, generation), segment);
}

bool Flash::half_known(std::uint32_t segment) const {
  return std::ranges::binary_search(device_of(segment).half_known, segments.at(segment).generation, {},
                                    [this](std::uint32_t s) { return segments.at(s).generation; });
}

std::optional<std::uint32_t> Flash::first_half_known() const {
  std::optional<std::uint32_t> first;
  for (const auto& device : devices) {
    if (!device->health.on() || device->half_known.empty()) continue;
    const std::uint32_t own = device->half_known.front();
    if (!first || segments.at(own).generation < segments.at(*first).generation) first = own;
  }
  return first;
}

void Flash::hold_namespace(std::uint32_t segment, NamespaceHandle ns) {
  if (segment_namespaces_[segment].add(ns)) namespaces.hold(ns);
}

void Flash::release_namespaces(std::uint32_t segment) {
  HeldNamespaces& held = segment_namespaces_[segment];
  for (const NamespaceHandle ns : held.all()) namespaces.release(ns);
  held.clear();
}

void Flash::bury(const RecordKey& key, std::uint32_t segment, std::uint64_t generation, std::uint64_t put_seq) {
  end({key, put_seq == 0 ? put_seq_next++ : put_seq, segment, generation});
}

void Flash::end(const Tombstone& tombstone) {
  const std::uint32_t segment = tombstone.segment;
  FlashDevice& device = device_of(segment);
  if (!device.health.on() && device.tombstones.waiting() >= removals_waiting_max) {
    if (segments.at(segment).generation != tombstone.generation) return;
    segments.at(segment).doomed = true;
    return device.tombstones.await_end(segment, tombstone.put_seq);
  }
  hold_namespace(segment, tombstone.key.ns);
  device.tombstones.add(tombstone);
  device.stats.removals_waiting.set(device.tombstones.waiting());
}

std::vector<Tombstone> Flash::replaced_by(PoolRecord& record, const FlashPlace& place,
                                          const std::vector<ReplacedPlace>& outdated) {
  std::vector<Tombstone> elsewhere;
  const auto take = [&](const ReplacedPlace& old, bool outdates) {
    if (const auto tombstone = imply(record, place, old, outdates)) elsewhere.push_back(*tombstone);
  };
  const auto replaced = std::exchange(record.replaced, {});
  for (const ReplacedPlace& old : replaced) take(old, false);
  for (const ReplacedPlace& old : outdated)
    if (std::ranges::find(replaced, old) == replaced.end()) take(old, true);
  return elsewhere;
}

std::optional<Tombstone> Flash::imply(const PoolRecord& record, const FlashPlace& place, const ReplacedPlace& old,
                                      bool outdates) {
  if (old.segment == place.segment && old.generation == place.generation) return {};  // they go together
  if (segments.at(old.segment).generation != old.generation) return {};
  hold_namespace(old.segment, record.key.ns);
  Tombstone tombstone{record.key, record.put_seq, old.segment, old.generation};
  tombstone.outdates = outdates;
  // Where a flush has failed a scan may not come as far as the record.
  FlashDevice& device = device_of(old.segment);
  if (&device != &device_of(place.segment)) {
    tombstone.told_by = place.segment;
    return tombstone;
  }
  if (segments.at(place.segment).unflushed) {
    device.tombstones.add(tombstone);
  } else {
    device.tombstones.imply(tombstone, place.segment, place.generation);
  }
  return {};
}

std::vector<ReplacedPlace> Flash::take_strays(std::uint64_t hash) {
  std::vector<ReplacedPlace> places;
  for (const auto& device : devices)
    for (const ReplacedPlace& place : device->strays.take(hash)) places.push_back(place);
  return places;
}

void Flash::bury_replaced(PoolRecord& record) {
  for (const ReplacedPlace& old : std::exchange(record.replaced, {}))
    if (segments.at(old.segment).generation == old.generation) bury(record.key, old.segment, old.generation);
}

}  // namespace kvd::store
