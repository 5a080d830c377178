#include "crash/oracle.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

namespace kvd::crash {
namespace {

constexpr auto at(Crash how) { return static_cast<std::size_t>(how); }

}  // namespace

std::uint8_t Oracle::put(std::size_t record) {
  Record& r = records_[record];
  return r.count == kVersionsMax ? std::uint8_t{0} : ++r.count;
}

void Oracle::acknowledged(std::size_t record, std::uint8_t version, AckLevel level) {
  Version& v = records_[record].versions[version];
  if (v.taken_out || v.given_up) return;  // meanwhile; the acknowledgement was on its way
  v.promised_in |= v.copies;
  for (const auto& [enough, how] :
       {std::pair(AckLevel::kWritten, Crash::kKill), {AckLevel::kSynced, Crash::kPowerLoss}}) {
    if (level < enough) continue;
    v.acknowledged[at(how)] = true;
    for (std::uint8_t older = 1; older < version; ++older) {
      records_[record].versions[older].acknowledged[at(how)] = false;
      records_[record].versions[older].removed[at(how)] = true;
    }
  }
}

std::size_t Oracle::removed(std::size_t record) {
  Record& r = records_[record];
  for (std::uint8_t v = 1; v <= r.count; ++v) {
    r.versions[v].acknowledged = {};
    r.versions[v].taken_out = true;
  }
  removals_.push_back({.record = record, .versions = r.count});
  return removals_.size();
}

void Oracle::removals_acknowledged(std::size_t before, std::uint64_t now) {
  for (std::size_t i = 0; i < before; ++i) {
    Removal& removal = removals_[i];
    if (removal.acknowledged) continue;
    removal.acknowledged = true;
    removal.at = now;
    for (std::uint8_t v = 1; v <= removal.versions; ++v)
      records_[removal.record].versions[v].removed[at(Crash::kKill)] = true;
  }
}

void Oracle::copied(std::size_t record, std::uint8_t version, std::uint8_t segment) {
  Version& v = records_[record].versions[version];
  const std::uint32_t bit = std::uint32_t{1} << segment;
  v.segment = segment;
  v.given_up = false;
  v.copies |= bit;
  if (v.promised_in != 0) v.promised_in |= bit;
}

void Oracle::given_up(std::uint8_t segment) {
  const std::uint32_t bit = std::uint32_t{1} << segment;
  for (Record& record : records_) {
    // What replaced others goes, and they do not come back for it.
    std::size_t newest = record.versions.size() - 1;
    while (newest > 0 && (record.versions[newest].copies & bit) == 0) --newest;
    for (std::size_t older = 1; older < newest; ++older) record.versions[older].acknowledged = {};
    for (Version& v : record.versions) {
      if (v.segment == segment) v.given_up = true;
      if ((v.copies & bit) != 0) v.lost_copy = true;
      if ((v.promised_in & bit) == 0) continue;
      v.acknowledged = {};
      v.promised_in = 0;
    }
  }
}

void Oracle::reused(std::uint8_t segment) {
  for (Record& record : records_)
    for (Version& v : record.versions) v.copies &= ~(std::uint32_t{1} << segment);
}

void Oracle::flushed(std::size_t drive, std::uint64_t submitted) {
  const std::uint32_t all = (std::uint32_t{1} << devices_) - 1;
  for (Removal& removal : removals_) {
    if (!removal.acknowledged || removal.at >= submitted) continue;
    removal.flushed |= std::uint32_t{1} << drive;
    if ((removal.flushed & all) != all) continue;
    for (std::uint8_t v = 1; v <= removal.versions; ++v)
      records_[removal.record].versions[v].removed[at(Crash::kPowerLoss)] = true;
  }
}

void Oracle::crashed(Crash how) {
  removals_.clear();
  if (how == Crash::kKill) return;
  for (Record& record : records_)
    for (Version& v : record.versions) {
      v.acknowledged[at(Crash::kKill)] = v.acknowledged[at(Crash::kPowerLoss)];
      v.removed[at(Crash::kKill)] = v.removed[at(Crash::kPowerLoss)];
    }
}

std::uint8_t Oracle::promised(std::size_t record, Crash how) const noexcept {
  const Record& r = records_[record];
  for (std::uint8_t v = r.count; v > 0; --v)
    if (r.versions[v].acknowledged[at(how)]) return v;
  return 0;
}

bool Oracle::allowed(std::size_t record, std::uint8_t version, Crash how) const noexcept {
  const Version& v = records_[record].versions[version];
  return v.copies != 0 && !v.removed[at(how)];
}

std::uint64_t Oracle::hash(Crash how) const noexcept {
  std::array<std::uint32_t, kRecords> packed{};
  for (std::size_t n = 0; n < kRecords; ++n) {
    packed[n] = promised(n, how);
    for (std::uint8_t v = 1; v <= records_[n].count; ++v)
      packed[n] |= allowed(n, v, how) ? std::uint32_t{1} << (v + 8) : 0;
  }
  return XXH3_64bits(packed.data(), sizeof packed);
}

}  // namespace kvd::crash
