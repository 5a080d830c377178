#include "store/open_devices.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/error_text.h"
#include "store/copies_writer.h"
#include "store/store_devices.h"

namespace kvd::store {
namespace {

// As the list has it: whoever starts the depot may be anywhere.
std::string absolute(const std::string& dir) {
  std::error_code error;
  const auto path = std::filesystem::absolute(dir, error);
  if (error) return dir;
  std::string normal = path.lexically_normal().string();
  while (normal.size() > 1 && normal.ends_with('/')) normal.pop_back();
  return normal;
}

// Whether two paths name one directory, be it by links or mounts, or one that is not there yet.
bool same_directory(const std::string& a, const std::string& b) {
  std::error_code error, other;
  if (std::filesystem::equivalent(a, b, error)) return true;
  const auto there = std::filesystem::weakly_canonical(a, error);
  return there == std::filesystem::weakly_canonical(b, other) && !error && !other;
}

class Opening {
 public:
  Opening(io::Loop& loop, Log& log, io::DiskFactory& disks, const StoreOptions& options, std::uint32_t segments_min,
          std::string& why)
      : loop_(loop), log_(log), disks_(disks), options_(options), segments_min_(segments_min), why_(why) {
    if (options.flash_bytes > 0)
      wanted_.push_back({absolute(options.dir), options.flash_bytes, options.flash_bytes_given});
    for (const DeviceOptions& device : options.devices)
      wanted_.push_back({absolute(device.dir), device.flash_bytes, device.flash_bytes_given});
  }

  Result<OpenedDevices> run() {
    if (auto checked = check_wanted(); !checked) return fail(checked.error());
    if (auto checked = check_own(); !checked) return fail(checked.error());
    if (auto locked = lock(options_.dir); !locked) return fail(locked.error());
    if (auto planned = plan(); !planned) return fail(planned.error());
    for (const DevicePlace& place : plan_.places)
      if (const std::string& dir = found_[*place.found].dir; !found_[*place.found].own)
        if (auto locked = lock(dir); !locked) return fail(locked.error());
    // Nobody else changes anything from here on.
    if (auto planned = plan(); !planned) return fail(planned.error());
    if (auto sized = choose_sizes(); !sized) return fail(sized.error());
    for (const auto& [level, text] : plan_.notes) log_.write(level, text);
    if (auto taken = take(); !taken) return fail(taken.error());
    return std::move(opened_);
  }

 private:
  Status refuse(std::string why) {
    why_ = std::move(why);
    return fail(Code::kInvalid, "the devices are not those of the store");
  }

  Status check_wanted() {
    if (wanted_.size() > kDevicesMax)
      return refuse(fmt::format("{} devices are too many: give at most {}", wanted_.size(), kDevicesMax));
    for (std::size_t i = 0; i < wanted_.size(); ++i)
      for (std::size_t other = 0; other < i; ++other)
        if (same_directory(wanted_[i].dir, wanted_[other].dir))
          return refuse(wanted_[i].dir == wanted_[other].dir
                            ? fmt::format("{} is named twice: leave one of them out", wanted_[i].dir)
                            : fmt::format("{} and {} are the same directory: leave one of them out", wanted_[other].dir,
                                          wanted_[i].dir));
    if (options_.flash_bytes > 0) return {};
    for (const DeviceOptions& device : options_.devices)
      if (same_directory(device.dir, options_.dir))
        return refuse(
            fmt::format("{} is the store's own directory: ask for flash there, not for a device", device.dir));
    return {};
  }

  // Without flash of its own the store's directory is not looked at; a store that is there must not lie idle.
  Status check_own() {
    if (options_.flash_bytes > 0) return {};
    const auto own = look_at_device(loop_, disks_, options_.dir, true, options_.force_threads);
    if (own.file.verdict.kind == CopiesKind::kValid && !own.file.verdict.in_force.member())
      return refuse(fmt::format("{}: holds a store by itself: ask for flash there, too, or move its flash.kvd away",
                                options_.dir));
    return {};
  }

  Status lock(const std::string& dir) {
    const auto locked = [&](const StoreDirectory& other) { return other.path() == dir; };
    if (std::ranges::any_of(opened_.directories, locked)) return {};
    auto directory = StoreDirectory::open(dir, log_, why_);
    if (!directory) return fail(directory.error());
    opened_.directories.push_back(std::move(*directory));
    return {};
  }

  Status plan() {
    const bool threads = options_.force_threads;
    const std::string own = absolute(options_.dir);
    found_.clear();
    for (const DeviceOptions& device : wanted_)
      found_.push_back(look_at_device(loop_, disks_, device.dir, device.dir == own, threads));
    auto planned =
        plan_devices(look_at_list(loop_, disks_, options_.dir, threads), found_, options_.forget_missing, why_);
    if (!planned) return fail(planned.error());
    plan_ = std::move(*planned);
    for (const DevicePlace& place : plan_.places)
      if (!place.found)
        return refuse(
            fmt::format("{}: device {} (last at {}) is missing, {}: attach or mount it, or start once with "
                        "--forget-missing to go on without what it holds (and without its --device, if no new drive is "
                        "there)",
                        options_.dir, uuid_text(place.device.uuid), place.device.path, place.away));
    if (plan_.places.empty()) return refuse(fmt::format("{}: no device is left: name one", options_.dir));
    return {};
  }

