#include "io/sim/sim_disk.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>
#include <utility>

#include "base/check.h"
#include "io/disk_file.h"

namespace kvd::io {
namespace {

SimCrash with_sector(SimCrash crash) {
  if (crash.sector_bytes == 0) crash.sector_bytes = Random(crash.seed).chance(1, 2) ? 512 : 4096;
  KVD_CHECK(crash.sector_bytes == 512 || crash.sector_bytes == 4096);
  return crash;
}

// Fills the buffers of a read until its bytes arrive, so that code that looks early finds neither old nor right bytes.
constexpr int kNotYetRead = 0xA5;

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::uint64_t total_bytes(const DiskOp& op) {
  std::uint64_t total = op.kind == DiskOp::Kind::kDiscard ? op.discard_bytes : 0;
  for (const iovec& buffer : op.buffers) total += buffer.iov_len;
  return total;
}

// Whether it changes bytes.
bool changes(DiskOp::Kind kind) { return kind == DiskOp::Kind::kWrite || kind == DiskOp::Kind::kDiscard; }

std::vector<std::byte> gather(const DiskOp& op) {
  if (op.kind == DiskOp::Kind::kDiscard) return std::vector<std::byte>(op.discard_bytes);
  std::vector<std::byte> bytes;
  bytes.reserve(total_bytes(op));
  for (const iovec& buffer : op.buffers) {
    const auto* from = static_cast<const std::byte*>(buffer.iov_base);
    bytes.insert(bytes.end(), from, from + buffer.iov_len);
  }
  return bytes;
}

}  // namespace

class SimDisk final : public Disk {
 public:
  SimDisk(Loop& loop, SimDrive& drive, std::uint32_t depth_max, bool read_only)
      : drive_(drive),
        bytes_(drive.bytes_),
        depth_max_(depth_max),
        read_only_(read_only),
        loop_(loop),
        timer_(loop, [this] { complete_due(); }) {
    drive_.open_.push_back(this);
  }

  // Waiting for what is in flight: it happens now.
  ~SimDisk() override {
    if (gone_ != nullptr) *gone_ = true;
    for (auto& [due, pending] : in_flight_) (void)perform(pending);
    std::erase(drive_.open_, this);
  }

  Status submit(DiskOp& op) override {
    const bool discard = discards() && op.kind == DiskOp::Kind::kDiscard;
    const Status checked = discard ? check_discard(op, bytes_, read_only_) : check_op(op, bytes_, read_only_);
    if (!checked) return checked;
    if (dead_) return fail(Code::kIo, "the simulated machine or drive is gone", ENODEV);
    if (in_flight_.size() == depth_max_) return fail(Code::kBusy, "too many disk operations in flight");
    Pending pending{.op = &op, .id = drive_.ops_next_++, .flush_end = drive_.order_next_};
    pending.faulty = drive_.take_fault(op.kind, pending.fault) || drive_.worn_out(op, total_bytes(op), pending.fault);
    count(op);
    if (changes(op.kind)) pending.bytes = gather(op);
    if (op.kind == DiskOp::Kind::kRead && drive_.model_.poison_reads) {
      for (const iovec& buffer : op.buffers) std::memset(buffer.iov_base, kNotYetRead, buffer.iov_len);
    }
    if (drive_.observer_ != nullptr) drive_.observer_->submitted(pending.id, op.kind, op.offset, pending.bytes);
    const Time due = drive_.due(loop_.now(), op, total_bytes(op));
    in_flight_.emplace(std::pair(due, order_next_++), std::move(pending));
    arm();
    return {};
  }

  [[nodiscard]] std::uint64_t size() const noexcept override { return bytes_; }
  [[nodiscard]] std::uint32_t in_flight() const noexcept override {
    return static_cast<std::uint32_t>(in_flight_.size());
  }
  [[nodiscard]] bool discards() const noexcept override { return drive_.model_.discards; }
  [[nodiscard]] const char* engine() const noexcept override { return "sim"; }

