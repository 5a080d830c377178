// Turns single bits of populated stores over, in every class of bytes that the format has, and lets the store recover
// and serve: nothing wrong may be given out, and what is lost must be what docs/testing.md allows for that class.
//
//   kvd_bit_flips --flips 20000 --seed 1
//   kvd_bit_flips --replay 1/17                 flip 17 of seed 1 again
//
// The control turns bits of payload over in a store that does not verify, and must see wrong bytes. Exit status 1 when
// something was wrong, or when the control saw nothing.
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include <fmt/format.h>
#include <malloc.h>

#include "base/check.h"
#include "block/schema.h"
#include "crash/command_line.h"
#include "crash/machine.h"
#include "crash/variants.h"
#include "store/device_table.h"
#include "store/format.h"
#include "store/testing/store_kit.h"

namespace kvd::crash {
namespace {

enum class Class : std::uint8_t {
  kSuperblock,
  kHeader,
  kFrameSealed,  // descriptor areas of a segment with a footer
  kFrameOpen,    // ... of one without
  kTable,
  kPayload,
  kPadding,  // behind a slab's bytes, to the end of its page
  kFooter,
  kUnused,
  kDeviceList,  // one copy, of a store of two devices
};
constexpr std::array kClassNames = {"superblock", "header",  "frame (sealed)", "frame (open)", "table",
                                    "payload",    "padding", "footer",         "unused",       "device list"};
constexpr std::size_t kClasses = kClassNames.size();
using RecordSet = std::uint32_t;  // a bit each
static_assert(kRecords <= 32);
using Versions = std::array<std::uint8_t, kRecords>;  // 0 = none

// The newer of each.
void add_versions(Versions& to, const Versions& more) {
  for (std::size_t n = 0; n < kRecords; ++n) to[n] = std::max(to[n], more[n]);
}

// Those of which there is a version.
RecordSet records_of(const Versions& versions) {
  RecordSet records = 0;
  for (std::size_t n = 0; n < kRecords; ++n) records |= RecordSet{versions[n] != 0} << n;
  return records;
}

// A stretch of a drive's bytes of one class, and what damage to it may cost.
struct Region {
  std::uint64_t offset = 0, bytes = 0;
  RecordSet lost = 0;       // records that may be missing then
  bool tombstones = false;  // removals may be undone: the segment holds tombstones
  Versions newest{};        // that are lost with it: older ones may come back, nothing tells of these any more
};

struct Map {
  std::array<std::vector<Region>, kClasses> regions;
  void add(Class c, const Region& region) { regions[static_cast<std::size_t>(c)].push_back(region); }
};

// Reads the image of a device's drive as the format page tells.
class Surveyor {
 public:
  Surveyor(const Image& image, std::size_t drive, Map& map) : image_(image), drive_(drive), map_(map) {}

  void survey() {
    const auto superblock = store::parse_superblock(read(0, kPageBytes), 0);
    KVD_CHECK(superblock.has_value());
    seeds_.emplace(superblock->uuid);
    for (std::uint64_t copy = 0; copy < store::kSuperblockCopies; ++copy)
      add(Class::kSuperblock, {copy * store::kSuperblockStride, kPageBytes});
    for (std::uint32_t segment = 0; segment < kSegments; ++segment) survey(segment);
  }

 private:
  struct Frame {
    std::uint64_t offset = 0, bytes = 0;
    Versions newest{};
  };

  Bytes read(std::uint64_t offset, std::size_t bytes) {
    buffer_.resize(bytes);
    image_.bytes(drive_).read(offset, buffer_);
    return buffer_;
  }
  void add(Class c, Region region) {
    region.offset += drive_ * kDriveSpan;
    map_.add(c, region);
  }

  void survey(std::uint32_t segment) {
    const std::uint64_t begin = store::kHeadBytes + segment * kSegmentBytes;
    const auto header = store::parse_segment_header(read(begin, kPageBytes), *seeds_, segment);
    if (!header) return add(Class::kUnused, {begin, kSegmentBytes});
    std::uint64_t end = begin + kSegmentBytes;
    const auto trailer = store::peek_footer(read(begin, kSegmentBytes), segment, header->generation, kSegmentBytes);
    if (trailer) end -= trailer->footer_bytes;

    Versions newest{};
    bool tombstones = false;
    std::vector<Frame> frames;
    store::FrameExpected expected{header->generation, segment, 0, 0};
    store::SegmentContent content;
    std::uint64_t at = begin + kPageBytes;
    for (; at < end; ++expected.frame_seq) {
      expected.pages_left = static_cast<std::uint32_t>((begin + kSegmentBytes - at) / kPageBytes);
      const std::size_t first = content.descriptors.size();
      const auto head = store::parse_frame(read(at, begin + kSegmentBytes - at), *seeds_, expected, content);
      if (!head) break;
      frames.push_back({at, head->descriptor_bytes, {}});
      for (std::size_t i = first; i < content.descriptors.size(); ++i) {
        const store::Descriptor& d = content.descriptors[i];
        tombstones = tombstones || d.tombstone();
        if (d.tombstone()) continue;
        const Versions version = survey(begin, d, trailer.has_value());
        add_versions(frames.back().newest, version);
        add_versions(newest, version);
      }
      at += head->descriptor_bytes + std::uint64_t{head->payload_pages} * kPageBytes;
    }
    add(Class::kHeader, {begin, kPageBytes, records_of(newest), tombstones, newest});
    // With a footer nobody reads the frames' heads; without one a scan ends at the first that is damaged.
    // A record may lie in several frames: put, removed and put again.
    for (std::size_t i = frames.size(); i-- > 1;) add_versions(frames[i - 1].newest, frames[i].newest);
    for (const Frame& frame : frames) {
      if (trailer) {
        add(Class::kFrameSealed, {frame.offset, frame.bytes, 0, false, {}});
      } else {
        add(Class::kFrameOpen, {frame.offset, frame.bytes, records_of(frame.newest), tombstones, frame.newest});
      }
    }
    if (trailer) add(Class::kFooter, {end, trailer->footer_bytes});
    if (at < end) add(Class::kUnused, {at, end - at});
  }

