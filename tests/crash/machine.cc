#include "crash/machine.h"

#include <algorithm>
#include <deque>
#include <functional>

#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "block/checksum.h"
#include "io/sim/sim_loop.h"
#include "store/device_table.h"
#include "store/format.h"
#include "store/index.h"
#include "store/namespaces.h"
#include "store/testing/store_kit.h"

namespace kvd::crash {
namespace {

constexpr Duration kAnswerMax = std::chrono::seconds(20);  // a device that works answers within milliseconds
constexpr store::NamespaceHandle kNotOpen = store::StoreKit::kNotOpen;
constexpr std::uint64_t kIndexRecords = 64;  // at which the twins meet
constexpr std::uint64_t kDriveBytes = store::kHeadBytes + kSegments * kSegmentBytes;

Namespace name_space() {
  Namespace ns;
  ns.fingerprint = "crash states";
  ns.groups = {{0, 1, slab_bytes_of(0), 1, 16, HitRule::kAll, 0, "small"},
               {1, 2, slab_bytes_of(kSmall), 1, 16, HitRule::kAll, 0, "large"}};
  return ns;
}

std::uint64_t number_of(std::size_t record) { return record == 0 ? kTwinNumber : record; }

block::RecordId id_of(std::size_t record) {
  return store::id_of(number_of(record), record < kSmall ? std::uint16_t{0} : std::uint16_t{1});
}

std::vector<std::byte> foreign_of(std::size_t record) {
  return record < kSmall ? std::vector<std::byte>{} : store::foreign_of(number_of(record));
}

// A store on simulated drives, with a virtual clock.
class Session {
 public:
  Session(const std::string& dir, bool verify, const Machine::Kind& kind, const Start& start, Journal& journal)
      : disks_(1, {.discards = kind.discards, .poison_reads = false}) {
    options_.dir = dir + "/store";
    options_.pool_bytes = 48 * kPageBytes;
    options_.flash_bytes = kDriveBytes;
    options_.segment_bytes = kSegmentBytes;
    options_.index_records_max = kIndexRecords;
    options_.demote_after = Millis(50);
    options_.demote_idle = Millis(5);
    options_.prefault = false;
    options_.list_uses = kind.lists_uses;
    options_.tombstones_spent_max = kind.tombstones_spent_max;
    options_.verify = verify;
    options_.small_sizes = true;
    const std::array paths = {dir + "/store/flash.kvd", dir + "/device/flash.kvd", dir + "/store/devices.kvd"};
    if (start.oracle.devices() > 1) options_.devices = {{dir + "/device", kDriveBytes, false}};
    for (std::size_t i = 0; i < kDrives; ++i) {
      if (i > 0 && start.oracle.devices() == 1) continue;
      std::vector<io::SimWrite> unflushed;
      for (const io::SimWrite& write : start.unflushed)
        if (drive_of(write.offset) == i)
          unflushed.push_back({.offset = write.offset % kDriveSpan, .bytes = write.bytes});
      io::SimDrive& drive = disks_.drive(paths[i]);
      drive.start_from(i == kListDrive ? store::kDeviceTableFileBytes : kDriveBytes, start.durable.bytes(i),
                       std::move(unflushed));
      drive.observe(&taps_.emplace_back(journal, i, on_completion_));
    }
  }
  ~Session() {
    disks_.kill({});
    opened.reset();
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // `meanwhile`: what to do after each operation that completes while the store recovers, which it does before open()
  // of the store returns when there is nothing to do.
  bool open(std::vector<std::string>& wrong, const std::function<void()>& meanwhile = {}) {
    std::string why;
    options_.recover_later = static_cast<bool>(meanwhile);
    auto result = store::Store::open(loop, log_, options_, &why, &disks_);
    if (!result) {
      wrong.push_back("the store refuses to open: " + why);
      return false;
    }
    opened = std::move(*result);
    io::Timer ask(loop, [&] {
      static_cast<void>(name());  // not before flash has told of both groups
      meanwhile();
    });
    if (meanwhile) on_completion_ = [&] { ask.arm(loop.now()); };
    const auto recovered = opened->recover(&why);
    on_completion_ = nullptr;
    if (!recovered) {
      wrong.push_back("the store does not recover: " + why);
      return false;
    }
    KVD_CHECK(name());
    return true;
  }

  // Opens the namespace, unless it is open.
  bool name() {
    if (ns != kNotOpen) return true;
    const auto handle = opened->open_namespace(name_space());
    if (handle) ns = *handle;
    return handle.has_value();
  }

  // The version of `record` that a get yields, 0 for a miss; adds to `wrong` what nobody put.
  std::uint8_t judge(std::size_t record, const store::RecordView& view, std::vector<std::string>& wrong) const {
    const std::uint32_t bytes = slab_bytes_of(record);
    const std::uint8_t version = version_of(record, {view.first_slab, bytes});
    bool right = version != 0;
    for (std::uint32_t layer = 0; right && layer < view.checksums.size(); ++layer)
      right = store::slab_is({view.first_slab + std::size_t{layer} * view.slab_stride, bytes}, record, version, layer);
    if (!right) wrong.push_back(fmt::format("record {}: bytes that nobody put under this key", record));
    return right ? version : std::uint8_t{0};
  }

  // Asks for all records at once, then for the ghost.
  std::array<std::uint8_t, kRecords> find_all(std::vector<std::string>& wrong) {
    std::array<std::uint8_t, kRecords> versions{};
    std::array<store::Get, kRecords> gets;
    std::array<std::vector<std::byte>, kRecords> foreign;
    std::size_t left = kRecords;
    for (std::size_t n = 0; n < kRecords; ++n) {
      foreign[n] = foreign_of(n);
      gets[n].ns = ns;
      gets[n].id = id_of(n);
      gets[n].foreign = foreign[n];
      gets[n].on_done = [&, n](Result<store::RecordView> view) {
        if (view) versions[n] = judge(n, *view, wrong);
        --left;
      };
      opened->start_get(gets[n]);
    }
    if (!loop.run_until([&] { return left == 0; }, kAnswerMax)) {
      wrong.push_back(fmt::format("{} gets are never answered", left));
      for (store::Get& get : gets)
        if (get.internal != nullptr) opened->cancel(get);
    }
    return versions;
  }

  void look_for_the_ghost(std::vector<std::string>& wrong) {
    store::Get get;
    get.ns = ns;
    get.id = store::id_of(kGhostNumber);
    bool done = false;
    get.on_done = [&](Result<store::RecordView> view) {
      done = true;
      if (view) wrong.push_back("a record that was never put is given out: the bytes of another key");
    };
    opened->start_get(get);
    loop.run_until([&] { return done; }, kAnswerMax);
    if (get.internal != nullptr) opened->cancel(get);
    if (!done) wrong.push_back("a get is never answered");
  }

  // A store that has recovered must take new records, too: one that is none of the workload's.
  void write_one_more(std::vector<std::string>& wrong) {
    auto put = opened->begin_put(ns, store::id_of(kRecords), {});
    if (!put || !*put) return wrong.push_back("a new record is refused");
    store::fill_slab(put->slab(0), kRecords, 1, 0);
    const std::uint64_t checksum = block::slab_checksum(put->seed(), 0, put->slab(0));
    std::optional<Status> answer;
    opened->complete_put(std::move(*put), {&checksum, 1}, AckLevel::kWritten, [&](Status status) { answer = status; });
    if (!loop.run_until([&] { return answer.has_value(); }, kAnswerMax)) {
      wrong.push_back(fmt::format("a new record is never written: {} segments free, {} given up",
                                  opened->stats().segments_free.value(), opened->stats().segments_evicted.value()));
      wrong.push_back(fmt::format("{} tombstones written", opened->stats().tombstones.value()));
    } else if (!*answer) {
      wrong.push_back("a new record cannot be written");
    }
  }

  io::SimClock clock;
  io::SimLoop loop{clock};
  std::unique_ptr<store::Store> opened;
  store::NamespaceHandle ns = kNotOpen;

 private:
  NullLog log_;
  std::function<void()> on_completion_;
  std::deque<DriveTap> taps_;
  io::SimDisks disks_;
  store::StoreOptions options_;
};

// Asks a store for its records while it recovers, each as soon as it says that it has it. What it gives out then must
// be allowed at that time (unless the drive has lost what says so), and there when recovery has ended.
class EarlyReader {
 public:
  EarlyReader(Session& session, const Journal& journal, Found& found)
      : session_(session), journal_(journal), wrong_(found.wrong), undead_(found.undead) {}
  ~EarlyReader() {
    for (Asked& asked : asked_)
      if (asked.get.internal != nullptr) session_.opened->cancel(asked.get);
  }
  EarlyReader(const EarlyReader&) = delete;
  EarlyReader& operator=(const EarlyReader&) = delete;