  // What is in flight, or of it what was stalled for ever, is due now; it fails with `sys_errno` unless that is 0.
  void hasten(bool stalled_only, int sys_errno) {
    std::map<std::pair<Time, std::uint64_t>, Pending> hastened;
    for (auto& [at, pending] : in_flight_) {
      if (sys_errno != 0) {
        pending.faulty = true;
        pending.fault = {.kind = pending.op->kind, .left = 0, .fault = SimFault::kError, .sys_errno = sys_errno};
      }
      const Time due = stalled_only && at.first != kNever ? at.first : loop_.now();
      hastened.emplace(std::pair(due, at.second), std::move(pending));
    }
    in_flight_ = std::move(hastened);
    arm();
  }

  // The drive is pulled out: nothing is taken any more, what is in flight fails.
  void lose_drive() {
    hasten(false, ENODEV);
    dead_ = true;
  }

  // The machine stopped: gives up what is in flight and hands its writes over.
  std::vector<SimDrive::Write> die() {
    dead_ = true;
    timer_.disarm();
    std::vector<SimDrive::Write> writes;
    for (auto& [due, pending] : in_flight_) {
      const bool lost = pending.faulty && pending.fault.fault == SimFault::kLose;
      if (changes(pending.op->kind) && !lost) {
        writes.push_back({.offset = pending.op->offset, .bytes = std::move(pending.bytes)});
      }
    }
    in_flight_.clear();
    return writes;
  }

 private:
  struct Pending {
    DiskOp* op = nullptr;
    std::uint64_t id = 0;
    std::uint64_t flush_end = 0;  // kSync: flushes the writes that had completed before
    bool faulty = false;
    SimDrive::Injected fault{};
    std::vector<std::byte> bytes{};  // kWrite: as they were at submit
  };

  void count(const DiskOp& op) {
    SimCounters& counters = drive_.counters_;
    switch (op.kind) {
      case DiskOp::Kind::kRead:
        ++counters.reads;
        counters.bytes_read += total_bytes(op);
        break;
      case DiskOp::Kind::kWrite:
        ++counters.writes;
        counters.bytes_written += total_bytes(op);
        break;
      case DiskOp::Kind::kSync: ++counters.syncs; break;
      case DiskOp::Kind::kDiscard: ++counters.discards; break;
    }
  }

  void arm() {
    if (in_flight_.empty()) return timer_.disarm();
    const Time first = in_flight_.begin()->first.first;
    if (first != kNever) timer_.arm(first);  // kNever: stalled for ever
  }

  void complete_due() {
    bool gone = false;
    gone_ = &gone;
    while (!in_flight_.empty() && in_flight_.begin()->first.first <= loop_.now()) {
      Pending pending = std::move(in_flight_.extract(in_flight_.begin()).mapped());
      const Status status = perform(pending);
      if (drive_.observer_ != nullptr) drive_.observer_->completed(pending.id, pending.op->kind, status.has_value());
      auto on_done = std::move(pending.op->on_done);
      on_done(status);
      if (gone) return;
    }
    gone_ = nullptr;
    arm();
  }