  // One record's image. A record that has been written elsewhere since may not be missing for damage here, but who can
  // tell the copies apart gains nothing: it is allowed. A segment without a footer is scanned, and what does not verify
  // then is as if it had never been written. Returns its version.
  Versions survey(std::uint64_t segment_begin, const store::Descriptor& d, bool sealed) {
    const auto record = record_of(d.key_lo);
    KVD_CHECK(record.has_value());
    const RecordSet self = RecordSet{1} << *record;
    std::uint64_t at = segment_begin + std::uint64_t{d.offset} * kPageBytes;
    Versions version{};
    version[*record] = version_of(*record, read(at, d.length));
    KVD_CHECK(version[*record] != 0);
    const Versions older = sealed ? Versions{} : version;
    const std::uint64_t end = at + d.length;
    if (*record >= kSmall) {
      add(Class::kTable, {at, kPageBytes, self, false, older});
      at += kPageBytes;
    }
    for (; at < end; at += kPageBytes) {
      const std::uint64_t used = slab_bytes_of(*record);
      add(Class::kPayload, {at, used, self, false, older});
      add(Class::kPadding, {at + used, kPageBytes - used});
    }
    return version;
  }

  const Image& image_;
  const std::size_t drive_;
  Map& map_;
  std::vector<std::byte> buffer_;
  std::optional<store::FormatSeeds> seeds_;
};

// A store that has worked for a while, and what it gives when nothing is damaged.
struct Specimen {
  Start start;
  Map map;
  std::array<std::uint8_t, kRecords> whole{};
};

Specimen make_specimen(Machine& machine, std::uint64_t seed) {
  Specimen specimen;
  Start start = formatted(seed % 2 == 0 ? 2 : 1);
  Journal journal(start);
  KVD_CHECK(machine.work(start, journal, seed, 60).empty());
  Walk walk(start, journal);
  while (walk.next()) {
  }
  specimen.start = stop(journal, walk.moment(), journal.oracle(), Crash::kPowerLoss, 0).start;  // all is kept
  for (std::size_t device = 0; device < start.oracle.devices(); ++device)
    Surveyor(specimen.start.durable, device, specimen.map).survey();
  for (std::uint64_t copy = 0; start.oracle.devices() > 1 && copy < store::kSuperblockCopies; ++copy)
    specimen.map.add(Class::kDeviceList, {kListDrive * kDriveSpan + copy * store::kDeviceTableStride, kPageBytes});
  Journal quiet(specimen.start);
  const Found found = machine.recover(specimen.start, quiet);
  KVD_CHECK(found.wrong.empty());
  specimen.whole = found.versions;
  return specimen;
}

struct ClassTally {
  std::uint64_t flips = 0, lost = 0, undone = 0, harmless = 0;
};

class Flipper {
 public:
  static constexpr std::uint64_t kFlipsOfSpecimen = 500;

  explicit Flipper(const std::string& dir) : machine_(dir), blind_(dir, false) {}

