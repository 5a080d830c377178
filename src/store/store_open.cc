// Opening and closing a store: sizes, memory, directory, flash file, recovery, shrinking, what an end leaves behind.
#include <errno.h>

#include <bit>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error_text.h"
#include "base/huge_pages.h"
#include "base/sizes.h"
#include "store/open_devices.h"
#include "store/recovery.h"
#include "store/store_impl.h"

namespace kvd::store {
namespace {

constexpr std::uint64_t kPoolBytesMin = std::uint64_t{64} << 20;
constexpr std::uint32_t kSegmentsMin = 4;  // one open, one ready, one in reserve, one to hold something
constexpr std::uint64_t kFlashBytesPerIndexRecord = 64 << 10;
// Of a write budget: a fifth is left to the file system and to whatever else writes to the drive; nights are saved for
// days; and an opening, which knows nothing of what was written before, begins with ten minutes' worth.
constexpr double kBudgetShare = 0.8;
constexpr double kDaySeconds = 86'400;
constexpr double kBudgetFirstSeconds = 600;
constexpr Duration kPoolLookDelay = Millis(20);
constexpr Duration kListWait = Millis(500);              // at an orderly end, for segments that are being given up
constexpr Duration kLogEvery = std::chrono::seconds(5);  // lines of the log about a long recovery

Status invalid(std::string& why, std::string text) {
  why = std::move(text);
  return fail(Code::kInvalid, "impossible store sizes");
}

Status check_options(const StoreOptions& options, std::string& why) {
  if (!options.small_sizes && options.pool_bytes < kPoolBytesMin)
    return invalid(why, fmt::format("a pool of {} is too small: at least 64 MiB are needed: ask for more",
                                    show_size(options.pool_bytes)));
  if (options.pool_bytes / kPageBytes >= UINT32_MAX || options.pool_bytes < kPageBytes)
    return invalid(why, fmt::format("a pool of {} is not possible: ask for {} to 16 TiB", show_size(options.pool_bytes),
                                    options.small_sizes ? "4 KiB" : "64 MiB"));
  const std::uint64_t segment_min = options.small_sizes ? kPageBytes * 16 : kSegmentBytesMin;
  const std::uint64_t segment = options.segment_bytes;
  if (segment != 0 && (!std::has_single_bit(segment) || segment < segment_min || segment > kSegmentBytesMax))
    return invalid(why, fmt::format("segments of {} are not possible: ask for a power of two from 16 MiB to 256 MiB",
                                    show_size(segment)));
  if (!(options.drive_writes_per_day >= 0 && options.drive_writes_per_day <= 1000))
    return invalid(why, fmt::format("{} drive writes a day are not possible: ask for 0 (unbounded) to 1000",
                                    options.drive_writes_per_day));
  if (options.drive_writes_per_day > 0 && options.flash_bytes == 0 && options.devices.empty())
    return invalid(why, "a bound of drive writes asks for flash, and there is none: leave it out, or ask for flash");
  if (options.pinned_percent_max > 100)
    return invalid(why,
                   fmt::format("{} % of the pool cannot be pinned: ask for at most 100", options.pinned_percent_max));
  return {};
}

// Records that the index has room for. What a store that keeps its size, or all of its file, was once asked for is less
// than a segment more than it has: with room for fewer records than then, recovery would have to give segments up.
std::uint64_t index_records(const DeviceOptions& device, const Volume& volume) {
  const std::uint64_t bytes = device.flash_bytes_given ? device.flash_bytes : volume.offset_of(volume.segments() + 1);
  return std::max<std::uint64_t>(bytes / kFlashBytesPerIndexRecord, 1024);
}

double writes_a_day(const StoreOptions& options, const Volume& volume) {
  return kBudgetShare * options.drive_writes_per_day * static_cast<double>(volume.offset_of(volume.segments_wanted()));
}

// Largest record that a frame of its own in an empty segment can hold, beside header, reserve and footer.
std::uint64_t record_bytes_max(std::uint64_t segment_bytes) {
  const OpenSegment empty(static_cast<std::uint32_t>(segment_bytes / kPageBytes));
  const std::uint64_t other = (3 + empty.reserve_pages()) * kPageBytes;  // header, descriptors, footer
  return std::min<std::uint64_t>(segment_bytes > other ? segment_bytes - other : 0, kRecordBytesMax);
}

// What a device will take: see Store::device_sizes().
std::uint64_t file_bytes_of(const DeviceOptions& device) {
  const bool keeps = device.flash_bytes > 0 && !device.flash_bytes_given;
  const std::uint64_t kept = keeps ? flash_file_bytes(device.dir) : 0;
  return kept > 0 ? kept : device.flash_bytes;
}

DeviceLogs make_logs(Flash& flash, const StoreOptions& options) {
  DeviceLogs logs;
  for (const auto& device : flash.devices)
    logs.push_back(std::make_unique<DeviceLog>(flash, *device, options.scrub_bytes_per_s, options.list_uses));
  return logs;
}

}  // namespace

Result<std::unique_ptr<Store>> Store::open(io::Loop& loop, Log& log, const StoreOptions& options, std::string* why,
                                           io::DiskFactory* disks) {
  auto store = std::make_unique<StoreImpl>(loop, log, options);
  io::RealDisks real;
  std::string reason;
  const Status opened = store->open(disks == nullptr ? static_cast<io::DiskFactory&>(real) : *disks, reason);
  if (why != nullptr) *why = reason;
  if (!opened) return fail(opened.error());
  return store;
}

Status Store::check_directory(const StoreOptions& options, std::string* why) {
  std::string reason;
  Status checked;
  if (options.flash_bytes > 0 || !options.devices.empty()) checked = check_not_foreign(options.dir, reason);
  for (const DeviceOptions& device : options.devices)
    if (checked) checked = check_not_foreign(device.dir, reason);
  if (why != nullptr) *why = reason;
  return checked;
}

std::vector<DeviceOptions> Store::device_sizes(const StoreOptions& options) {
  std::vector<DeviceOptions> devices = options.devices;
  if (options.flash_bytes > 0)
    devices.insert(devices.begin(), {options.dir, options.flash_bytes, options.flash_bytes_given});
  for (DeviceOptions& device : devices) device.flash_bytes = file_bytes_of(device);
  return devices;
}

StoreImpl::StoreImpl(io::Loop& loop, Log& log, const StoreOptions& options)
    : loop_(loop),
      log_(log),
      options_(options),
      pool_ready_(loop, [this] { lend_pool(); }),
      trim_(loop, [this] { trim(); }),
      walk_(loop, [this] { walk(); }) {}

StoreImpl::~StoreImpl() {
  drain_.reset();
  if (tier_ != nullptr) tier_->loader.abandon_all(fail(Code::kCancelled, "the store is closing"));
  tier_.reset();
}

StoreImpl::FlashTier::FlashTier(io::Loop& loop, Log& log, StoreStats& stats, Namespaces& namespaces, Pool& pool,
                                std::vector<StoreDirectory> directories_in, std::vector<OpenedDevice> opened,
                                std::uint64_t index_records_max, const StoreOptions& options)
    : directories(std::move(directories_in)),
      flash(loop, log, stats, namespaces, std::move(opened), index_records_max, options.eviction),
      logs(make_logs(flash, options)),
      demoter(flash, pool, logs, {options.demote_after, options.demote_idle}),
      loader(flash, pool, logs, options.verify) {}

// The devices first: what is in flight uses buffers of the parts.
StoreImpl::FlashTier::~FlashTier() {
  for (const auto& device : flash.devices) device->volume.close();
}

void StoreImpl::FlashTier::ends() {
  demoter.flush_always();
  for (const auto& log : logs) log->evictor.ends();
}

Status StoreImpl::open(io::DiskFactory& disks, std::string& why) {
  if (auto checked = check_options(options_, why); !checked) return checked;
  options_.pool_bytes -= options_.pool_bytes % kPageBytes;
  uuid_ = random_uuid();
  if (options_.flash_bytes > 0 || !options_.devices.empty()) {
    if (auto opened = open_flash(disks, why); !opened) return opened;
    if (options_.prefault) pool_ready_.arm_in(kPoolLookDelay);
  } else {
    namespaces_ = std::make_unique<Namespaces>(std::min<std::uint64_t>(options_.pool_bytes / 4, kRecordBytesMax));
    stats_.recovery_percent.set(100);
    if (auto opened = open_pool(why); !opened) return opened;
    if (options_.prefault) pool_->prefault(log_);
  }
  return {};
}

// When its pages are there the disk may hold them: then they are huge where they can be, and holding them takes no
// time.
void StoreImpl::lend_pool() {
  if (pool_->prefaulted() == Pool::Prefault::kNotYet) return pool_ready_.arm_in(kPoolLookDelay);
  if (pool_->prefaulted() == Pool::Prefault::kDone)
    for (const auto& device : tier_->flash.devices) device->volume.disk().use_memory({pool_->base(), pool_->bytes()});
}

Status StoreImpl::open_pool(std::string& why) {
  auto pool = Pool::create(options_.pool_bytes, stats_, *namespaces_, options_.share_pool);
  if (!pool) {
    why = fmt::format("a pool of {} cannot be had: {}: ask for a smaller one", show_size(options_.pool_bytes),
                      error_text(pool.error()));
    return fail(pool.error());
  }
  pool_ = std::move(*pool);
  pool_->on_beyond([this](TenantSpace& tenant) { begin_trim(tenant); });
  return {};
}

Status StoreImpl::open_flash(io::DiskFactory& disks, std::string& why) {
  if (has_devices(loop_, disks, options_)) {
    auto opened = open_devices(loop_, log_, disks, options_, kSegmentsMin, why);
    return opened ? make_tier(std::move(*opened), why) : fail(opened.error());
  }
  auto directory = StoreDirectory::open(options_.dir, log_, why);
  if (!directory) return fail(directory.error());
  OpenedDevices only;
  only.wanted = {{options_.dir, options_.flash_bytes, options_.flash_bytes_given}};
  const DeviceOptions& device = only.wanted.front();
  VolumeOptions wanted;
  // A store whose superblocks are lost begins anew in all of its file, not in a part of it.
  wanted.flash_bytes = std::max(device.flash_bytes, file_bytes_of(device));
  wanted.flash_bytes_given = device.flash_bytes_given;
  wanted.segment_bytes = options_.segment_bytes;
  wanted.segments_min = kSegmentsMin;
  wanted.force_threads = options_.force_threads;
  auto volume = Volume::open(loop_, log_, disks, directory->flash_path(), wanted, why);
  if (!volume) return fail(volume.error());
  only.directories.push_back(std::move(*directory));
  only.volumes.push_back(std::move(*volume));
  return make_tier(std::move(only), why);
}

Status StoreImpl::make_tier(OpenedDevices opened, std::string& why) {
  std::uint64_t records = 0;
  double a_day = 0;
  std::vector<OpenedDevice> devices;
  for (std::size_t i = 0; i < opened.volumes.size(); ++i) {
    Volume& volume = opened.volumes[i];
    records += index_records(opened.wanted[i], volume);
    const double own = writes_a_day(options_, volume);
    a_day += own;
    const std::string& dir = opened.wanted[i].dir;
    const std::string name = opened.volumes.size() > 1 ? "device " + dir : "flash tier";
    devices.push_back(
        {dir, name, std::move(volume), policy::WriteBudget(own / kDaySeconds, kDaySeconds, kBudgetFirstSeconds)});
  }
  if (options_.index_records_max != 0) records = options_.index_records_max;
  const std::uint64_t record_bytes = record_bytes_max(devices.front().volume.segment_bytes());
  namespaces_ = std::make_unique<Namespaces>(std::min(options_.pool_bytes / 4, record_bytes), devices.size());
  if (auto taken = open_pool(why); !taken) return taken;
  if (a_day > 0)
    log_.info(
        fmt::format("store {}: at most {:.3g} GB a day are written to flash ({:g} of {:g} drive writes a day); "
                    "records beyond that stay in memory only",
                    options_.dir, a_day / 1e9, kBudgetShare, options_.drive_writes_per_day));
  tier_ = std::make_unique<FlashTier>(loop_, log_, stats_, *namespaces_, *pool_, std::move(opened.directories),
                                      std::move(devices), records, options_);
  // The index first: recovery touches most of it with its first records.
  const bool in_background = options_.prefault && can_collapse();
  if (!in_background) tier_->flash.index.use_huge_pages();
  if (options_.prefault) pool_->prefault(log_, in_background ? tier_->flash.index.populate() : Pool::Populate());
  connect();
  recovering_ = true;
  namespaces_->set_reading(true);
  stats_.recovering.set(1);
  return options_.recover_later ? Status{} : read_flash(why);
}

void StoreImpl::connect() {
  tier_->flash.removals_waiting_max = options_.removals_waiting_max;
  tier_->flash.tombstones_spent_max =
      options_.tombstones_spent_max != 0
          ? options_.tombstones_spent_max
          : std::max<std::size_t>(Tombstones::kSpentMax,
                                  tier_->flash.index.records_max() / Tombstones::kRecordsToSpent);
  tier_->flash.sweep_buckets = options_.index_sweep_buckets;
  for (const auto& log : tier_->logs) {
    log->device.health.on_change([this, &log = *log] { device_off(log); }, [this, &log = *log] { device_back(log); });
    log->evictor.on_progress([this] { tier_->demoter.kick(); });
    log->evictor.on_give_up([this](std::uint32_t segment) { tier_->loader.given_up(segment); });
  }
  tier_->demoter.on_reading([this] { return tier_->loader.busy(); });
  tier_->loader.on_drop([this](PoolRecord& record) { forget_record(record); });
  tier_->loader.on_promotion([this](const RecordKey& key) { return start_promotion(key); });
}

Status StoreImpl::recover(std::string* why) {
  if (!recovering_) return {};
  std::string reason;
  const Status recovered = read_flash(reason);
  if (why != nullptr) *why = reason;
  return recovered;
}

Status StoreImpl::read_flash(std::string& why) {
  Flash& flash = tier_->flash;
  const Time start = loop_.now();
  Recovery::Meanwhile serve;
  if (options_.recover_later) {
    log_.info(fmt::format("store {}: recovering {} segments; what is known of them is served meanwhile", options_.dir,
                          flash.segments.count()));
    serve = [this, tell_at = after(start, kLogEvery)] mutable {
      loop_.run_once(Duration::zero());
      if (loop_.now() >= tell_at) {
        log_.info(fmt::format("store {}: recovering, {} %", options_.dir, stats_.recovery_percent.value()));
        tell_at = after(loop_.now(), kLogEvery);
      }
      return drain_ == nullptr;
    };
  }
  std::optional<Recovery> recovery(std::in_place, flash, std::move(serve));
  const auto report = recovery->run();
  if (!report) {
    why = fmt::format("{}: {}: check the drive, or give another directory", options_.dir, error_text(report.error()));
    return fail(report.error());
  }
  const auto took = std::chrono::duration_cast<Millis>(loop_.now() - start);
  stats_.recovered_records.set(report->records);
  stats_.recovered_tombstones.set(report->tombstones);
  stats_.recovered_dropped.set(report->dropped);
  stats_.recovery_ms.set(static_cast<std::uint64_t>(took.count()));
  log_.info(
      fmt::format("store {}: {} records in {} of {} segments of {} MiB recovered in {} ms ({} without footer, {} "
                  "damaged records dropped), index of {:.1f} MiB, opening {}",
                  options_.dir, report->records, report->segments, flash.segments.count(), flash.segment_bytes() >> 20,
                  took.count(), report->scanned, report->dropped,
                  static_cast<double>(flash.index.memory_bytes()) / (1 << 20), flash.boot_epoch()));
  recovery.reset();  // what it has taken is needed again
  return begin_writing(why);
}

Status StoreImpl::begin_writing(std::string& why) {
  for (const auto& log : tier_->logs) log->reserve();
  if (tier_->flash.doubts_end) tier_->demoter.end_doubts();
  for (const auto& log : tier_->logs) {
    if (log->device.volume.segments_wanted() == log->device.segments.count()) {
      log->evictor.maintain();
    } else if (Status shrunk = shrink(*log, why); !shrunk) {
      return shrunk;
    }
  }
  tier_->flash.unhide_all();
  recovering_ = false;
  for (const auto& log : tier_->logs) {
    log->device.recovered = true;
    log->device.unknown = !log->device.health.on();
    log->device.health.may_probe(true);
  }
  namespaces_->set_reading(false);
  fit_flash_quotas();
  stats_.recovering.set(0);
  stats_.recovery_percent.set(100);
  for (const auto& log : tier_->logs)
    log->scrubber.start([this](const RecordKey& key, const FlashPlace& place) { forget_copy(key, place); });
  return {};
}

// Shrinking: what takes the tombstones of the first segments to be given up when none is free among those that stay:
// one that goes, which lends itself until the others have gone. A free one, else one with nothing to carry, of which
// there always is one: a store keeps a segment free, and a crash while that is filled leaves copies in it.
std::optional<std::uint32_t> StoreImpl::segment_to_lend(const FlashDevice& device) const {
  const Segments& segments = tier_->flash.segments;
  const DeviceSegments& own = device.segments;
  for (std::uint32_t s = own.first(); s < own.end(); ++s) {
    if (segments.at(s).state != SegmentState::kFree) continue;
    return s < device.numbered(device.volume.segments_wanted()) ? std::nullopt : std::optional(s);
  }
  const std::vector<bool> holds_for_others = device.tombstones.holders_for_others();
  for (std::uint32_t s = own.end(); s-- > own.first();)
    if (segments.at(s).state == SegmentState::kSealed && !holds_for_others[device.local(s)]) return s;
  return std::nullopt;
}

// Gives a segment up for good.
void StoreImpl::retire(DeviceLog& of, std::uint32_t segment) {
  FlashDevice& device = of.device;
  const Segments& segments = tier_->flash.segments;
  while (device.health.on() && drain_ == nullptr && segments.at(segment).state != SegmentState::kRetired) {
    const SegmentState state = segments.at(segment).state;
    if (state == SegmentState::kSealed) of.evictor.evict(segment, true);
    if (state == SegmentState::kReady && device.segments.ready_count() > 1) {
      device.segments.retire_ready(segment);
      of.evictor.maintain();
      return;
    }
    if (state == SegmentState::kOpen && device.segments.ready_count() > 0) of.writer.roll();
    loop_.run_once(Duration::max());
  }
}

// The store was opened smaller than it is: segments beyond the new size are given up, as in eviction, then cut off. A
// drain ends it as a crash would: the next start goes on.
Status StoreImpl::shrink(DeviceLog& of, std::string& why) {
  FlashDevice& device = of.device;
  const Segments& segments = tier_->flash.segments;
  log_.warn(fmt::format("store {}: shrinking from {} to {} segments", device.dir, device.segments.count(),
                        device.volume.segments_wanted()));
  tier_->demoter.flush_always();
  tier_->demoter.end_doubts();
  while (device.doubtful > 0 && device.health.on() && drain_ == nullptr) loop_.run_once(Duration::max());
  const std::uint32_t wanted = device.numbered(device.volume.segments_wanted());
  const std::uint32_t end = device.segments.end();
  const auto lent = segment_to_lend(device);
  device.segments.retire_from(wanted, lent);
  for (std::uint32_t s = wanted; s < end; ++s) device.segments.exclude(s);
  if (lent && segments.at(*lent).state == SegmentState::kSealed) of.evictor.evict(*lent);
  of.evictor.maintain();
  for (std::uint32_t s = wanted; s < end; ++s)
    if (s != lent) retire(of, s);
  device.segments.retire_from(wanted, {});  // what was lent and never needed
  if (lent && *lent >= wanted) retire(of, *lent);
  if (drain_ != nullptr) return fail(Code::kCancelled, "shrinking was stopped");
  tier_->demoter.flush_always(false);
  const auto shrunk = device.health.on() ? device.volume.shrink(loop_, log_) : tier_is_off();
  tier_->flash.update_gauges();
  if (shrunk) return {};
  why = fmt::format("{}: cannot be made smaller: {}: check the drive, or ask for the size that it has", device.dir,
                    error_text(shrunk.error()));
  return fail(shrunk.error());
}

// The end of a drain, when everything is on flash.
bool StoreImpl::list_uses() {
  Drain& drain = *drain_;
  if (drain.listing > 0) return drain.listed;
  if (drain.list_until == kNever) drain.list_until = after(loop_.now(), kListWait);
  const auto lists = [](const auto& log) { return log->device.health.on() && log->uses.possible(); };
  if (!options_.list_uses || std::ranges::none_of(tier_->logs, lists) || loop_.now() >= drain.list_until) return true;
  const auto busy = [](const auto& log) {
    return log->device.health.on() &&
           !(log->evictor.idle() && log->changes.idle() && log->writer.idle() && !log->device.writing());
  };
  if (std::ranges::any_of(tier_->logs, busy) || !tier_->demoter.settled()) return false;
  for (const auto& log : tier_->logs) drain.listing += lists(log) ? 1 : 0;
  const auto left = std::make_shared<std::size_t>(drain.listing);
  for (const auto& log : tier_->logs) {
    if (!lists(log)) continue;
    log->uses.write([this, left] {
      if (--*left == 0 && drain_ != nullptr) drain_->listed = true;
    });
  }
  return false;
}

std::array<std::byte, 16> StoreImpl::uuid() const noexcept {
  return tier_ == nullptr ? uuid_ : tier_->flash.devices.front()->volume.store();
}

std::uint64_t StoreImpl::boot_epoch() const noexcept { return tier_ == nullptr ? 1 : tier_->flash.boot_epoch(); }

}  // namespace kvd::store
