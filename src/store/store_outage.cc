// A device that goes off and comes back: what the store makes of it.
//
// Off: lookups of what it has miss, and the other devices go on; where there is none puts stay in the pool. Removals
// wait for it. The index keeps what it knows, so that a removal or a replacement names every copy that a start could
// find; what no flush has covered counts as not there, as a reset drops a device's cache and does not say so. Frames
// that the device still has may land: their records are strays. Back: what waits is written, and what the pool has and
// the device missed or lost takes the copy that there is or is written.
#include "store/store_impl.h"

namespace kvd::store {
namespace {

constexpr Duration kWalkPause = Millis(20);  // while as much waits to be written as may

}  // namespace

// Also while flash is still being read, by a device that may hang for ever: what it tells does not count any more.
void StoreImpl::device_off(DeviceLog& of) {
  stats_.tier_outages.add();
  of.device.stats.outages.add();
  of.device.stats.why_off = of.device.health.why();
  of.device.stats.off.set(1);
  if (!tier_->flash.on()) {
    stats_.tier_off.set(1);
    namespaces_->set_reading(false);
    walk_.disarm();
  }
  FlashDevice& device = of.device;
  device.unlisted = true;  // headers that are not flushed may be lost
  device.segments.lose_unflushed();
  device.tombstones.device_off([&](const Tombstone& outdated) { return device.note_stray(outdated); });
  tier_->demoter.device_off(of);
  of.writer.roll();
  tier_->loader.abandon_all_of(device);
}

void StoreImpl::device_back(DeviceLog& of) {
  stats_.tier_off.set(0);
  of.device.stats.off.set(0);
  of.evictor.resume();
  of.scrubber.resume();
  tier_->demoter.device_back(of);
  walk_from_ = 0;
  walk_.arm(loop_.now());
}

void StoreImpl::walk() {
  bool full = false;
  const auto next = pool_->visit(walk_from_, kWalkRecords, [&](PoolRecord& record) {
    full = !tier_->demoter.catch_up(record);
    return !full;
  });
  if (!next) return;
  walk_from_ = *next;
  if (full) tier_->demoter.pressure();  // nothing else may ask for it soon
  walk_.arm(full ? after(loop_.now(), kWalkPause) : loop_.now());
}

std::vector<DeviceFigures> StoreImpl::device_figures() const {
  std::vector<DeviceFigures> figures;
  if (tier_ == nullptr) return figures;
  for (const auto& device : tier_->flash.devices) figures.push_back({device->dir, &device->stats});
  return figures;
}

}  // namespace kvd::store