  void ask() {
    if (session_.opened->recovering() && session_.opened->stats().flash_bytes_written.value() > 0)
      wrong_.push_back("frames or headers are written before recovery has ended");
    for (std::size_t n = 0; n < kRecords; ++n)
      if (!asked_[n].begun && session_.opened->lookup(session_.ns, id_of(n)) != Tier::kNone) begin(n);
  }
  // `after`: what was found when recovery had ended.
  void compare(const std::array<std::uint8_t, kRecords>& after) {
    for (std::size_t n = 0; n < kRecords; ++n) {
      const std::uint8_t early = asked_[n].version;
      if (asked_[n].get.internal != nullptr) wrong_.push_back("a get during recovery is never answered");
      if (early != 0 && early != after[n] && !journal_.oracle().lost_its_segment(n, early))
        wrong_.push_back(fmt::format("record {}: version {} during recovery, {} after it", n, early, after[n]));
    }
  }

 private:
  struct Asked {
    bool begun = false;
    std::uint8_t version = 0;
    std::vector<std::byte> foreign;
    store::Get get;
  };

  // In passing, so that nothing of it is in the pool when recovery has ended.
  void begin(std::size_t n) {
    Asked& asked = asked_[n];
    asked.begun = true;
    asked.foreign = foreign_of(n);
    asked.get.ns = session_.ns;
    asked.get.id = id_of(n);
    asked.get.foreign = asked.foreign;
    asked.get.passing = true;
    asked.get.on_done = [this, n](Result<store::RecordView> view) {
      if (!view) return;
      const std::uint8_t version = asked_[n].version = session_.judge(n, *view, wrong_);
      if (version != 0 && !journal_.oracle().allowed(n, version, Crash::kKill))
        undead_.push_back(
            fmt::format("record {}: version {} is given out during recovery, it was removed", n, version));
    };
    session_.opened->start_get(asked.get);
  }

