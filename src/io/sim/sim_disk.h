// SimDisks: disks in memory that fail on purpose. A DiskFactory for tests: what is opened through it behaves like
// open_disk()'s disks, on any loop (virtual time on a SimLoop), driven by one seed.
//
// What it models: latency and order of completions; a volatile write cache that a power loss drops, tears and reorders
// by sectors; errors, bit flips, lost, misdirected and repeated writes, misdirected reads, at the nth operation or by
// chance; late completions and stalls; a full file system. It aborts the test when a buffer changes under a write. Not
// modelled: other files of the directory, their names and their sizes. Everything belongs to the loop's thread. A
// SimDisks and its drives outlive the disks opened through it. A drive's chances follow from the seed, the file's name
// without its directory, and how many drives of that name there were before it, so a test in a new temporary directory
// replays exactly, and two drives of one name fail each in its own way.
#pragma once

#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "io/disk.h"
#include "io/sim/sparse_bytes.h"

namespace kvd::io {

class SimDisk;

// How long operations take. The defaults are of the order of a data-centre NVMe drive.
struct SimDiskModel {
  Duration latency_min = std::chrono::microseconds(80);  // each operation draws from [min, max]
  Duration latency_max = std::chrono::microseconds(200);
  Duration sync_latency = Millis(1);      // kSync instead
  Duration discard_latency = Millis(20);  // kDiscard instead: long enough to meet what follows
  std::uint64_t bytes_per_second = 0;     // of the device, shared by its operations; 0 = no limit
  bool discards = false;     // takes kDiscard, which does what a write of zeros does: tears, reorders, is lost
  bool poison_reads = true;  // buffers of reads hold a pattern until their bytes arrive, so that nobody looks early
};

// How the machine stops. The same seed loses the same sectors.
struct SimCrash {
  std::uint64_t seed = 1;
  std::uint32_t keep_percent = 50;  // chance of each sector that was not flushed to survive: 0 = none, 100 = all
  std::uint32_t sector_bytes = 0;   // the unit that is written whole: 512 or 4096; 0 = the seed chooses
};

struct SimCounters {
  std::uint64_t reads = 0, writes = 0, syncs = 0, discards = 0;  // submitted, with those that then fail
  std::uint64_t bytes_read = 0, bytes_written = 0;
};

enum class SimFault : std::uint8_t {
  kError,      // fails with the given errno; a write may have reached the medium in part
  kErrorDone,  // of a write: fails with the given errno, though the medium has taken all of it
  kForget,     // of a sync: fails; what it was to make durable never will be, and later syncs do not tell
  kFlipBit,    // a read delivers one wrong bit, the medium is right; of a write: the medium is wrong
  kLose,       // a write or sync reports success and does nothing
  kMisdirect,  // a read delivers, a write changes, as many bytes at another place; both report success
  kRepeat,     // a write is done once more, after a few later ones (a path that retries what had arrived)
};

// Chances of each operation to be at fault, out of a million. What was injected for an operation comes first.
struct SimFaultRates {
  std::uint32_t read_error = 0, read_flip = 0, read_misdirect = 0;
  std::uint32_t write_error = 0, write_error_done = 0, write_no_space = 0;
  std::uint32_t write_flip = 0, write_lose = 0, write_misdirect = 0, write_repeat = 0;
  std::uint32_t sync_error = 0, sync_forget = 0, sync_lose = 0;
  std::uint32_t delay = 0;       // of any operation, on top
  Duration delay_max{};          // a delay is uniform below this
  std::uint32_t read_delay = 0;  // the same of reads only, uniform in [min, max]
  Duration read_delay_min{}, read_delay_max{};
};

// A drive as it was once: its size, and what reads saw.
struct SimImage {
  std::uint64_t bytes = 0;
  SparseBytes content;
};

// One write, as it arrived.
struct SimWrite {
  std::uint64_t order = 0;  // in which they completed
  std::uint64_t offset = 0;
  std::vector<std::byte> bytes{};
};

// Sees every operation of a drive. Called before anything else happens with it; must not call the disk.
class SimObserver {
 public:
  virtual ~SimObserver() = default;
  // `id` grows with each operation of the drive. `bytes`: of a write; zeros of a discard.
  virtual void submitted(std::uint64_t id, DiskOp::Kind kind, std::uint64_t offset, Bytes bytes) = 0;
  // It has been done to the drive; its callback follows.
  virtual void completed(std::uint64_t id, DiskOp::Kind kind, bool ok) = 0;
};

// One file or device: its bytes, its faults, its counters. Lives as long as the SimDisks.
class SimDrive {
 public:
  SimDrive(std::uint64_t seed, const SimDiskModel& model) : seed_(seed), random_(seed), model_(model) {}

