#include "store/index.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/huge_pages.h"

namespace kvd::store {
namespace {

constexpr std::uint64_t kHugePage = HugePages::kBytes;
constexpr std::size_t kSearchNodesMax = 512;  // breadth-first nodes of an insertion: chains of up to 4 moves
constexpr std::size_t kSweepsReserved = 64;   // at once: four segments of each of 16 devices

}  // namespace

FlashIndex::FlashIndex(std::uint64_t records_max)
    : records_max_(records_max), buckets_(std::max<std::uint64_t>(records_max * 10 / 9 / 4 + 1, 2)) {
  KVD_CHECK(records_max > 0);
  const std::size_t bytes = mapped_bytes() + kHugePage;  // it starts on a boundary
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  KVD_CHECK(memory != MAP_FAILED);
  memory_ = {memory, [bytes](void* mapped) { ::munmap(mapped, bytes); }};
  ::madvise(memory, bytes, MADV_NOHUGEPAGE);  // where all memory gets them
  ::madvise(memory, bytes, MADV_DONTDUMP);
  table_ = reinterpret_cast<Bucket*>(align_up(reinterpret_cast<std::uintptr_t>(memory), kHugePage));
  sweeps_.reserve(kSweepsReserved);
}

std::size_t FlashIndex::mapped_bytes() const noexcept {
  return static_cast<std::size_t>(align_up(memory_bytes(), kHugePage));
}

void FlashIndex::use_huge_pages() noexcept { ::madvise(table_, mapped_bytes(), MADV_HUGEPAGE); }

std::function<void(const std::stop_token&)> FlashIndex::populate() const {
  return [memory = std::shared_ptr<std::byte>(memory_, reinterpret_cast<std::byte*>(table_)),
          bytes = mapped_bytes()](const std::stop_token& stop) { populate_huge(memory.get(), bytes, stop); };
}

FlashIndex::Slot FlashIndex::pack(std::uint64_t tag, const IndexEntry& entry) noexcept {
  KVD_CHECK(entry.offset > 0 && entry.offset < (1u << 16) && entry.segment < (1u << 20));
  KVD_CHECK(entry.pages > 0 && entry.pages <= (1u << 14) && entry.interleave < 4);
  return {tag | (std::uint64_t{entry.segment} << kTagBits),
          std::uint64_t{entry.offset} | (std::uint64_t{entry.pages - 1} << 16) |
              (std::uint64_t{entry.interleave} << 30) | (std::uint64_t{entry.checksum} << 32)};
}

bool FlashIndex::insert(std::uint64_t hash, const IndexEntry& entry, IndexEntry* overwritten) noexcept {
  const Place place = place_of(hash);
  if (Slot* slot = find_slot(place)) {
    if (overwritten != nullptr) *overwritten = unpack(*slot);
    *slot = pack(place.tag, entry);
    return true;
  }
  Slot* slot = make_room(place);
  if (slot == nullptr) return false;
  *slot = pack(place.tag, entry);
  ++size_;
  return true;
}

FlashIndex::Slot* FlashIndex::make_room(const Place& place) noexcept {
  struct Node {
    std::uint64_t bucket;
    std::uint32_t parent;  // node whose slot `from` can move to this bucket
    std::uint32_t from;
  };
  constexpr std::uint32_t kRoot = UINT32_MAX;
  std::array<Node, kSearchNodesMax> nodes;
  std::uint32_t count = 0;
  nodes[count++] = {place.first, kRoot, 0};
  if (place.second != place.first) nodes[count++] = {place.second, kRoot, 0};

  const bool sweeping = !sweeps_.empty();
  for (std::uint32_t at = 0; at < count; ++at) {
    Bucket& bucket = table_[nodes[at].bucket];
    for (Slot& slot : bucket.slots) {
      if (!slot.free() && !(sweeping && erase_swept(slot))) continue;
      // Walk back to a root, moving each parent's slot one step towards the free one.
      Slot* hole = &slot;
      for (std::uint32_t node = at; nodes[node].parent != kRoot; node = nodes[node].parent) {
        Slot& moved = table_[nodes[nodes[node].parent].bucket].slots[nodes[node].from];
        *hole = moved;
        moved = {};
        hole = &moved;
      }
      return hole;
    }
    for (std::uint32_t i = 0; i < 4 && count < nodes.size(); ++i)
      nodes[count++] = {other_bucket(bucket.slots[i].lo & kTagMask, nodes[at].bucket), at, i};
  }
  return nullptr;
}

bool FlashIndex::erase_swept(Slot& slot) noexcept {
  const auto segment = static_cast<std::uint32_t>(slot.lo >> kTagBits);
  const auto sweep = std::ranges::find(sweeps_, segment, &Sweep::segment);
  if (sweep == sweeps_.end()) return false;
  slot = {};
  --size_;
  ++sweep->erased;
  return true;
}

std::uint64_t FlashIndex::end_sweep(std::uint32_t segment) noexcept {
  const auto sweep = std::ranges::find(sweeps_, segment, &Sweep::segment);
  KVD_CHECK(sweep != sweeps_.end());
  const std::uint64_t erased = sweep->erased;
  sweeps_.erase(sweep);
  return erased;
}

std::uint32_t FlashIndex::erase(std::uint64_t hash, std::uint32_t segment, std::uint32_t offset) noexcept {
  Slot* slot = find_slot(place_of(hash));
  if (slot == nullptr) return 0;
  const IndexEntry entry = unpack(*slot);
  if (entry.segment != segment || entry.offset != offset) return 0;
  *slot = {};
  --size_;
  return entry.pages;
}

std::uint64_t FlashIndex::erase_segment(std::uint32_t segment, std::uint64_t first_bucket,
                                        std::uint64_t buckets) noexcept {
  std::uint64_t erased = 0;
  const std::uint64_t end = std::min(first_bucket + buckets, buckets_);
  for (std::uint64_t i = first_bucket; i < end; ++i)
    for (Slot& slot : table_[i].slots)
      if (!slot.free() && static_cast<std::uint32_t>(slot.lo >> kTagBits) == segment) {
        slot = {};
        ++erased;
      }
  size_ -= erased;
  return erased;
}

}  // namespace kvd::store