  Session& session_;
  const Journal& journal_;
  std::vector<std::string>& wrong_;
  std::vector<std::string>& undead_;
  std::array<Asked, kRecords> asked_;
};

// Random operations on a store.
class Workload {
 public:
  Workload(Session& session, Journal& journal, std::uint64_t seed)
      : session_(session), journal_(journal), random_(seed), current_(session.find_all(wrong)) {}

  void run(int steps) {
    for (int i = 0; i < steps && wrong.empty(); ++i) step(random_.below(kRecords));
    if (!random_.chance(1, 4)) return;
    bool drained = false;
    session_.opened->drain(after(session_.loop.now(), kAnswerMax), [&] { drained = true; });
    if (!session_.loop.run_until([&] { return drained; }, 2 * kAnswerMax)) wrong.push_back("a drain does not end");
    if (drained) session_.opened.reset();
  }

 private:
  void step(std::size_t record) {
    switch (random_.below(20)) {
      case 0:
      case 1:
      case 2: return remove(record);
      case 3: return get(record);
      case 4: return session_.opened->promote(session_.ns, id_of(record));
      case 5: return session_.loop.run_for(Millis(static_cast<std::int64_t>(random_.below(20))));
      default: put(record);
    }
    // Most of the time others are asked for while the device works.
    if (random_.chance(2, 3))
      session_.loop.run_for(std::chrono::microseconds(static_cast<std::int64_t>(random_.below(400))));
  }