  // Does to the drive what the operation says, at the moment it completes.
  Status perform(Pending& pending) {
    const DiskOp& op = *pending.op;
    const bool done = pending.faulty && pending.fault.fault == SimFault::kErrorDone;
    const bool forget = pending.faulty && pending.fault.fault == SimFault::kForget;
    const bool error = done || forget || (pending.faulty && pending.fault.fault == SimFault::kError);
    const bool lose = pending.faulty && pending.fault.fault == SimFault::kLose;
    const bool flip = pending.faulty && pending.fault.fault == SimFault::kFlipBit;
    const bool misdirect = pending.faulty && pending.fault.fault == SimFault::kMisdirect;
    if (op.kind == DiskOp::Kind::kRead && !error) read(op, flip, misdirect);
    if (changes(op.kind)) {
      KVD_CHECK(drive_.may_change_ || gather(op) == pending.bytes);  // the buffer belongs to the operation until now
      if (flip) flip_one_bit(pending.bytes);
      SimDrive::Write write{.offset = op.offset, .bytes = std::move(pending.bytes)};
      if (misdirect) write.offset = drive_.elsewhere(op.offset, write.bytes.size());
      if (pending.faulty && pending.fault.fault == SimFault::kRepeat) drive_.repeat_later(write);
      if (error && !done) {
        write_part(write);
      } else if (!lose) {
        drive_.complete_write(std::move(write));
      }
    }
    if (op.kind == DiskOp::Kind::kSync && !error && !lose) drive_.flush(pending.flush_end);
    if (op.kind == DiskOp::Kind::kSync && forget) drive_.forget(pending.flush_end);
    if (error) return fail(Code::kIo, "simulated disk error", pending.fault.sys_errno);
    return {};
  }

  void read(const DiskOp& op, bool flip, bool misdirect) {
    std::uint64_t offset = misdirect ? drive_.elsewhere(op.offset, total_bytes(op)) : op.offset;
    for (const iovec& buffer : op.buffers) {
      drive_.visible_.read(offset, MutableBytes(static_cast<std::byte*>(buffer.iov_base), buffer.iov_len));
      offset += buffer.iov_len;
    }
    if (!flip) return;
    const iovec& victim = op.buffers[drive_.random_.below(op.buffers.size())];
    flip_one_bit(MutableBytes(static_cast<std::byte*>(victim.iov_base), victim.iov_len));
  }

  void flip_one_bit(MutableBytes bytes) {
    bytes[drive_.random_.below(bytes.size())] ^= std::byte{1} << drive_.random_.below(8);
  }

  // A write that failed: any of its sectors may have been written.
  void write_part(const SimDrive::Write& write) {
    SparseBytes part;
    part.copy(drive_.visible_, write.offset, write.bytes.size());
    SimDrive::write_some_sectors(part, write, {.sector_bytes = 4096}, drive_.random_);
    SimDrive::Write result{.offset = write.offset, .bytes = std::vector<std::byte>(write.bytes.size())};
    part.read(write.offset, result.bytes);
    drive_.complete_write(std::move(result));
  }

