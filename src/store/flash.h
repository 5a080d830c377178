// Flash: what the parts of the flash tier share: the devices, and over all of them the index, the segments, what
// tenants take up, and the counters of sequence. A plain struct owned by the store; its parts (LogWriter, Evictor,
// Loader, Demoter) borrow it. Everything runs on the store's loop.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/log.h"
#include "io/loop.h"
#include "store/flash_device.h"
#include "store/flash_usage.h"
#include "store/held_namespaces.h"
#include "store/hidden_hashes.h"
#include "store/index.h"
#include "store/namespaces.h"
#include "store/pool_record.h"
#include "store/segments.h"
#include "store/store.h"
#include "store/tombstones.h"

namespace kvd::store {

struct Flash {
  // At least one device; all have one segment size. The first segments of the store are those of the first device.
  Flash(io::Loop& loop_in, Log& log_in, StoreStats& stats_in, Namespaces& namespaces_in,
        std::vector<OpenedDevice> opened, std::uint64_t index_records_max, policy::Eviction eviction);
  Flash(const Flash&) = delete;
  Flash& operator=(const Flash&) = delete;

  struct Found {
    FlashPlace place;
    std::uint32_t pages = 0;
  };
  // Where a record lies that a start could find, whether or not it may be read now: what removals ask, and puts that
  // take its place. The place's generation is filled in.
  [[nodiscard]] std::optional<Found> known(std::uint64_t hash) const noexcept { return found(index.find(hash)); }
  // Where a record lies that may be read, also one that its tenant has given up; nothing when its device is off.
  [[nodiscard]] std::optional<Found> find(std::uint64_t hash) const noexcept {
    if (hidden_.contains(hash)) return std::nullopt;
    return there(known(hash));
  }
  // The same, of which the index has fetched the place.
  [[nodiscard]] std::optional<Found> find(std::uint64_t hash, const FlashIndex::Place& place) const noexcept {
    if (hidden_.contains(hash)) return std::nullopt;
    return there(found(index.find(place)));
  }
  // Enters a record that was written into the index and counts it. False when the index has no place. `outdated`, where
  // it is given, gets the place that the index had for it; its generation stays 0 when there was none.
  bool enter(const RecordKey& key, const IndexEntry& entry, FlashPlace* outdated = nullptr);
  // Takes a record out of the index, if it lies there.
  void leave(const RecordKey& key, std::uint32_t segment, std::uint32_t offset);
  // Whether this record's tenant may have it on flash at all.
  [[nodiscard]] static bool admits(const PoolRecord& record) noexcept {
    return record.bytes() <= record.tenant->quota.flash_bytes;
  }
  // What is found under this hash is not given out before recovery has ended: a tombstone was seen that may mean it.
  // Others may be hidden with it (HiddenHashes).
  void hide(std::uint64_t hash) { hidden_.add(hash); }
  void unhide_all() { hidden_.clear(); }
  // It is on flash and has replaced another while something was unknown: an older copy may be there that nobody has
  // seen. Others may be taken for such with it.
  void note_unsure(std::uint64_t hash) { unsure_.add(hash); }
  [[nodiscard]] bool unsure(std::uint64_t hash) const noexcept { return something_unknown() && unsure_.contains(hash); }
  // What an entry of the index comes to.
  [[nodiscard]] std::optional<Found> found(const std::optional<IndexEntry>& entry) const noexcept {
    if (!entry || !segments.readable(entry->segment) || entry->interleave != 0) return std::nullopt;
    const FlashPlace place{entry->segment, entry->offset, segments.at(entry->segment).generation, entry->checksum};
    return Found{place, entry->pages};
  }
  // Whether a record's place still holds it.
  [[nodiscard]] bool backs(const FlashPlace& place) const noexcept {
    return segments.holds(place.segment, place.generation) && device_of(place.segment).health.on() && !lost(place);
  }
  // Whether the device may have lost what lay there, when it went off.
  [[nodiscard]] bool lost(const FlashPlace& place) const noexcept {
    return segments.at(place.segment).generation == place.generation && segments.lost(place.segment, place.offset);
  }
  void update_gauges() {
    stats.flash_records.set(index.size());
    std::uint64_t unoccupied = 0, tombstones = 0;
    for (const auto& device : devices) {
      device->update_gauges();
      unoccupied += device->stats.segments_free.value();
      tombstones += device->tombstones.on_flash();
    }
    stats.segments_free.set(unoccupied);
    stats.flash_tombstones.set(tombstones);
  }
  // Segment `segment` holds something of a namespace, or a tombstone names it there: it stays known until the segment
  // is given up.
  void hold_namespace(std::uint32_t segment, NamespaceHandle ns);
  void release_namespaces(std::uint32_t segment);
  // Records that a segment has on average when the index is full: how much memory is taken ahead for its footer.
  [[nodiscard]] std::size_t records_per_segment() const noexcept {
    return std::min<std::size_t>(index.records_max() / segments.count() + 1, segment_pages());
  }
  // Notes that the record of this key in a segment of this generation is removed, for as long as that lives, and with
  // it what is older. `put_seq`: that of its successor, which must not end with it; 0: there is none.
  // While its device is off removals_waiting_max wait; beyond that the segment is given up when it is back.
  void bury(const RecordKey& key, std::uint32_t segment, std::uint64_t generation, std::uint64_t put_seq = 0);
  // The same of what this tombstone names.
  void end(const Tombstone& tombstone);
  // `record`, which replaces others or outdates copies of it, is on flash at `place`: as long as it is there nothing
  // older of its key is found, so it counts as their tombstone where they lie on its device. Returns the tombstones of
  // those on others, which are to get them.
  [[nodiscard]] std::vector<Tombstone> replaced_by(PoolRecord& record, const FlashPlace& place,
                                                   const std::vector<ReplacedPlace>& outdated);
  // Where records with this hash may lie that no index knows (Strays). They are forgotten.
  [[nodiscard]] std::vector<ReplacedPlace> take_strays(std::uint64_t hash);
  // The same record will not be on flash: what it replaces is removed.
  void bury_replaced(PoolRecord& record);