  // Flip number `n` of a seed; lines of what is wrong.
  std::vector<std::string> flip(std::uint64_t seed, std::uint64_t n) {
    const std::uint64_t specimen_seed = seed * 1'000 + n / kFlipsOfSpecimen;
    if (specimen_seed_ != specimen_seed) specimen_ = make_specimen(machine_, specimen_seed);
    specimen_seed_ = specimen_seed;
    Random random(seed ^ (n + 1) * 0x9E37'79B9'7F4A'7C15);
    auto c = static_cast<Class>(n % kClasses);  // every class in turn, whatever it weighs
    if (regions(c).empty()) c = Class::kPayload;
    if (regions(c).empty()) return {};
    const Region& region = regions(c)[random.below(regions(c).size())];
    Journal journal(specimen_.start);
    const Found found = recover_flipped(machine_, region, random, journal);
    return judge(c, region, found, journal.oracle());
  }

  // How many gets of a store that does not verify give wrong bytes, for so many flips of payload.
  std::uint64_t wrong_without_verification(std::uint64_t seed, int flips) {
    Random random(seed);
    std::uint64_t wrong = 0;
    for (int i = 0; i < flips; ++i) {
      const auto& payload = regions(Class::kPayload);
      Journal journal(specimen_.start);
      wrong += recover_flipped(blind_, payload[random.below(payload.size())], random, journal).wrong.size();
    }
    return wrong;
  }

  [[nodiscard]] const std::array<ClassTally, kClasses>& tally() const { return tally_; }

 private:
  [[nodiscard]] const std::vector<Region>& regions(Class c) const {
    return specimen_.map.regions[static_cast<std::size_t>(c)];
  }

  Found recover_flipped(Machine& machine, const Region& region, Random& random, Journal& journal) const {
    Start damaged = specimen_.start;
    const std::uint64_t at = region.offset + random.below(region.bytes);
    std::byte byte{};
    damaged.durable.bytes(drive_of(at)).read(at % kDriveSpan, {&byte, 1});
    byte ^= std::byte{1} << random.below(8);
    damaged.durable.write(at, {&byte, 1});
    return machine.recover(damaged, journal);
  }

  std::vector<std::string> judge(Class c, const Region& region, const Found& found, const Oracle& after) {
    std::vector<std::string> wrong = found.wrong;
    ClassTally& tally = tally_[static_cast<std::size_t>(c)];
    ++tally.flips;
    bool harmless = true;
    for (std::size_t n = 0; n < kRecords; ++n) {
      const std::uint8_t was = specimen_.whole[n], is = found.versions[n];
      if (was == is) continue;
      // Other segments may have been given up to have some ready: that is no damage.
      const bool evicted = (was != 0 && after.lost_its_segment(n, was)) || (is != 0 && was == 0);
      harmless = false;
      if (is == 0) {
        ++tally.lost;
        if (!evicted && (region.lost >> n & 1) == 0)
          wrong.push_back(fmt::format("record {} is lost by a bit in {}", n, kClassNames[static_cast<std::size_t>(c)]));
      } else {
        ++tally.undone;
        // The undamaged store may have given the newer one up (`was` is 0), which it does only when what the newer one
        // ended is told of elsewhere.
        const bool replaced = is < region.newest[n] && was <= region.newest[n];
        if (!found.before.allowed(n, is, Crash::kKill) && !region.tombstones && !replaced)
          wrong.push_back(fmt::format("record {} came back as version {} by a bit in {}", n, is,
                                      kClassNames[static_cast<std::size_t>(c)]));
      }
    }
    tally.harmless += harmless ? 1 : 0;
    return wrong;
  }

  Machine machine_;
  Machine blind_;
  std::uint64_t specimen_seed_ = ~std::uint64_t{0};
  Specimen specimen_;
  std::array<ClassTally, kClasses> tally_{};
};

int run(int argc, char** argv) {
  std::uint64_t flips = 20'000, seed = 1;
  std::string replay;
  CommandLine options("Turns bits of stores over");
  options.add("--flips", flips, "how many");
  options.add("--seed", seed, "of stores and flips");
  options.add("--replay", replay, "SEED/FLIP: one flip again");
  if (const auto status = options.parse(argc, argv)) return *status;
  ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);  // stores come and go: no huge pages to be zeroed each time
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);

  const store::TempDir dir;
  Flipper flipper(dir.path());
  int failures = 0;
  std::uint64_t first = 0;
  if (const auto slash = replay.find('/'); slash != std::string::npos) {
    seed = std::stoull(replay);
    first = std::stoull(replay.substr(slash + 1));
    flips = first + 1;
  }
  for (std::uint64_t n = first; n < flips && failures < 8; ++n)
    for (const std::string& line : flipper.flip(seed, n)) {
      fmt::print("WRONG flip {} of seed {}: {}\n  again: kvd_bit_flips --replay {}/{}\n", n, seed, line, seed, n);
      ++failures;
    }
  fmt::print("{:<16} {:>9} {:>9} {:>14} {:>14}\n", "class", "flips", "harmless", "records lost", "came back");
  for (std::size_t c = 0; c < kClasses; ++c) {
    const ClassTally& t = flipper.tally()[c];
    fmt::print("{:<16} {:>9} {:>9} {:>14} {:>14}\n", kClassNames[c], t.flips, t.harmless, t.lost, t.undone);
  }
  if (!replay.empty()) return failures > 0 ? 1 : 0;
  const std::uint64_t control = flipper.wrong_without_verification(seed, 300);
  fmt::print("without verification: {} wrong answers of 300 flips of payload\n", control);
  return failures > 0 || control < 30 ? 1 : 0;
}

}  // namespace
}  // namespace kvd::crash

int main(int argc, char** argv) { return kvd::crash::run(argc, argv); }