  SimDrive& drive_;
  const std::uint64_t bytes_;
  const std::uint32_t depth_max_;
  const bool read_only_;
  Loop& loop_;
  Timer timer_;                                                  // armed for the first of in_flight_
  std::map<std::pair<Time, std::uint64_t>, Pending> in_flight_;  // by time due, then by order of submission
  std::uint64_t order_next_ = 0;
  bool dead_ = false;
  bool* gone_ = nullptr;  // set while callbacks run: they may destroy the disk
};

void SimDrive::inject(DiskOp::Kind kind, std::uint64_t nth, SimFault fault, int sys_errno) {
  KVD_CHECK(nth > 0);
  injected_.push_back({kind, nth, fault, sys_errno});
}

void SimDrive::stall(std::uint64_t count, Duration extra, bool reads_only) {
  stalled_left_ = count;
  stalled_extra_ = extra;
  stalled_reads_only_ = reads_only;
}

void SimDrive::release() {
  stalled_left_ = 0;
  for (SimDisk* disk : open_) disk->hasten(true, 0);
}

void SimDrive::reset(const SimCrash& crash) {
  Random random(Random(crash.seed).next() ^ seed_);
  stalled_left_ = 0;
  echoes_.clear();
  for (SimDisk* disk : open_) disk->hasten(false, EIO);
  lose_unflushed(with_sector(crash), random);
}

void SimDrive::hold_back(std::uint64_t offset, std::uint64_t bytes, Duration extra) {
  std::erase_if(held_, [&](const Held& held) { return held.begin == offset && held.end == offset + bytes; });
  if (extra > Duration::zero()) held_.push_back({.begin = offset, .end = offset + bytes, .extra = extra});
}

void SimDrive::flip_bit(std::uint64_t offset, unsigned bit) {
  std::byte byte{};
  peek(offset, MutableBytes(&byte, 1));
  byte ^= std::byte{1} << (bit % 8);
  poke(offset, Bytes(&byte, 1));
}

void SimDrive::poke(std::uint64_t offset, Bytes from) {
  visible_.write(offset, from);
  durable_.write(offset, from);
}

Time SimDrive::due(Time now, const DiskOp& op, std::uint64_t bytes) {
  const auto spread = static_cast<std::uint64_t>((model_.latency_max - model_.latency_min).count());
  Duration latency = model_.latency_min + Duration(random_.below(spread + 1));
  if (op.kind == DiskOp::Kind::kSync) latency = model_.sync_latency;
  if (op.kind == DiskOp::Kind::kDiscard) latency = model_.discard_latency;
  Time start = now;
  if (model_.bytes_per_second > 0) {
    const double seconds = static_cast<double>(bytes) / static_cast<double>(model_.bytes_per_second);
    const auto transfer = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
    start = busy_until_ = std::max(busy_until_, now) + transfer;
  }
  if (rates_.delay > 0 && rates_.delay_max.count() > 0 && random_.below(1'000'000) < rates_.delay)
    latency += Duration(random_.below(static_cast<std::uint64_t>(rates_.delay_max.count())));
  if (op.kind == DiskOp::Kind::kRead && rates_.read_delay > 0 && random_.below(1'000'000) < rates_.read_delay) {
    const auto more = static_cast<std::uint64_t>((rates_.read_delay_max - rates_.read_delay_min).count());
    latency += rates_.read_delay_min + Duration(random_.below(more + 1));
  }
  if (stalled_left_ > 0 && (!stalled_reads_only_ || op.kind == DiskOp::Kind::kRead)) {
    --stalled_left_;
    return after(after(start, latency), stalled_extra_);
  }
  Time due = start + latency;
  for (const Held& held : held_)
    if (op.kind != DiskOp::Kind::kSync && op.offset < held.end && op.offset + bytes > held.begin)
      due = after(due, held.extra);
  return due;
}

bool SimDrive::take_fault(DiskOp::Kind kind, Injected& fault) {
  bool found = false;
  if (failing_ != 0) {
    fault = {.kind = kind, .left = 0, .fault = SimFault::kError, .sys_errno = failing_};
    ++faults_;
    return true;
  }
  std::erase_if(injected_, [&](Injected& injected) {
    if (injected.kind != kind || --injected.left > 0) return false;
    fault = injected;
    return found = true;
  });
  if (!found) found = draw_fault(kind, fault);
  if (found) ++faults_;
  return found;
}

void SimDrive::wear_out(DiskOp::Kind kind, std::uint64_t offset, std::uint64_t bytes) {
  worn_.push_back({.kind = kind, .begin = offset, .end = offset + bytes});
}

bool SimDrive::worn_out(const DiskOp& op, std::uint64_t bytes, Injected& fault) {
  const bool worn = std::ranges::any_of(worn_, [&](const Worn& place) {
    return place.kind == op.kind && op.offset < place.end && op.offset + bytes > place.begin;
  });
  if (!worn) return false;
  fault = {.kind = op.kind, .left = 0, .fault = SimFault::kError, .sys_errno = EIO};
  ++faults_;
  return true;
}

bool SimDrive::draw_fault(DiskOp::Kind kind, Injected& fault) {
  struct Chance {
    std::uint32_t rate;
    SimFault fault;
    int sys_errno;
  };
  const SimFaultRates& r = rates_;
  const Chance of_reads[] = {{r.read_error, SimFault::kError, EIO},
                             {r.read_flip, SimFault::kFlipBit, 0},
                             {r.read_misdirect, SimFault::kMisdirect, 0}};
  const Chance of_writes[] = {
      {r.write_error, SimFault::kError, EIO},       {r.write_error_done, SimFault::kErrorDone, EIO},
      {r.write_no_space, SimFault::kError, ENOSPC}, {r.write_flip, SimFault::kFlipBit, 0},
      {r.write_lose, SimFault::kLose, 0},           {r.write_misdirect, SimFault::kMisdirect, 0},
      {r.write_repeat, SimFault::kRepeat, 0}};
  const Chance of_syncs[] = {{r.sync_error, SimFault::kError, EIO},
                             {r.sync_forget, SimFault::kForget, EIO},
                             {r.sync_lose, SimFault::kLose, 0}};
  const auto chances = kind == DiskOp::Kind::kRead    ? std::span<const Chance>(of_reads)
                       : kind == DiskOp::Kind::kWrite ? std::span<const Chance>(of_writes)
                                                      : std::span<const Chance>(of_syncs);
  std::uint64_t left = 0;
  if (kind == DiskOp::Kind::kDiscard) return false;
  for (const Chance& chance : chances) left += chance.rate;
  if (left == 0) return false;
  std::uint64_t drawn = random_.below(1'000'000);
  for (const Chance& chance : chances) {
    if (drawn < chance.rate) {
      fault = {kind, 0, chance.fault, chance.sys_errno};
      return true;
    }
    drawn -= chance.rate;
  }
  return false;
}

std::uint64_t SimDrive::elsewhere(std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t places = (bytes_ - bytes) / kPageBytes + 1;
  const std::uint64_t other = random_.below(places) * kPageBytes;
  return other != offset ? other : other == 0 ? (places - 1) * kPageBytes : 0;
}

void SimDrive::repeat_later(const Write& write) { echoes_.push_back({write, 1 + random_.below(8)}); }

void SimDrive::start_from(std::uint64_t bytes, const SparseBytes& durable, std::vector<SimWrite> unflushed) {
  KVD_CHECK(open_.empty() && bytes_ == 0 && order_next_ == 0);
  bytes_ = bytes;
  durable_ = visible_ = durable;
  for (Write& write : unflushed) complete_write(std::move(write));
}

void SimDrive::complete_write(Write write) {
  write.order = order_next_++;
  visible_.write(write.offset, write.bytes);
  unflushed_.push_back(std::move(write));
  std::vector<Write> again;
  std::erase_if(echoes_, [&](Echo& echo) {
    if (--echo.left > 0) return false;
    again.push_back(std::move(echo.write));
    return true;
  });
  for (Write& repeated : again) {
    repeated.order = order_next_++;
    visible_.write(repeated.offset, repeated.bytes);
    unflushed_.push_back(std::move(repeated));
  }
}

void SimDrive::flush(std::uint64_t order_end) {
  std::erase_if(unflushed_, [&](const Write& write) {
    if (write.order >= order_end) return false;
    durable_.write(write.offset, write.bytes);
    return true;
  });
}

void SimDrive::forget(std::uint64_t order_end) {
  const auto end = std::ranges::find_if(unflushed_, [&](const Write& write) { return write.order >= order_end; });
  forgotten_.insert(forgotten_.end(), std::make_move_iterator(unflushed_.begin()), std::make_move_iterator(end));
  unflushed_.erase(unflushed_.begin(), end);
}

void SimDrive::write_some_sectors(SparseBytes& to, const Write& write, const SimCrash& crash, Random& random) {
  const std::size_t step = crash.sector_bytes;
  for (std::size_t at = 0; at < write.bytes.size(); at += step) {
    if (random.chance(crash.keep_percent, 100)) to.write(write.offset + at, Bytes(write.bytes).subspan(at, step));
  }
}

void SimDrive::kill(const SimCrash& crash) {
  Random random(Random(crash.seed).next() ^ seed_);
  echoes_.clear();
  for (SimDisk* disk : open_) {
    for (Write& write : disk->die()) {
      SparseBytes part;
      part.copy(visible_, write.offset, write.bytes.size());
      write_some_sectors(part, write, crash, random);
      part.read(write.offset, write.bytes);
      complete_write(std::move(write));
    }
  }
}

void SimDrive::lose_power(const SimCrash& crash) {
  Random random(Random(crash.seed).next() ^ seed_);
  echoes_.clear();
  for (SimDisk* disk : open_) {
    for (Write& write : disk->die()) unflushed_.push_back(std::move(write));
  }
  lose_unflushed(crash, random);
}

void SimDrive::lose_unflushed(const SimCrash& crash, Random& random) {
  // Where writes overlap any of them may be the one that stays: each sector of each is kept or not.
  for (const Write& write : unflushed_) write_some_sectors(durable_, write, crash, random);
  for (const auto* writes : {&unflushed_, &forgotten_})
    for (const Write& write : *writes) visible_.copy(durable_, write.offset, write.bytes.size());
  unflushed_.clear();
  forgotten_.clear();
}

SimDisks::~SimDisks() {
  for (const auto& [path, drive] : drives_) KVD_CHECK(drive->open_.empty());
}

SimDrive& SimDisks::drive(const std::string& path) {
  auto& drive = drives_[path];
  if (drive == nullptr) {
    std::uint64_t hash = 0xCBF2'9CE4'8422'2325;  // FNV-1a of the file's name
    const std::string name = file_name(path);
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100'0000'01B3;
    hash += names_[name]++ * 0x9E37'79B9'7F4A'7C15;
    drive = std::make_unique<SimDrive>(seed_ ^ hash, model_);
  }
  return *drive;
}

Result<std::unique_ptr<Disk>> SimDisks::open(Loop& loop, Log&, const std::string& path, const DiskOptions& options) {
  if (Status checked = check_options(options); !checked) return fail(checked.error());
  const auto found = drives_.find(path);
  const std::uint64_t before = found == drives_.end() ? 0 : found->second->bytes_;
  if (found != drives_.end() && found->second->away_) return fail(Code::kNotFound, "open the disk's file", ENOENT);
  if (before == 0 && (options.read_only || options.bytes == 0)) {
    return fail(Code::kNotFound, "open the disk's file", ENOENT);
  }
  if (options.read_only && options.bytes > before) {
    return fail(Code::kNoSpace, "the disk is smaller than asked for and open for reading only");
  }
  std::uint64_t used = 0;
  for (const auto& [name, other] : drives_) used += other->bytes_;
  if (options.bytes > before && (used > capacity_ || options.bytes - before > capacity_ - used)) {
    return fail(Code::kNoSpace, "preallocate the disk's file", ENOSPC);
  }
  SimDrive& opened = drive(path);
  opened.bytes_ = std::max(before, options.bytes);
  return std::make_unique<SimDisk>(loop, opened, options.depth_max, options.read_only);
}

void SimDisks::vanish(const std::string& path, const SimCrash& crash) {
  SimDrive& gone = drive(path);
  gone.reset(crash);
  for (SimDisk* disk : gone.open_) disk->lose_drive();
  gone.away_ = true;
}

void SimDisks::swap(const std::string& a, const std::string& b) {
  KVD_CHECK(drive(a).open_.empty() && drive(b).open_.empty());
  std::swap(drives_.at(a), drives_.at(b));
}

void SimDisks::put_back(const std::string& path, const SimImage& image) {
  SimDrive& changed = drive(path);
  KVD_CHECK(changed.open_.empty());
  changed.bytes_ = image.bytes;
  changed.visible_ = changed.durable_ = image.content;
  changed.unflushed_.clear();
  changed.forgotten_.clear();
}

void SimDisks::kill(const SimCrash& crash) {
  for (const auto& [path, drive] : drives_) drive->kill(with_sector(crash));
}

void SimDisks::lose_power(const SimCrash& crash) {
  for (const auto& [path, drive] : drives_) drive->lose_power(with_sector(crash));
}

}  // namespace kvd::io
