// Fuzzes the flash index: the input is a list of operations, checked against a map. Five bytes an operation.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>

#include "store/index.h"

namespace {

using namespace kvd::store;

void check(bool ok) {
  if (!ok) std::abort();
}

// Spreads 16 bits over the hash, so that buckets, tags and collisions of buckets are all reached.
std::uint64_t hash_of(std::uint64_t n) { return (n + 1) * 0x9E37'79B9'7F4A'7C15; }

// The index, a map of what is in it, and a sweep that goes on slice by slice, of which some entries may be left.
class Run {
 public:
  void insert(std::uint64_t hash, IndexEntry entry) {
    if (swept_ == entry.segment) entry.segment += 10;  // nothing new for it
    const auto known = model_.find(hash);
    if (!index_.insert(hash, entry)) return check(known == model_.end() || is_swept(known->second));
    model_[hash] = entry;
  }
  void erase(std::uint64_t hash, const IndexEntry& entry) {
    const auto known = model_.find(hash);
    const bool there =
        known != model_.end() && known->second.segment == entry.segment && known->second.offset == entry.offset;
    const bool erased = index_.erase(hash, entry.segment, entry.offset) > 0;
    check(erased == there || (there && swept_ == entry.segment));
    if (there) model_.erase(known);
  }
  void erase_segment(std::uint32_t segment) {
    const auto erased = std::erase_if(model_, [&](const auto& item) { return item.second.segment == segment; });
    const std::uint64_t count = index_.erase_segment(segment, 0, index_.buckets());
    check(swept_ == segment ? count <= erased : count == erased);
  }
  // Begins a sweep, or goes on with it.
  void sweep(std::uint32_t segment, std::uint64_t buckets) {
    if (!swept_) {
      index_.begin_sweep(segment);
      swept_ = segment;
      sweep_at_ = 0;
    }
    index_.erase_segment(*swept_, sweep_at_, buckets);
    sweep_at_ += buckets;
    if (sweep_at_ < index_.buckets()) return;
    index_.end_sweep(*swept_);
    std::erase_if(model_, [this](const auto& item) { return is_swept(item.second); });
    swept_.reset();
    check_all();
  }
  void check_size() const { check(swept_ || index_.size() == model_.size()); }
  void check_all() const {
    std::uint64_t left = 0;  // of what is being swept
    for (std::uint64_t n = 0; n < 97; ++n) {
      const auto found = index_.find(hash_of(n));
      const auto known = model_.find(hash_of(n));
      if (found) check(known != model_.end() && *found == known->second);
      if (!found) check(known == model_.end() || is_swept(known->second));
      if (found && is_swept(*found)) ++left;
    }
    const auto whole = std::ranges::count_if(model_, [this](const auto& item) { return !is_swept(item.second); });
    check(index_.size() == static_cast<std::uint64_t>(whole) + left);
  }

 private:
  [[nodiscard]] bool is_swept(const IndexEntry& entry) const { return swept_ == entry.segment; }

  FlashIndex index_{64};
  std::map<std::uint64_t, IndexEntry> model_;
  std::optional<std::uint32_t> swept_;
  std::uint64_t sweep_at_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  Run run;
  for (; size >= 5; data += 5, size -= 5) {
    const std::uint64_t hash = hash_of(data[1] % 97U);
    const IndexEntry entry{.segment = data[2] % 7U,
                           .offset = 1U + data[3],
                           .pages = 1U + data[4] * 64U,
                           .interleave = data[4] % 4U,
                           .checksum = data[3] * 0x0101'0101U};
    if (data[0] % 4 < 2) {
      run.insert(hash, entry);
    } else if (data[0] % 4 == 2) {
      run.erase(hash, entry);
    } else if (data[0] < 64) {
      run.erase_segment(entry.segment);
    } else {
      run.sweep(entry.segment, 1U + data[3] % 4U);
    }
    run.check_size();
  }
  run.check_all();
  return 0;
}