  // The nth operation of this kind from now on (1 = the next one submitted) fails as told. Any number may be set.
  void inject(DiskOp::Kind kind, std::uint64_t nth, SimFault fault, int sys_errno = EIO);
  // From now on every operation of this kind that touches these bytes fails: a place of the medium that is worn out.
  void wear_out(DiskOp::Kind kind, std::uint64_t offset, std::uint64_t bytes);
  void mend() noexcept { worn_.clear(); }
  // From now on every operation may be at fault by itself. All zero: none is.
  void set_fault_rates(const SimFaultRates& rates) noexcept { rates_ = rates; }
  // From now on every operation fails with this errno; 0: none by this.
  void fail_all(int sys_errno) noexcept { failing_ = sys_errno; }
  // Operations that were at fault so far.
  [[nodiscard]] std::uint64_t faults() const noexcept { return faults_; }
  // The drive as another one was left: what is durable, and what is visible only. `observer` (may be null) is borrowed
  // and sees what follows.
  void start_from(std::uint64_t bytes, const SparseBytes& durable, std::vector<SimWrite> unflushed);
  void observe(SimObserver* observer) noexcept { observer_ = observer; }
  // The next `count` operations, or of them reads only, take `extra` longer; Duration::max() = they never complete.
  void stall(std::uint64_t count, Duration extra, bool reads_only = false);
  // What was stalled for ever completes now, as what comes.
  void release();
  // The device is reset under a machine that goes on: what is in flight fails with EIO, of writes any sectors are done;
  // of what was not flushed any sectors are lost. Open disks go on.
  void reset(const SimCrash& crash);
  // From now on reads and writes that touch these bytes take `extra` longer; zero = as long as others again.
  void hold_back(std::uint64_t offset, std::uint64_t bytes, Duration extra);
  // From now on bytes that are being written may change until they are: the drive has taken them when the write was
  // submitted. For damage in memory; otherwise it aborts.
  void let_change() noexcept { may_change_ = true; }
  // Turns one bit over on the medium: damage at rest.
  void flip_bit(std::uint64_t offset, unsigned bit);
  // Looks at and changes bytes, without time, counters or faults.
  void peek(std::uint64_t offset, MutableBytes to) const { visible_.read(offset, to); }
  [[nodiscard]] SimImage image() const { return {bytes_, visible_}; }
  void poke(std::uint64_t offset, Bytes from);

  [[nodiscard]] const SimCounters& counters() const noexcept { return counters_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return bytes_; }
  // Completed writes that no later sync has flushed.
  [[nodiscard]] std::size_t unflushed() const noexcept { return unflushed_.size(); }

 private:
  friend class SimDisk;
  friend class SimDisks;
  using Write = SimWrite;
  struct Echo {
    Write write;
    std::uint64_t left;  // writes that complete before it is repeated
  };
  struct Injected {
    DiskOp::Kind kind;
    std::uint64_t left;
    SimFault fault;
    int sys_errno;
  };

  [[nodiscard]] Time due(Time now, const DiskOp& op, std::uint64_t bytes);
  struct Worn {
    DiskOp::Kind kind;
    std::uint64_t begin, end;
  };

