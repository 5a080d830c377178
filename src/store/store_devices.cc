#include "store/store_devices.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error_text.h"
#include "store/directory.h"

namespace kvd::store {
namespace {

// Without what does not change which directory it is: "/a/../b//" is "/b".
std::string plain(const std::string& dir) { return (std::filesystem::path(dir) / "").lexically_normal().string(); }

class Planner {
 public:
  Planner(const FoundFile<DeviceTable>& list, std::span<const DeviceFound> found, bool forget_missing, std::string& why)
      : list_(list), found_(found), forget_missing_(forget_missing), why_(why), settled_(found.size()) {}

  Result<DevicePlan> plan() {
    if (auto begun = begin(); !begun) return fail(begun.error());
    for (std::size_t i = 0; i < found_.size(); ++i)
      if (auto checked = check(i); !checked) return fail(checked.error());
    for (std::size_t i = 0; i < found_.size(); ++i)
      if (auto placed = place_by_identity(i); !placed) return fail(placed.error());
    for (std::size_t i = 0; i < found_.size(); ++i)
      if (!settled_[i]) place_by_path(i);
    for (std::size_t i = 0; i < found_.size(); ++i)
      if (!settled_[i])
        if (auto placed = place_unreadable(i); !placed) return fail(placed.error());
    if (auto rest = leave_out_missing(); !rest) return fail(rest.error());
    return finish();
  }

 private:
  struct Place : DevicePlace {
    [[nodiscard]] bool is_away() const noexcept { return !away.empty(); }
    [[nodiscard]] bool free() const noexcept { return !found && !is_away(); }
    [[nodiscard]] bool struck() const noexcept { return device.confirmed == kStruck; }
  };

  Status begin();
  Status check(std::size_t i);
  Status place_by_identity(std::size_t i);
  void place_by_path(std::size_t i);
  Status place_unreadable(std::size_t i);
  Status leave_out_missing();
  DevicePlan finish();

  [[nodiscard]] const SuperblockVerdict& verdict(std::size_t i) const noexcept { return found_[i].file.verdict; }
  [[nodiscard]] bool listed() const noexcept { return list_.verdict.kind == CopiesKind::kValid; }
  Status refuse(std::string why) {
    why_ = std::move(why);
    return fail(Code::kInvalid, "the devices are not those of the store");
  }
  void note(Level level, std::string text) { plan_.notes.push_back({level, std::move(text)}); }
  Place* find(auto matches) {
    const auto at = std::ranges::find_if(places_, matches);
    return at == places_.end() ? nullptr : &*at;
  }
  static std::string name(const ListedDevice& device) {
    return fmt::format("device {} (last at {})", uuid_text(device.uuid), device.path);
  }
  [[nodiscard]] std::string unreadable(std::size_t i) const {
    return fmt::format("{} cannot be read: {}", found_[i].dir, error_text(found_[i].file.error));
  }
  // What is found there takes this place, or a new one, and is begun anew.
  void begin_anew(std::size_t i, Place* place) {
    if (place == nullptr) place = &places_.emplace_back();
    place->found = i;
    place->anew = true;
    settled_[i] = true;
  }
  void begin_away(std::size_t i, Place& place, std::string what, std::string text) {
    place.away = std::move(what);
    settled_[i] = true;
    note(Level::kError, std::move(text));
  }

  const FoundFile<DeviceTable>& list_;
  const std::span<const DeviceFound> found_;
  const bool forget_missing_;
  std::string& why_;

