#include "crash/explorer.h"

#include <sys/mman.h>

#include <bit>
#include <charconv>

#include <fmt/format.h>

#include "base/check.h"
#include "store/format.h"

namespace kvd::crash {
namespace {

constexpr int kSteps = 40;                 // of one phase of a workload: fills the store about once
constexpr std::uint32_t kDrawn = 10;       // variants of a moment that are drawn, of a workload
constexpr std::uint32_t kDrawnNested = 2;  // ... of a recovery
constexpr std::uint64_t kNestEvery = 24;   // of so many states one has its recovery stopped in turn
constexpr std::size_t kDepthMax = 3;       // stops in a row
// Of two devices, which write four times as much in an opening and more at once behind it, one in so many states; and
// of these recoveries one in so many is stopped in its opening, too.
constexpr std::uint64_t kNestEveryOfTwo = 12 * kNestEvery;
constexpr std::uint64_t kOpeningEvery = 4;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) { return Random(a ^ (b * 0x9E37'79B9'7F4A'7C15)).next(); }

// Every third seed has a drive that takes discards. In every second one no header waits for a map of changes, so that
// more of them are in flight together; in two of five segments are given up for the tombstones that lie in them.
Machine::Kind kind(std::uint64_t seed) {
  Machine::Kind kind{.discards = seed % 3 == 0, .lists_uses = seed % 2 == 0};
  if (seed % 5 < 2) kind.tombstones_spent_max = 4;
  return kind;
}

// Every fourth seed has a store of two devices, of all those kinds. A state of it takes nearly twice as long, so it has
// half of the phases: that the others come to as many states in a time as they would alone.
std::uint8_t devices(std::uint64_t seed) { return seed % 8 == 1 || seed % 8 == 4 ? 2 : 1; }

std::uint32_t phases(std::uint64_t seed) { return devices(seed) == 1 ? Explorer::kPhases : Explorer::kPhasesOfTwo; }

// Whether an opening marks itself by this write: of a superblock, or of the list of devices.
bool marks_opening(const io::SimWrite& write) {
  const std::uint64_t offset = write.offset % kDriveSpan;
  return drive_of(write.offset) == kListDrive || (offset < store::kHeadBytes && offset % store::kSuperblockStride == 0);
}

std::uint64_t script_seed(std::uint64_t seed, std::uint32_t phase) { return mix(seed, phase + 1); }

// Goes to a position of a journal.
Walk walk_to(const Start& start, const Journal& journal, std::uint32_t position) {
  Walk walk(start, journal);
  while (walk.position() < position && walk.next()) {
  }
  return walk;
}

Stopped stop_at(const Start& start, const Journal& journal, const Stop& at) {
  const Walk walk = walk_to(start, journal, at.position);
  const Oracle& oracle = walk.position() == 0 ? start.oracle : *walk.event().oracle;
  return stop(journal, walk.moment(), oracle, at.how, at.variant);
}

}  // namespace

StateSet::StateSet(std::uint64_t states) : slots_count_(std::bit_ceil(states * 3 / 2)) {
  void* memory =
      ::mmap(nullptr, slots_count_ * sizeof *slots_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  KVD_CHECK(memory != MAP_FAILED);
  slots_ = static_cast<std::atomic<std::uint64_t>*>(memory);
}

StateSet::~StateSet() { ::munmap(slots_, slots_count_ * sizeof *slots_); }

bool StateSet::insert(std::uint64_t hash) noexcept {
  hash = hash == 0 ? 1 : hash;
  for (std::uint64_t i = hash & (slots_count_ - 1);; i = (i + 1) & (slots_count_ - 1)) {
    std::uint64_t there = 0;
    if (slots_[i].compare_exchange_strong(there, hash, std::memory_order_relaxed)) return true;
    if (there == hash) return false;
  }
}

std::string Path::text() const {
  std::string text = fmt::format("{}.{}", seed, phase);
  for (const Stop& s : stops)
    text += fmt::format("/{}:{}:{}", s.position, s.how == Crash::kKill ? 'k' : 'p', s.variant);
  return text;
}

std::optional<Path> Path::parse(const std::string& text) {
  Path path;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&](auto& to) {
    const auto [next, error] = std::from_chars(at, end, to);
    at = next;
    return error == std::errc();
  };
  const auto sign = [&](char c) { return at != end && *at == c && (++at, true); };
  if (!number(path.seed) || !sign('.') || !number(path.phase)) return std::nullopt;
  while (at != end) {
    Stop s;
    if (!sign('/') || !number(s.position) || !sign(':')) return std::nullopt;
    s.how = at != end && *at == 'p' ? Crash::kPowerLoss : Crash::kKill;
    if (at++ == end || !sign(':') || !number(s.variant)) return std::nullopt;
    path.stops.push_back(s);
  }
  return path;
}

void Tally::fail(const Path& path, const std::vector<std::string>& wrong) {
  for (const std::string& line : wrong) {
    const std::uint32_t i = failures++;
    if (i < kFailuresKept) fmt::format_to_n(lines[i].data(), lines[i].size() - 1, "{}: {}", path.text(), line);
  }
}

void Explorer::tell(const Path& path) {
  auto& at = tally_.at[worker_];
  *fmt::format_to_n(at.data(), at.size() - 1, "{}", path.text()).out = '\0';
}

bool Explorer::over() const {
  if (tally_.failures >= Tally::kFailuresKept) return true;
  if (tally_.distinct >= (limits_.states > 0 ? limits_.states : seen_.capacity())) return true;
  return std::chrono::steady_clock::now() >= limits_.end;
}

// A phase begins where the one before was stopped: at its end, in one of the ways in which that may be.
Stop Explorer::last_stop(std::uint64_t seed, std::uint32_t phase, const Journal& journal) {
  Random random(mix(seed, phase + 1'000));
  Stop s;
  s.position = static_cast<std::uint32_t>(journal.events().size());
  s.how = random.chance(1, 2) ? Crash::kKill : Crash::kPowerLoss;
  s.variant = static_cast<std::uint32_t>(random.below(40));
  return s;
}

void Explorer::explore(std::uint64_t seed) {
  machine_.set(kind(seed));
  Start start = formatted(devices(seed));
  for (std::uint32_t phase = 0; phase < phases(seed) && !over(); ++phase) {
    Path path{seed, phase};
    Journal journal(start);
    tell(path);
    if (const auto wrong = machine_.work(start, journal, script_seed(seed, phase), kSteps); !wrong.empty())
      tally_.fail(path, wrong);
    ++tally_.workloads;
    // Of two devices the opening of one phase: that alone are as many states as of the rest.
    sweep(start, journal, path, nullptr, devices(seed) == 1 || seed / 8 % phases(seed) == phase);
    start = stop_at(start, journal, last_stop(seed, phase, journal)).start;
  }
}

void Explorer::sweep(const Start& start, const Journal& journal, Path& path, const Found* parent, bool opening) {
  Walk walk(start, journal);
  const std::uint32_t drawn = path.stops.empty() ? kDrawn : kDrawnNested;
  while (walk.next()) {
    const Journal::Event& event = walk.event();
    if (!opening && event.step == Journal::Step::kSubmit && marks_opening(journal.writes()[event.index])) continue;
    for (const Crash how : {Crash::kKill, Crash::kPowerLoss}) {
      if (!walk.matters(how)) continue;
      const std::uint32_t variants = variants_of(walk.moment(), how, drawn);
      for (std::uint32_t variant = 0; variant < variants; ++variant) {
        if (over()) return;
        const Stopped stopped = stop(journal, walk.moment(), *walk.event().oracle, how, variant);
        path.stops.push_back({walk.position(), how, variant});
        // What a kill left in the page cache can still be lost: only then the parent's findings need not stay.
        const bool same = parent != nullptr && (how == Crash::kKill || start.unflushed.empty());
        visit(stopped, path, same ? parent : nullptr);
        path.stops.pop_back();
      }
    }
  }
}

void Explorer::visit(const Stopped& stopped, const Path& path, const Found* parent) {
  const std::uint64_t hash = mix(stopped.visible_hash, stopped.start.oracle.hash(Crash::kKill));
  if (!seen_.insert(hash)) {
    ++tally_.repeated;
    return;
  }
  ++tally_.distinct;
  ++(path.stops.size() == 1 ? tally_.in_workload : tally_.in_recovery);
  if (stopped.torn_pages + stopped.torn_sectors > 0) ++tally_.torn;
  if (path.stops.back().how == Crash::kPowerLoss) ++tally_.power;
  tell(path);
  Journal journal(stopped.start);
  const Found found = machine_.recover(stopped.start, journal);
  std::vector<std::string> wrong = judge(found, journal.oracle());
  if (parent != nullptr) compare(found, journal.oracle(), *parent, wrong);
  if (!wrong.empty()) return tally_.fail(path, wrong);
  const bool one = stopped.start.oracle.devices() == 1;
  const std::uint64_t every = one ? kNestEvery : kNestEveryOfTwo;
  if (path.stops.size() >= kDepthMax || hash % every != 0) return;
  Path nested = path;
  const bool opening = one || hash / every % kOpeningEvery == 0;
  sweep(stopped.start, journal, nested, &found, opening);
}

std::vector<std::string> Explorer::judge(const Found& found, const Oracle& after) {
  std::vector<std::string> wrong = found.wrong;
  wrong.insert(wrong.end(), found.undead.begin(), found.undead.end());
  // A put of such a record would have been acknowledged without storing anything.
  if (found.dropped > 0)
    wrong.push_back(fmt::format("{} records that recovery found are not there when they are read", found.dropped));
  for (std::size_t n = 0; n < kRecords; ++n) {
    const std::uint8_t got = found.versions[n];
    const std::uint8_t promised = after.promised(n, Crash::kKill);
    if (promised != 0) ++tally_.promises;
    const bool newer = got > promised && found.before.allowed(n, got, Crash::kKill);  // put in its place
    if (promised != 0 && got != promised && !newer)
      wrong.push_back(fmt::format("record {}: version {} was acknowledged, found is {}", n, promised, got));
    for (std::uint8_t v = 1; v <= found.before.versions(n); ++v)
      if (!found.before.allowed(n, v, Crash::kKill)) ++tally_.forbidden;
    if (got != 0 && !found.before.allowed(n, got, Crash::kKill))
      wrong.push_back(fmt::format("record {}: version {} came back, it was removed or its segment was reused", n, got));
  }
  return wrong;
}

void Explorer::compare(const Found& found, const Oracle& after, const Found& parent, std::vector<std::string>& wrong) {
  for (std::size_t n = 0; n < kRecords; ++n) {
    const std::uint8_t now = found.versions[n], then = parent.versions[n];
    const auto excused = [&](std::uint8_t v) {
      return v != 0 && (after.lost_its_segment(n, v) || parent.before.lost_its_segment(n, v));
    };
    if (now != then && !excused(now) && !excused(then))
      wrong.push_back(fmt::format("record {}: recovery found version {}, and repeated version {}", n, then, now));
  }
}

std::vector<std::string> Explorer::replay(const Path& path) {
  machine_.set(kind(path.seed));
  Start start = formatted(devices(path.seed));
  for (std::uint32_t phase = 0;; ++phase) {
    Journal journal(start);
    auto wrong = machine_.work(start, journal, script_seed(path.seed, phase), kSteps);
    if (phase < path.phase) {
      start = stop_at(start, journal, last_stop(path.seed, phase, journal)).start;
      continue;
    }
    std::optional<Found> parent;
    const Journal* before = &journal;
    std::optional<Journal> recovered;
    for (const Stop& at : path.stops) {
      const bool same = parent && (at.how == Crash::kKill || start.unflushed.empty());
      start = stop_at(start, *before, at).start;
      Journal now(start);
      const Found found = machine_.recover(start, now);
      fmt::print("{}recovery:\n{}", describe(start), now.text());
      const auto more = judge(found, now.oracle());
      wrong.insert(wrong.end(), more.begin(), more.end());
      if (same) compare(found, now.oracle(), *parent, wrong);
      parent = found;
      recovered.emplace(std::move(now));
      before = &*recovered;
    }
    return wrong;
  }
}

}  // namespace kvd::crash
