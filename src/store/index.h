// FlashIndex: which page of which segment holds a record. 16 bytes an entry, 4 entries to a 64-byte bucket, two buckets
// to choose from per record; all memory is reserved by the constructor.
//
// One owner, no locking. An entry knows 44 bits of the record's hash, so a lookup of an absent record finds something
// with probability <= 8 / 2^44; whoever reads the record finds out, because its checksums are seeded with its key.
// The second bucket follows from the first and the 44 bits, so that entries can be moved without their keys: insertion
// searches breadth-first for a chain of moves and changes nothing when it finds none. At the load of 0.9 that the size
// is chosen for, chains of three moves suffice (the threshold of two choices by four slots is 0.976).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "base/bytes.h"

namespace kvd::store {

// Where a record lies on flash.
struct IndexEntry {
  std::uint32_t segment = 0;     // 20 bits
  std::uint32_t offset = 0;      // 16 bits, pages from the segment's start; > 0
  std::uint32_t pages = 0;       // 1..16,384
  std::uint32_t interleave = 0;  // 2 bits, see the format
  std::uint32_t checksum = 0;    // low half of the descriptor's checksum
  friend bool operator==(const IndexEntry&, const IndexEntry&) = default;
};

class FlashIndex {
 public:
  // Holds at least `records_max` records (> 0), at 16 / 0.9 bytes each.
  explicit FlashIndex(std::uint64_t records_max);
  ~FlashIndex() = default;
  FlashIndex(const FlashIndex&) = delete;
  FlashIndex& operator=(const FlashIndex&) = delete;

  [[nodiscard]] std::optional<IndexEntry> find(std::uint64_t hash) const noexcept;
  // Where a record may be: its tag and two buckets.
  struct Place {
    std::uint64_t tag, first, second;
  };
  // Asks the processor to fetch both buckets of a record: of many that are looked up or inserted one after the other
  // the memory reads then overlap. Returns what find() takes instead of the hash.
  Place prefetch(std::uint64_t hash) const noexcept;
  [[nodiscard]] std::optional<IndexEntry> find(const Place& place) const noexcept;

  // Inserts, or overwrites the record's entry. False when there is no place for it: nothing has changed then, and the
  // caller makes room by giving up a segment.
  // `overwritten`, where it is given, gets the entry that was there; its offset stays 0 when there was none.
  bool insert(std::uint64_t hash, const IndexEntry& entry, IndexEntry* overwritten = nullptr) noexcept;

  // Its memory comes in plain pages as it is touched, unless one of these is called. A wish: without huge pages probes
  // miss the TLB more often.
  // Huge pages from now on: what touches one waits until it is cleared, 0.1 to 5 ms.
  void use_huge_pages() noexcept;
  // What takes all of it from the system in huge pages: to be called once, on any thread, beside all else and also when
  // the index is gone; returns early when it is to stop.
  [[nodiscard]] std::function<void(const std::stop_token&)> populate() const;

  // Erases the record's entry if it lies at this place; how many pages it has, 0 when it lies elsewhere.
  std::uint32_t erase(std::uint64_t hash, std::uint32_t segment, std::uint32_t offset) noexcept;

  // Erases entries of `segment` in buckets [first_bucket, first_bucket + buckets); returns how many. For segments whose
  // footer cannot be read, in slices so that nobody waits: between begin_sweep() and end_sweep(), or insertions between
  // two slices may move an entry to where the sweep has been.
  std::uint64_t erase_segment(std::uint32_t segment, std::uint64_t first_bucket, std::uint64_t buckets) noexcept;

  // From now on entries of `segment`, which nobody may ask for or insert any more, are erased where an insertion would
  // move them.
  void begin_sweep(std::uint32_t segment) { sweeps_.push_back({segment, 0}); }
  // All slices are done: how many entries went that way.
  std::uint64_t end_sweep(std::uint32_t segment) noexcept;

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint64_t records_max() const noexcept { return records_max_; }
  [[nodiscard]] std::uint64_t buckets() const noexcept { return buckets_; }
  [[nodiscard]] std::uint64_t memory_bytes() const noexcept { return buckets_ * 64; }