  DevicePlan plan_;
  std::vector<Place> places_;
  std::vector<bool> settled_;    // of what was found: whether what becomes of it is known
  Uuid store_{};                 // whose members may be here
  bool list_is_old_ = false;     // devices have been opened later
  std::uint64_t epoch_max_ = 0;  // of all that is here
};

// Whose devices are to be expected. A store by itself in the store's own directory becomes the first member.
Status Planner::begin() {
  if (auto usable = list_.check(why_); !usable) return usable;
  if (listed()) {
    plan_.list = list_.verdict.in_force;
    for (const ListedDevice& device : plan_.list.devices) places_.emplace_back().device = device;
    store_ = plan_.list.store;
    return {};
  }
  const bool lost = list_.verdict.kind == CopiesKind::kLost;
  if (lost) note(Level::kError, fmt::format("{}: is damaged, the list of devices is lost", list_.path));
  for (const DeviceFound& found : found_) {
    const Superblock& block = found.file.verdict.in_force;
    if (found.file.verdict.kind != CopiesKind::kValid) continue;
    if (found.own && !block.member()) {
      plan_.list.store = store_ = block.uuid;
      plan_.list.segment_bytes = block.segment_bytes;
      places_.emplace_back().device = {block.uuid, block.segments, 0, found.dir};
      return {};
    }
    // Without its list nothing that a member holds counts, but it may be taken.
    if (lost && store_ == Uuid{}) store_ = block.store;
  }
  return {};
}

Status Planner::check(std::size_t i) {
  const DeviceFound& found = found_[i];
  if (found.dir.size() > kDevicePathMax)
    return refuse(fmt::format("{}: is longer than {} bytes: give a shorter path", found.dir, kDevicePathMax));
  // One that holds a device is told by its identity, also under another name.
  for (std::size_t other = 0; other < i; ++other)
    if (plain(found_[other].dir) == plain(found.dir))
      return refuse(fmt::format("{}: is named twice: name it once", found.dir));
  if (verdict(i).kind == CopiesKind::kUnreadable) return {};
  if (auto usable = found.file.check(why_); !usable) return usable;
  if (verdict(i).kind != CopiesKind::kValid) return {};
  for (std::size_t other = 0; other < i; ++other)
    if (verdict(other).kind == CopiesKind::kValid && verdict(other).in_force.uuid == verdict(i).in_force.uuid)
      return refuse(fmt::format("{} and {} hold the same device, one is a copy: leave one of them out",
                                found_[other].dir, found.dir));
  return {};
}

Status Planner::place_by_identity(std::size_t i) {
  if (verdict(i).kind != CopiesKind::kValid) return {};
  const Superblock& block = verdict(i).in_force;
  const std::string& dir = found_[i].dir;
  Place* const place = find([&](const Place& p) { return p.device.uuid == block.uuid; });
  if (block.member() && block.store != store_)
    return refuse(
        fmt::format("{}: holds a device of another store: move its flash.kvd away, or give another directory", dir));
  if (!block.member() && place == nullptr)
    return refuse(fmt::format("{}: holds a store by itself: move its flash.kvd away, or give another directory", dir));
  epoch_max_ = std::max(epoch_max_, block.boot_epoch);
  list_is_old_ = list_is_old_ || (listed() && block.member() && block.boot_epoch > plan_.list.boot_epoch);
  if (place == nullptr) return {};
  place->found = i;
  settled_[i] = true;
  if (place->struck()) {
    place->anew = true;
    note(Level::kWarn, fmt::format("device {}: was given up while it was away; begun anew", dir));
  } else if (block.member() ? block.boot_epoch < place->device.confirmed : place->device.confirmed > 0) {
    place->anew = true;
    note(Level::kError, fmt::format("device {}: is a copy from before the store's last openings; begun anew", dir));
  }
  return {};
}

// What tells no identity of the list: who was last there decides.
void Planner::place_by_path(std::size_t i) {
  const std::string& dir = found_[i].dir;
  Place* const place = find([&](const Place& p) { return p.free() && p.device.path == dir; });
  switch (verdict(i).kind) {
    case CopiesKind::kValid:  // of this store
      note(Level::kWarn, fmt::format("device {}: is not in the store's list; begun anew", dir));
      return begin_anew(i, place != nullptr && place->struck() ? place : nullptr);
    case CopiesKind::kLost:
      note(Level::kError, fmt::format("device {}: all superblocks are damaged, its content is lost; begun anew", dir));
      return begin_anew(i, place);
    case CopiesKind::kUnreadable:
      if (place == nullptr) return;
      return begin_away(i, *place, unreadable(i),
                        fmt::format("device {}: cannot be read: {}; the store starts without it", dir,
                                    error_text(found_[i].file.error)));
    default: break;
  }
  if (place != nullptr && forget_missing_) note(Level::kWarn, fmt::format("{}: forgotten", name(place->device)));
  if (place == nullptr || forget_missing_) return begin_anew(i, place);
  begin_away(i, *place, dir + " holds no flash.kvd",
             fmt::format("device {}: is empty, and {} is missing: not mounted? The store starts without it; "
                         "for a new drive start once with --forget-missing",
                         dir, name(place->device)));
}

// It may be any member that was not found.
Status Planner::place_unreadable(std::size_t i) {
  Place* const place = find([](const Place& p) { return p.free() && !p.struck(); });
  if (place == nullptr) return found_[i].file.check(why_);
  begin_away(i, *place, unreadable(i),
             fmt::format("device {}: cannot be read: {}; the store starts without it, and without {}", found_[i].dir,
                         error_text(found_[i].file.error), name(place->device)));
  return {};
}

Status Planner::leave_out_missing() {
  const auto missing = [this](const Place& p) { return p.free() || (p.is_away() && forget_missing_); };
  for (const Place& place : places_) {
    if (!missing(place) || place.struck()) continue;
    if (!forget_missing_)
      return refuse(
          fmt::format("{} is not named: add --device DIR, or start once with --forget-missing", name(place.device)));
    note(Level::kWarn, fmt::format("{}: forgotten", name(place.device)));
  }
  std::erase_if(places_, missing);
  return {};
}

DevicePlan Planner::finish() {
  if (list_is_old_)
    note(Level::kError, fmt::format("{}: is from before its devices were opened last; all are begun anew", list_.path));
  for (Place& place : places_) {
    place.anew = place.anew || (list_is_old_ && place.found);
    if (place.anew || list_is_old_) place.device.confirmed = kStruck;
    plan_.places.push_back(place);
  }
  DeviceTable& list = plan_.list;
  list.devices.clear();
  for (const DevicePlace& place : plan_.places)
    if (place.device.uuid != Uuid{}) list.devices.push_back(place.device);
  list.generation = list_.verdict.generation_max + 1;
  list.boot_epoch = std::max(list.boot_epoch, epoch_max_) + 1;
  return std::move(plan_);
}

}  // namespace

FoundFile<DeviceTable> look_at_list(io::Loop& loop, io::DiskFactory& disks, const std::string& dir,
                                    bool force_threads) {
  return look_at<DeviceTableScan>(loop, disks, list_path_in(dir), kDeviceTableStride, force_threads);
}

DeviceFound look_at_device(io::Loop& loop, io::DiskFactory& disks, const std::string& dir, bool own,
                           bool force_threads) {
  return {dir, own, look_at<SuperblockScan>(loop, disks, flash_path_in(dir), kSuperblockStride, force_threads)};
}

Result<DevicePlan> plan_devices(const FoundFile<DeviceTable>& list, std::span<const DeviceFound> found,
                                bool forget_missing, std::string& why) {
  KVD_CHECK(found.size() <= kDevicesMax);
  return Planner(list, found, forget_missing, why).plan();
}

}  // namespace kvd::store