  [[nodiscard]] auto acknowledge(std::size_t record, std::uint8_t version, AckLevel level) {
    return [this, record, version, level](Status status) {
      if (status && level != AckLevel::kPooled) return journal_.acknowledged(record, version, level);
      if (!status && status.error().code == Code::kIo) wrong.push_back("a put ends with an I/O error");
    };
  }

  void put(std::size_t record) {
    const auto level = static_cast<AckLevel>(random_.below(3));
    const bool replaces = random_.chance(1, 3);
    if (!replaces && session_.opened->lookup(session_.ns, id_of(record)) != Tier::kNone) {
      if (current_[record] == 0 || !random_.chance(1, 3)) return;
      return session_.opened->await(session_.ns, id_of(record), level, acknowledge(record, current_[record], level));
    }
    const auto foreign = foreign_of(record);
    auto put = replaces ? session_.opened->begin_replacement(session_.ns, id_of(record), foreign)
                        : session_.opened->begin_put(session_.ns, id_of(record), foreign);
    if (!put || !*put) return;  // no room
    const std::uint8_t version = journal_.put(record);
    if (version == 0) return;
    current_[record] = version;
    std::vector<std::uint64_t> checksums;
    const std::uint16_t layers = record < kSmall ? 1 : 2;
    for (std::uint16_t layer = 0; layer < layers; ++layer) {
      store::fill_slab(put->slab(layer), record, version, layer);
      checksums.push_back(block::slab_checksum(put->seed(), layer, put->slab(layer)));
    }
    session_.opened->complete_put(std::move(*put), checksums, level, acknowledge(record, version, level));
  }

  void remove(std::size_t record) {
    journal_.removed(record);
    session_.opened->remove(session_.ns, id_of(record));
    current_[record] = 0;
    if (random_.chance(1, 2)) return;
    const std::size_t before = journal_.oracle().removals();
    session_.opened->await_removals([this, before](Status status) {
      if (status) return journal_.removals_acknowledged(before);
      wrong.push_back("a removal ends with an error");
    });
  }

  void get(std::size_t record) {
    store::Get get;
    const auto foreign = foreign_of(record);
    get.ns = session_.ns;
    get.id = id_of(record);
    get.foreign = foreign;
    bool done = false;
    get.on_done = [&](Result<store::RecordView> view) {
      done = true;
      if (!view) return;
      const std::uint8_t version = session_.judge(record, *view, wrong);
      if (version != current_[record])
        wrong.push_back(fmt::format("record {}: version {} instead of {}", record, version, current_[record]));
    };
    session_.opened->start_get(get);
    session_.loop.run_until([&] { return done; }, kAnswerMax);
    if (get.internal != nullptr) session_.opened->cancel(get);
    if (!done) wrong.push_back("a get is never answered");
  }

 public:
  std::vector<std::string> wrong;