  // The fault of an operation that is being submitted; false for none.
  bool take_fault(DiskOp::Kind kind, Injected& fault);
  bool worn_out(const DiskOp& op, std::uint64_t bytes, Injected& fault);
  bool draw_fault(DiskOp::Kind kind, Injected& fault);
  // Where an operation of these bytes goes instead: another page-aligned place of the drive.
  [[nodiscard]] std::uint64_t elsewhere(std::uint64_t offset, std::uint64_t bytes);
  void repeat_later(const Write& write);
  void complete_write(Write write);
  void flush(std::uint64_t order_end);
  void forget(std::uint64_t order_end);
  static void write_some_sectors(SparseBytes& to, const Write& write, const SimCrash& crash, Random& random);
  void kill(const SimCrash& crash);
  void lose_power(const SimCrash& crash);
  void lose_unflushed(const SimCrash& crash, Random& random);

  const std::uint64_t seed_;
  Random random_;
  const SimDiskModel model_;
  std::uint64_t bytes_ = 0;
  SparseBytes visible_;           // what reads see
  SparseBytes durable_;           // what a power loss leaves for sure
  std::vector<Write> unflushed_;  // visible and not durable, in order
  std::vector<Write> forgotten_;  // of these, what a failed sync has given up: visible until the power goes
  std::uint64_t order_next_ = 0;
  std::uint64_t ops_next_ = 0;
  std::vector<Injected> injected_;
  std::vector<Worn> worn_;
  struct Held {
    std::uint64_t begin, end;
    Duration extra;
  };
  std::vector<Held> held_;
  SimFaultRates rates_;
  int failing_ = 0;
  std::uint64_t faults_ = 0;
  bool may_change_ = false;
  std::vector<Echo> echoes_;
  SimObserver* observer_ = nullptr;
  std::uint64_t stalled_left_ = 0;
  Duration stalled_extra_{};
  bool stalled_reads_only_ = false;
  Time busy_until_{};
  SimCounters counters_;
  std::vector<SimDisk*> open_;
  bool away_ = false;  // nothing of it can be opened
};

class SimDisks final : public DiskFactory {
 public:
  explicit SimDisks(std::uint64_t seed, const SimDiskModel& model = {}) : seed_(seed), model_(model) {}
  ~SimDisks() override;

  // As open_disk(), with paths as plain names. A file keeps its bytes between disks.
  Result<std::unique_ptr<Disk>> open(Loop& loop, Log& log, const std::string& path,
                                     const DiskOptions& options) override;

  // The drive of a path; made, with no bytes, when it does not exist.
  SimDrive& drive(const std::string& path);
  // The drive of this path is pulled out: what is in flight fails with ENODEV, as all that comes, for ever on disks
  // that are open; open() does not find it. What was not flushed is lost as in a reset.
  void vanish(const std::string& path, const SimCrash& crash = {});
  // It can be opened again.
  void come_back(const std::string& path) { drive(path).away_ = false; }
  // The drives of two paths change places. Neither is open.
  void swap(const std::string& a, const std::string& b);
  // The drive of this path, which is not open, becomes what it or another one was once, all of it durable.
  void put_back(const std::string& path, const SimImage& image);
  // Free space is `bytes` minus the sizes of all drives: open() fails with kNoSpace beyond it.
  void set_capacity(std::uint64_t bytes) noexcept { capacity_ = bytes; }

  // The process dies, the operating system lives: completed writes stay (and stay unflushed), of those in flight each
  // sector may have been written. Open disks are dead from here on: no callback comes any more, submit fails with kIo.
  void kill(const SimCrash& crash);
  // The machine dies: flushed bytes stay, of everything else any sectors. Open disks are dead, too.
  void lose_power(const SimCrash& crash);

 private:
  const std::uint64_t seed_;
  const SimDiskModel model_;
  std::uint64_t capacity_ = ~std::uint64_t{0};
  std::map<std::string, std::unique_ptr<SimDrive>> drives_;  // by path
  std::map<std::string, std::uint64_t> names_;               // how many drives there are of each file's name
};

}  // namespace kvd::io
