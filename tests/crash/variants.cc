#include "crash/variants.h"

#include <algorithm>

#include "base/check.h"
#include "base/random.h"

namespace kvd::crash {
namespace {

constexpr std::size_t kSector = 512;
constexpr std::uint32_t kPerWrite = 5;  // systematic variants of each write
constexpr std::size_t kSubsetsOf = 5;   // all subsets of up to so many writes
constexpr std::uint32_t kDrawnSeed = 0x5EED;

// What becomes of write `i` of `open` in a variant.
Fate fate_of(std::uint32_t variant, std::size_t i, std::size_t open, Random& random) {
  if (variant == 0) return Fate::kKept;
  if (variant == 1) return Fate::kDropped;
  variant -= 2;
  if (variant < kPerWrite * open) {
    const bool chosen = variant / kPerWrite == i;
    switch (variant % kPerWrite) {
      case 0: return chosen ? Fate::kDropped : Fate::kKept;
      case 1: return chosen ? Fate::kKept : Fate::kDropped;
      case 2: return chosen ? Fate::kTornPages : Fate::kKept;
      case 3: return chosen ? Fate::kTornSectors : Fate::kKept;
      default: return chosen ? Fate::kTornSectors : Fate::kDropped;
    }
  }
  variant -= static_cast<std::uint32_t>(kPerWrite * open);
  const std::uint32_t subsets = open <= kSubsetsOf ? 1u << open : 0;
  if (variant < subsets) return (variant >> i & 1) != 0 ? Fate::kKept : Fate::kDropped;
  if (variant == subsets) return Fate::kTornSectors;
  const std::uint64_t drawn = random.below(10);
  return drawn < 4 ? Fate::kKept : drawn < 8 ? Fate::kDropped : drawn < 9 ? Fate::kTornPages : Fate::kTornSectors;
}

// The sectors of a torn write that have arrived: the first ones, the last ones or any.
std::vector<bool> arrived(std::size_t units, Random& random) {
  std::vector<bool> kept(units);
  const std::uint64_t shape = random.below(3);
  const std::size_t edge = 1 + random.below(std::max<std::size_t>(units, 2) - 1);
  for (std::size_t i = 0; i < units; ++i)
    kept[i] = shape == 0 ? i < edge : shape == 1 ? i >= edge : random.chance(1, 2);
  return kept;
}

// The stretches of a write that have arrived, as writes of their own.
void tear(const io::SimWrite& write, std::size_t unit, Random& random, std::vector<io::SimWrite>& to) {
  const std::vector<bool> kept = arrived((write.bytes.size() + unit - 1) / unit, random);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (!kept[i]) continue;
    const std::size_t first = i * unit;
    while (i + 1 < kept.size() && kept[i + 1]) ++i;
    const auto piece = Bytes(write.bytes).subspan(first, std::min((i + 1) * unit, write.bytes.size()) - first);
    to.push_back({.offset = write.offset + first, .bytes = {piece.begin(), piece.end()}});
  }
}

std::size_t open_writes(const Moment& moment, Crash how) {
  return moment.started.size() + (how == Crash::kPowerLoss ? moment.pending.size() : 0);
}

}  // namespace

Walk::Walk(const Start& start, const Journal& journal) : journal_(journal) {
  moment_.durable = start.durable;
  for (std::uint32_t i = 0; i < start.unflushed.size(); ++i) moment_.pending.push_back(i);
}

bool Walk::next() {
  if (position_ == journal_.events().size()) return false;
  if (position_ > 0) before_ = event().oracle;
  ++position_;
  const Journal::Event& now = event();
  switch (now.step) {
    case Journal::Step::kSubmit: moment_.started.push_back(now.index); break;
    case Journal::Step::kComplete:
      std::erase(moment_.started, now.index);
      moment_.pending.push_back(now.index);
      break;
    case Journal::Step::kFlush:
      for (std::uint32_t& durable = durable_writes_[now.drive]; durable < now.index; ++durable) {
        const std::uint32_t write = journal_.done(now.drive)[durable];
        moment_.durable.write(journal_.writes()[write].offset, journal_.writes()[write].bytes);
        std::erase(moment_.pending, write);
      }
      break;
    case Journal::Step::kPromise: break;
  }
  return true;
}

bool Walk::matters(Crash how) const {
  if (event().step == Journal::Step::kSubmit) return true;
  return before_ != nullptr && before_ != event().oracle && before_->hash(how) != event().oracle->hash(how);
}

std::uint32_t variants_of(const Moment& moment, Crash how, std::uint32_t drawn) {
  const std::size_t open = open_writes(moment, how);
  if (open == 0) return 1;
  const std::uint32_t subsets = open <= kSubsetsOf ? 1u << open : 0;
  return 2 + static_cast<std::uint32_t>(kPerWrite * open) + subsets + 1 + drawn;
}

Stopped stop(const Journal& journal, const Moment& moment, const Oracle& oracle, Crash how, std::uint32_t variant) {
  Stopped stopped;
  std::vector<io::SimWrite> visible;
  const auto& writes = journal.writes();
  if (how == Crash::kKill)
    for (const std::uint32_t i : moment.pending) visible.push_back(writes[i]);
  std::vector<std::uint32_t> open = moment.started;
  if (how == Crash::kPowerLoss) open.insert(open.begin(), moment.pending.begin(), moment.pending.end());
  Random random(kDrawnSeed + variant);
  for (std::size_t i = 0; i < open.size(); ++i) {
    switch (fate_of(variant, i, open.size(), random)) {
      case Fate::kKept:
        ++stopped.kept;
        visible.push_back(writes[open[i]]);
        break;
      case Fate::kDropped: ++stopped.dropped; break;
      case Fate::kTornPages:
        ++stopped.torn_pages;
        tear(writes[open[i]], kPageBytes, random, visible);
        break;
      case Fate::kTornSectors:
        ++stopped.torn_sectors;
        tear(writes[open[i]], kSector, random, visible);
        break;
    }
  }
  stopped.start.durable = moment.durable;
  stopped.start.oracle = oracle;
  stopped.start.oracle.crashed(how);
  Image seen = moment.durable;
  for (const io::SimWrite& write : visible) seen.write(write.offset, write.bytes);
  stopped.visible_hash = seen.hash();
  if (how == Crash::kPowerLoss) {
    stopped.start.durable = std::move(seen);
  } else {
    stopped.start.unflushed = std::move(visible);
  }
  return stopped;
}

}  // namespace kvd::crash