  [[nodiscard]] VolumeOptions options_of(const DevicePlace& place) const {
    const DeviceOptions& wanted = wanted_[*place.found];
    const bool moved = !place.anew && !place.device.path.empty() && place.device.path != wanted.dir;
    VolumeOptions options;
    // What is begun anew, and is not told its size, takes all of its file, as a store alone does.
    const bool all = place.anew && !wanted.flash_bytes_given;
    options.flash_bytes = std::max(wanted.flash_bytes, all ? flash_file_bytes(wanted.dir) : 0);
    options.flash_bytes_given = wanted.flash_bytes_given && !moved;
    options.segment_bytes = plan_.list.segment_bytes;
    options.segments_min = segments_min_;
    options.force_threads = options_.force_threads;
    return options;
  }

  // All sizes are checked before anything is written.
  Status choose_sizes() {
    DeviceTable& list = plan_.list;
    if (list.store == Uuid{}) list.store = random_uuid();
    if (list.segment_bytes == 0) list.segment_bytes = options_.segment_bytes;
    if (list.segment_bytes == 0) {
      std::uint64_t smallest = UINT64_MAX;
      for (const DevicePlace& place : plan_.places) smallest = std::min(smallest, wanted_[*place.found].flash_bytes);
      list.segment_bytes = default_segment_bytes(smallest);
    }
    std::uint64_t segments = 0;
    for (const DevicePlace& place : plan_.places) {
      const auto& file = found_[*place.found].file;
      const auto wanted = Volume::segments_of_member(file, options_of(place), place.anew, why_);
      if (!wanted) return fail(wanted.error());
      segments += std::max<std::uint64_t>(*wanted, place.anew ? 0 : file.verdict.in_force.segments);
    }
    if (segments > kSegmentsMax)
      return refuse(
          fmt::format("{} segments are too many: ask for less flash, {} are possible", segments, kSegmentsMax));
    return {};
  }

  Status take() {
    io::DiskOptions list_options;
    list_options.bytes = kDeviceTableFileBytes;
    list_options.force_threads = options_.force_threads;
    const std::string list_path = list_path_in(options_.dir);
    auto list_disk = disks_.open(loop_, log_, list_path, list_options);
    if (!list_disk) {
      why_ = fmt::format("{}: cannot be made: {}: free space, or give another directory", list_path,
                         error_text(list_disk.error()));
      return fail(list_disk.error());
    }
    if (auto written = write_list(**list_disk); !written) return written;
    const DeviceTable& list = plan_.list;
    std::vector<ListedDevice> devices;
    for (const DevicePlace& place : plan_.places) {
      const DeviceFound& found = found_[*place.found];
      auto volume = Volume::open_member(loop_, log_, disks_, found.file, options_of(place),
                                        {list.store, list.boot_epoch, place.anew}, why_);
      if (!volume) return fail(volume.error());
      devices.push_back({volume->superblock().uuid, volume->segments(), list.boot_epoch, found.dir});
      opened_.volumes.push_back(std::move(*volume));
      DeviceOptions wanted = wanted_[*place.found];
      wanted.flash_bytes_given = options_of(place).flash_bytes_given;
      opened_.wanted.push_back(std::move(wanted));
    }
    plan_.list.devices = std::move(devices);
    plan_.list.generation += 1;
    return write_list(**list_disk);
  }

  Status write_list(io::Disk& disk) {
    const auto encode = [this](MutableBytes page, std::uint32_t copy) { encode_device_table(page, plan_.list, copy); };
    Status written = write_copies(loop_, disk, kDeviceTableStride, encode);
    if (!written)
      why_ = fmt::format("{}: cannot be written: {}: check the drive, or give another directory",
                         list_path_in(options_.dir), error_text(written.error()));
    return written;
  }

  io::Loop& loop_;
  Log& log_;
  io::DiskFactory& disks_;
  const StoreOptions& options_;
  const std::uint32_t segments_min_;
  std::string& why_;

  std::vector<DeviceOptions> wanted_;
  std::vector<DeviceFound> found_;  // of each
  DevicePlan plan_;
  OpenedDevices opened_;
};

}  // namespace

bool has_devices(io::Loop& loop, io::DiskFactory& disks, const StoreOptions& options) {
  if (!options.devices.empty()) return true;
  const auto list = look_at_list(loop, disks, options.dir, options.force_threads);
  return list.verdict.kind != CopiesKind::kEmpty;
}

Result<OpenedDevices> open_devices(io::Loop& loop, Log& log, io::DiskFactory& disks, const StoreOptions& options,
                                   std::uint32_t segments_min, std::string& why) {
  return Opening(loop, log, disks, options, segments_min, why).run();
}

}  // namespace kvd::store