 private:
  Session& session_;
  Journal& journal_;
  Random random_;
  std::array<std::uint8_t, kRecords> current_;  // the version that a get must yield unless it is evicted; 0 = none
};

}  // namespace

std::optional<std::size_t> record_of(std::uint64_t key_lo) noexcept {
  for (std::size_t record = 0; record < kRecords; ++record)
    if (number_of(record) == key_lo) return record;
  return std::nullopt;
}

std::uint32_t slab_bytes_of(std::size_t record) noexcept { return record < kSmall ? 120 : 600; }

std::uint8_t version_of(std::size_t record, Bytes image) {
  const std::size_t slab = record < kSmall || image.size() < kPageBytes ? 0 : kPageBytes;
  for (std::uint8_t version = 1; version <= kVersionsMax; ++version)
    if (store::slab_is(image.subspan(slab, 8), record, version, 0)) return version;
  return 0;
}

namespace {

store::Uuid uuid_of(std::uint8_t first) {
  store::Uuid uuid{};
  for (std::size_t i = 0; i < uuid.size(); ++i) uuid[i] = static_cast<std::byte>(first + i);
  return uuid;
}

void format_superblocks(Start& start, std::size_t drive, store::Superblock block) {
  block.generation = 1;
  block.segment_bytes = kSegmentBytes;
  block.segments = kSegments;
  std::array<std::byte, kPageBytes> page{};
  for (; block.copy < store::kSuperblockCopies; ++block.copy) {
    store::encode_superblock(page, block);
    start.durable.write(drive * kDriveSpan + block.copy * store::kSuperblockStride, page);
  }
}

}  // namespace

Start formatted(std::uint8_t devices) {
  Start start{.durable = {}, .unflushed = {}, .oracle = Oracle(devices)};
  store::Superblock block;
  if (devices == 1) {
    block.uuid = uuid_of(1);
    format_superblocks(start, 0, block);
    return start;
  }
  store::DeviceTable list;
  list.store = uuid_of(100);
  list.generation = list.boot_epoch = 1;
  list.segment_bytes = kSegmentBytes;
  block.features_incompatible = store::kFeatureMember;
  block.store = list.store;
  block.boot_epoch = list.boot_epoch;
  for (std::uint8_t drive = 0; drive < devices; ++drive) {
    block.uuid = uuid_of(static_cast<std::uint8_t>(1 + 20 * drive));
    format_superblocks(start, drive, block);
    list.devices.push_back({.uuid = block.uuid, .segments = kSegments, .confirmed = list.boot_epoch, .path = {}});
  }
  std::array<std::byte, kPageBytes> page{};
  for (std::uint32_t copy = 0; copy < store::kSuperblockCopies; ++copy) {
    store::encode_device_table(page, list, copy);
    start.durable.write(kListDrive * kDriveSpan + copy * store::kDeviceTableStride, page);
  }
  return start;
}

Machine::Machine(std::string dir, bool verify) : dir_(std::move(dir)), verify_(verify) {
  const auto ns = block::hash_namespace(name_space().tenant, as_bytes(name_space().fingerprint));
  store::FlashIndex index(kIndexRecords);
  index.insert(store::record_hash(ns, store::id_of(kTwinNumber)), {.offset = 1, .pages = 1});
  KVD_CHECK(index.find(store::record_hash(ns, store::id_of(kGhostNumber))).has_value());  // they cannot be told apart
}

Found Machine::recover(const Start& start, Journal& journal) {
  Found found;
  Session session(dir_, verify_, kind_, start, journal);
  EarlyReader early(session, journal, found);
  if (!session.open(found.wrong, [&] { early.ask(); })) return found;
  // Segments are given up and made ready; each may wait for the discards of those before it, or for another device, and
  // for tombstones most of them may go, two at a time.
  const int settles = kind_.discards                    ? 200
                      : kind_.tombstones_spent_max != 0 ? 100
                      : start.oracle.devices() > 1      ? 30
                                                        : 10;
  session.loop.run_for(Millis(settles));
  journal.freeze();
  found.before = journal.oracle();
  found.versions = session.find_all(found.wrong);
  early.compare(found.versions);
  found.dropped = session.opened->stats().corrupt.value();
  session.write_one_more(found.wrong);
  session.look_for_the_ghost(found.wrong);
  const std::uint64_t pool_used = session.opened->stats().pool_bytes_used.value();
  if (pool_used > 48 * kPageBytes) found.wrong.push_back("the pool is larger than it may be");
  if (session.opened->stats().tier_outages.value() != 0) found.wrong.push_back("a device of the flash tier went off");
  return found;
}

std::vector<std::string> Machine::work(const Start& start, Journal& journal, std::uint64_t seed, int steps) {
  std::vector<std::string> wrong;
  Session session(dir_, verify_, kind_, start, journal);
  if (!session.open(wrong)) return wrong;
  Workload workload(session, journal, seed);
  workload.run(steps);
  journal.freeze();
  return workload.wrong;
}

}  // namespace kvd::crash
