#include "store/put_seqs.h"

#include <algorithm>

namespace kvd::store {

PutSeqs::Table PutSeqs::table_of(std::span<const Descriptor> descriptors) {
  Table table;
  for (const Descriptor& d : descriptors)
    if (!d.tombstone()) table.emplace_back(d.offset, d.put_seq);
  std::ranges::sort(table);
  return table;
}

void PutSeqs::note(std::uint32_t segment, std::span<const Descriptor> descriptors, bool has_footer) {
  Range& range = ranges_[segment];
  for (const Descriptor& d : descriptors) {
    if (d.tombstone()) continue;
    range.lowest = std::min(range.lowest, d.put_seq);
    range.highest = std::max(range.highest, d.put_seq);
  }
  if (!has_footer) kept_[segment] = table_of(descriptors);
}

std::optional<bool> PutSeqs::newer(std::uint64_t put_seq, std::uint32_t segment, std::uint32_t offset) {
  const Range& range = ranges_[segment];
  if (put_seq > range.highest) return true;
  if (put_seq <= range.lowest) return false;
  const auto other = at(segment, offset);
  return other ? std::optional(put_seq > *other) : std::nullopt;
}

std::optional<std::uint64_t> PutSeqs::at(std::uint32_t segment, std::uint32_t offset) {
  const Table* table = find(segment);
  if (table == nullptr) return std::nullopt;
  const auto found = std::ranges::lower_bound(*table, offset, {}, &std::pair<std::uint32_t, std::uint64_t>::first);
  return found != table->end() && found->first == offset ? std::optional(found->second) : std::nullopt;
}

const PutSeqs::Table* PutSeqs::find(std::uint32_t segment) {
  if (const auto kept = kept_.find(segment); kept != kept_.end()) return &kept->second;
  if (const auto known = cache_.find(segment); known != cache_.end()) {
    known->second.used = ++uses_;
    return &known->second.table;
  }
  const auto footer = read_(segment);
  if (!footer) return nullptr;
  Table table = table_of(footer->content.descriptors);
  while (!cache_.empty() && cached_ + table.size() > cached_max_) {
    const auto oldest = std::ranges::min_element(cache_, {}, [](const auto& entry) { return entry.second.used; });
    cached_ -= oldest->second.table.size();
    cache_.erase(oldest);
  }
  cached_ += table.size();
  return &cache_.insert_or_assign(segment, Cached{++uses_, std::move(table)}).first->second.table;
}

}  // namespace kvd::store
