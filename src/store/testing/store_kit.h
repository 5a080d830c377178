// StoreKit: a store on a simulated machine: virtual time, a disk in memory that fails on purpose, records whose bytes
// follow from their number and version. For tests; everything belongs to the calling thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "io/sim/sim_disk.h"
#include "io/sim/sim_loop.h"
#include "store/store.h"

namespace kvd::store {

// A directory that is removed with everything in it.
class TempDir {
 public:
  TempDir();  // where temporary files go
  explicit TempDir(const std::string& folder);
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

// The bytes of one slab of record `number`, version `version`.
void fill_slab(MutableBytes slab, std::uint64_t number, std::uint64_t version, std::uint32_t layer);
bool slab_is(Bytes slab, std::uint64_t number, std::uint64_t version, std::uint32_t layer);

// The key of record `number`, and its foreign key (32 bytes).
block::RecordId id_of(std::uint64_t number, std::uint16_t group = 0);
std::vector<std::byte> foreign_of(std::uint64_t number);

// A namespace with one group: `layers` slabs of `slab_bytes`.
Namespace namespace_of(std::uint16_t layers, std::uint32_t slab_bytes, const std::string& fingerprint = "model");

// Whether a message says it.
inline bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class StoreKit {
 public:
  static constexpr NamespaceHandle kNotOpen = UINT32_MAX;  // that no namespace has

  // Small sizes: segments of 256 KiB, 8 of them, a pool of 1 MiB, records of 4 layers of 5,000 bytes (36 KiB images).
  explicit StoreKit(std::uint64_t seed = 1, const io::SimDiskModel& model = {});
  ~StoreKit();

  // One device more, before the store is opened.
  void add_device(std::uint64_t segments = 8);
  // Opens the store and its namespace. On failure `why` has the reason. With options.recover_later the namespace is
  // opened as soon as that is possible, and `meanwhile`, if given, is called every 20 us of the recovery.
  Status open();
  // Ends the store as SIGTERM does: everything is written first.
  void close();
  // Ends the process or the machine now, and the store object with it.
  void kill(std::uint64_t seed = 1);
  void lose_power(std::uint64_t seed = 1, std::uint32_t keep_percent = 50);

  // Stores record `number` as `version`; the acknowledgement, or why there is none. Runs the loop until it is there.
  Status put(std::uint64_t number, std::uint64_t version = 1, AckLevel level = AckLevel::kPooled);
  // Begins to store record `number`; its acknowledgement goes into `code`, which must outlive it.
  void start_put(std::uint64_t number, std::optional<Code>& code, AckLevel level = AckLevel::kWritten);
  // Stores it as `version` in the place of what is there.
  Status replace(std::uint64_t number, std::uint64_t version, AckLevel level = AckLevel::kPooled);
  // The version of the record's layers [first, first + count), 0 for a miss (`why_missed` tells which); aborts on wrong
  // bytes unless `wrong` is given, which then counts them. Runs the loop until it is there.
  std::uint64_t get(std::uint64_t number, std::uint16_t first = 0, std::uint16_t count = 0);
  // Where slab `layer` of record `number`, put as `version`, lies on a drive: the first such place.
  std::optional<std::uint64_t> find_on_drive(std::uint64_t number, std::uint64_t version = 1, std::uint32_t layer = 0,
                                             std::size_t device = 0);
  // Where this segment of a drive begins; and which one holds slab 0 of record `number`, put as `version`: the first.
  [[nodiscard]] std::uint64_t segment_at(std::uint64_t segment) const;
  std::uint32_t segment_of(std::uint64_t number, std::uint64_t version = 1, std::size_t device = 0);
  // Turns over one bit of a record's image in the pool, in slab `layer`. False when it is not there.
  bool flip_in_pool(std::uint64_t number, std::uint16_t layer);
  bool remove(std::uint64_t number) { return store->remove(ns, id_of(number)); }
  // What is answered to who waits for all removals so far; nothing: no answer within `limit`, and none is told later.
  std::optional<Code> await_removals(Duration limit);
  [[nodiscard]] Tier lookup(std::uint64_t number) const { return store->lookup(ns, id_of(number)); }
  // Time passes until everything dirty is on flash (idle demotion).
  void settle();
  // Ends the store orderly and opens it again: everything is on flash only.
  Status reopen();

  [[nodiscard]] const StoreStats& stats() const { return store->stats(); }
  // Device 0 is that in the store's directory, the others were added.
  [[nodiscard]] std::string path_of(std::size_t device) const {
    return (device == 0 ? options.dir : options.devices[device - 1].dir) + "/flash.kvd";
  }
  [[nodiscard]] io::SimDrive& drive(std::size_t device = 0) { return disks.drive(path_of(device)); }

  io::SimClock clock;
  io::SimLoop loop{clock};
  io::SimDisks disks;
  RecordingLog log;
  TempDir dir;
  StoreOptions options;
  Namespace name_space;
  std::unique_ptr<Store> store;
  NamespaceHandle ns = kNotOpen;
  std::string why;
  std::optional<Code> why_missed;
  bool passing = false;  // of the gets that get() makes
  std::function<void()> meanwhile;
  std::uint64_t versions_max = 8;  // that get() recognises
  std::uint64_t* wrong = nullptr;  // counts gets with bytes that nobody put

 private:
  Status recover();
  Status open_namespace();
  Status finish(Result<PutHandle> put, std::uint64_t number, std::uint64_t version, AckLevel level);
  void complete(PutHandle put, std::uint64_t number, std::uint64_t version, AckLevel level,
                std::move_only_function<void(Status)> on_ack);
  std::uint64_t version_of(const RecordView& view, std::uint64_t number, std::uint16_t first, std::uint16_t count);
};

// Gets that are under way together, past the pool. The store ends before it goes.
class ManyGets {
 public:
  explicit ManyGets(StoreKit& kit) : kit_(kit) {}

  // Begins one of record `number`; `layers` 0: of all.
  void ask(std::uint64_t number, Time deadline = kNever, std::uint16_t layers = 0);
  [[nodiscard]] std::size_t size() const noexcept { return asked_.size(); }
  // Whether one of them is over. forget_over(): those are not counted any more.
  [[nodiscard]] bool some_over() const;
  void forget_over();
  // That brought the record, since the start.
  [[nodiscard]] std::uint64_t hits() const noexcept { return hits_; }

 private:
  struct Asked {
    std::vector<std::byte> foreign;
    Get get;
    bool over = false;
  };

  StoreKit& kit_;
  std::vector<std::unique_ptr<Asked>> asked_;
  std::uint64_t hits_ = 0;
};

}  // namespace kvd::store