  // The device that has this segment.
  [[nodiscard]] FlashDevice& device_of(std::uint32_t segment) const noexcept {
    return *devices[segments.at(segment).device];
  }
  // Some device is on: the tier is.
  [[nodiscard]] bool on() const noexcept {
    return std::ranges::any_of(devices, [](const auto& device) { return device->health.on(); });
  }
  // Whether other devices, as far as they are on, are to get tombstones first of which only this segment tells. One
  // that is off would hold it up for as long: what it holds may come back then.
  [[nodiscard]] bool tells_others(std::uint32_t segment) const noexcept {
    return std::ranges::any_of(
        devices, [&](const auto& device) { return device->health.on() && device->tombstones.told_by(segment) > 0; });
  }
  // Some device may hold what nobody knows of.
  [[nodiscard]] bool something_unknown() const noexcept {
    return std::ranges::any_of(devices, [](const auto& device) { return device->unknown || device->in_doubt(); });
  }
  // Some device that is on has segments of which nobody knows what a later start will find there; and some of which it
  // is not even known when they were begun.
  [[nodiscard]] bool in_doubt() const noexcept {
    return std::ranges::any_of(devices, [](const auto& device) { return device->health.on() && device->in_doubt(); });
  }
  [[nodiscard]] bool headers_in_doubt() const noexcept {
    return std::ranges::any_of(devices, [](const auto& device) { return device->health.on() && device->doubtful > 0; });
  }
  // What was begun first of all that is half known and on a device that is on.
  [[nodiscard]] std::optional<std::uint32_t> first_half_known() const;
  // Recovery has not taken in all that this segment may hold. It goes before all that is chosen as a victim.
  void note_half_known(std::uint32_t segment);
  [[nodiscard]] bool half_known(std::uint32_t segment) const;
  // The highest number that a device has for this opening.
  [[nodiscard]] std::uint64_t boot_epoch() const noexcept {
    std::uint64_t highest = 0;
    for (const auto& device : devices) highest = std::max(highest, device->volume.boot_epoch());
    return highest;
  }
  [[nodiscard]] std::uint64_t segment_bytes() const noexcept { return devices.front()->volume.segment_bytes(); }
  [[nodiscard]] std::uint32_t segment_pages() const noexcept { return devices.front()->volume.segment_pages(); }

  io::Loop& loop;
  Log& log;
  StoreStats& stats;
  Namespaces& namespaces;
  FlashIndex index;
  Segments segments;
  const std::vector<std::unique_ptr<FlashDevice>> devices;
  FlashUsage usage;
  std::uint64_t put_seq_next = 1;
  std::uint64_t generation_next = 1;
  std::size_t removals_waiting_max = Tombstones::kWaitingMax;
  std::size_t tombstones_spent_max = Tombstones::kSpentMax;  // of all devices together
  // Of the index, that Evictor looks at in a turn of the loop: 4 MiB, about 1 ms.
  std::uint64_t sweep_buckets = 64 << 10;
  // Something was removed, replaced or given up in this opening, so nothing older may be found at a later start: the
  // headers of segments in doubt are overwritten (Evictor::end_doubts), before removals and replacements are answered
  // and before anything that was given up is overwritten.
  bool doubts_end = false;

 private:
  [[nodiscard]] std::optional<Found> there(const std::optional<Found>& copy) const noexcept {
    const bool there =
        copy && device_of(copy->place.segment).health.on() && !segments.lost(copy->place.segment, copy->place.offset);
    return there ? copy : std::nullopt;
  }
  // The tombstone that `old` is to get on its own device.
  std::optional<Tombstone> imply(const PoolRecord& record, const FlashPlace& place, const ReplacedPlace& old,
                                 bool outdates);

  std::vector<HeldNamespaces> segment_namespaces_;
  HiddenHashes hidden_;
  HiddenHashes unsure_;
};

}  // namespace kvd::store