 private:
  // Bits, low to high: lo = tag 44, segment 20; hi = offset 16, pages less one 14, interleave 2, checksum 32. All zeros
  // = free: the offset of a record is never 0.
  struct Slot {
    std::uint64_t lo = 0;
    std::uint64_t hi = 0;
    [[nodiscard]] bool free() const noexcept { return hi == 0 && lo == 0; }
  };
  struct alignas(64) Bucket {
    Slot slots[4];
  };
  static_assert(sizeof(Bucket) == 64);
  static constexpr std::uint64_t kTagBits = 44;
  static constexpr std::uint64_t kTagMask = (std::uint64_t{1} << kTagBits) - 1;

  // Finalizer of splitmix64: the bits of a hash that picked the tag do not show in the bucket.
  static std::uint64_t mix(std::uint64_t x) noexcept {
    x ^= x >> 30;
    x *= 0xBF58'476D'1CE4'E5B9;
    x ^= x >> 27;
    x *= 0x94D0'49BB'1331'11EB;
    return x ^ (x >> 31);
  }

  // Maps 64 uniform bits to [0, n).
  static std::uint64_t reduce(std::uint64_t x, std::uint64_t n) noexcept {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(x) * n) >> 64);
  }

  [[nodiscard]] std::size_t mapped_bytes() const noexcept;
  [[nodiscard]] Place place_of(std::uint64_t hash) const noexcept;
  [[nodiscard]] std::uint64_t other_bucket(std::uint64_t tag, std::uint64_t bucket) const noexcept;
  [[nodiscard]] Slot* find_slot(const Place& place) const noexcept;
  // Frees a slot in one of the two buckets by moving others, and returns it; null when there is no chain.
  Slot* make_room(const Place& place) noexcept;
  // Erases the entry if its segment is being swept.
  bool erase_swept(Slot& slot) noexcept;
  static Slot pack(std::uint64_t tag, const IndexEntry& entry) noexcept;
  static IndexEntry unpack(const Slot& slot) noexcept;

  std::uint64_t records_max_;
  std::uint64_t buckets_;
  std::shared_ptr<void> memory_;  // anonymous mapping
  Bucket* table_ = nullptr;       // there, on a boundary of huge pages
  std::uint64_t size_ = 0;
  struct Sweep {
    std::uint32_t segment;
    std::uint64_t erased;  // by insertions
  };
  std::vector<Sweep> sweeps_;  // under way: none, as a rule
};

// A match looks up thousands of records: what it calls for each is here, so that it is inlined.

inline FlashIndex::Place FlashIndex::place_of(std::uint64_t hash) const noexcept {
  Place place{};
  place.tag = hash & kTagMask;
  place.first = reduce(mix(hash), buckets_);
  place.second = other_bucket(place.tag, place.first);
  return place;
}

// first + second = f(tag) modulo the number of buckets, so each of them follows from the other.
inline std::uint64_t FlashIndex::other_bucket(std::uint64_t tag, std::uint64_t bucket) const noexcept {
  const std::uint64_t sum = reduce(mix(tag ^ 0x9E37'79B9'7F4A'7C15), buckets_);
  return sum >= bucket ? sum - bucket : sum + buckets_ - bucket;
}

inline IndexEntry FlashIndex::unpack(const Slot& slot) noexcept {
  IndexEntry entry;
  entry.segment = static_cast<std::uint32_t>(slot.lo >> kTagBits);
  entry.offset = static_cast<std::uint32_t>(slot.hi & 0xFFFF);
  entry.pages = static_cast<std::uint32_t>((slot.hi >> 16) & 0x3FFF) + 1;
  entry.interleave = static_cast<std::uint32_t>((slot.hi >> 30) & 3);
  entry.checksum = static_cast<std::uint32_t>(slot.hi >> 32);
  return entry;
}

inline FlashIndex::Slot* FlashIndex::find_slot(const Place& place) const noexcept {
  for (const std::uint64_t bucket : {place.first, place.second})
    for (Slot& slot : table_[bucket].slots)
      if (!slot.free() && (slot.lo & kTagMask) == place.tag) return &slot;
  return nullptr;
}

inline std::optional<IndexEntry> FlashIndex::find(std::uint64_t hash) const noexcept { return find(place_of(hash)); }

inline std::optional<IndexEntry> FlashIndex::find(const Place& place) const noexcept {
  const Slot* slot = find_slot(place);
  if (slot == nullptr) return std::nullopt;
  return unpack(*slot);
}

inline FlashIndex::Place FlashIndex::prefetch(std::uint64_t hash) const noexcept {
  const Place place = place_of(hash);
  __builtin_prefetch(&table_[place.first]);
  __builtin_prefetch(&table_[place.second]);
  return place;
}

}  // namespace kvd::store
