// Tests of keys, schemas and checksums: what must differ differs, what must be refused is refused.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <new>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "block/checksum.h"
#include "block/key.h"
#include "block/schema.h"
#include "block/verified_copy.h"

namespace kvd::block {
namespace {

GroupSchema smollm() { return {0, 30, 98304, 2, 128, HitRule::kAll, 0, "LBHNC"}; }

std::vector<std::byte> random_bytes(std::uint64_t seed, std::size_t n) {
  Random random(seed);
  std::vector<std::byte> bytes(n);
  for (auto& b : bytes) b = static_cast<std::byte>(random.next());
  return bytes;
}

TEST(Key, DependsOnTenantFingerprintAndForeignKey) {
  const auto foreign = random_bytes(1, 32);
  const auto a = hash_namespace("a", as_bytes("model"));
  std::set<Key> keys{key_of_foreign(a, foreign), key_of_foreign(hash_namespace("b", as_bytes("model")), foreign),
                     key_of_foreign(hash_namespace("am", as_bytes("odel")), foreign),
                     key_of_foreign(a, Bytes(foreign).first(31))};
  EXPECT_EQ(keys.size(), 4u);
}

TEST(Key, NativeKeysChainOverThePrefix) {
  const auto ns = hash_namespace("a", as_bytes("m"));
  const std::array<std::uint32_t, 2> one{1, 2}, two{3, 4};
  const Key first = next_native_key(ns, {}, one, {});
  EXPECT_NE(next_native_key(ns, first, two, {}), next_native_key(ns, {}, two, {}));
  EXPECT_NE(next_native_key(ns, {}, one, as_bytes("salt")), first);
}

TEST(Key, NativeListsAreReadBackUnchanged) {
  const std::array<std::uint64_t, 4> words{1, 2, 3, 4};
  const KeyList list{std::as_bytes(std::span(words)), 16, true};
  EXPECT_EQ(list.count(), 2u);
  EXPECT_EQ(key_at({}, list, 1), (Key{3, 4}));
  EXPECT_TRUE(foreign_at(list, 1).empty());
}

TEST(Schema, RefusesWhatTheFormatCannotHold) {
  EXPECT_TRUE(check_schema(smollm()).has_value());
  auto bad = [](auto change) {
    auto schema = smollm();
    change(schema);
    return check_schema(schema).has_value();
  };
  EXPECT_FALSE(bad([](GroupSchema& s) { s.layers = 0; }));
  EXPECT_FALSE(bad([](GroupSchema& s) { s.layers = 401; }));
  EXPECT_FALSE(bad([](GroupSchema& s) { s.slab_bytes = 0; }));
  EXPECT_FALSE(bad([](GroupSchema& s) { s.slab_bytes = 0xFFFF'FFFE; }));
  EXPECT_FALSE(bad([](GroupSchema& s) { s.slab_bytes = 4 << 20; }));
  EXPECT_FALSE(bad([](GroupSchema& s) { s.parts = 0; }));
  EXPECT_FALSE(bad([](GroupSchema& s) { s.rule = HitRule::kTrailing; }));
  EXPECT_FALSE(bad([](GroupSchema& s) { s.order.assign(65, 'x'); }));
}

TEST(Schema, EveryFieldEntersTheHash) {
  std::set<std::uint64_t> hashes{hash_schema(smollm())};
  auto with = [&](auto change) {
    auto schema = smollm();
    change(schema);
    hashes.insert(hash_schema(schema));
  };
  with([](GroupSchema& s) { s.group = 1; });
  with([](GroupSchema& s) { s.layers = 31; });
  with([](GroupSchema& s) { s.slab_bytes = 98308; });
  with([](GroupSchema& s) { s.parts = 1; });
  with([](GroupSchema& s) { s.block_tokens = 64; });
  with([](GroupSchema& s) { s.rule = HitRule::kLast; });
  with([](GroupSchema& s) { s.hit_blocks = 2; });
  with([](GroupSchema& s) { s.order = "HND"; });
  EXPECT_EQ(hashes.size(), 9u);
}

TEST(Schema, OnlyOneSlabNativeRecordsHaveNoTable) {
  auto one = smollm();
  one.layers = 1;
  EXPECT_EQ(shape_of(one, false).record_bytes(), 98304u);
  EXPECT_EQ(shape_of(one, true).record_bytes(), 98304u + 4096);
  EXPECT_EQ(shape_of(smollm(), true).record_bytes(), 4096u + 30 * 98304);
}

TEST(Checksum, DependsOnEverythingThatNamesTheSlab) {
  const auto slab = random_bytes(2, 98304);
  const auto shape = shape_of(smollm(), true);
  const RecordId id{{1, 2}, 0, 0};
  auto other_schema = smollm();
  other_schema.block_tokens = 64;
  const std::set<std::uint64_t> sums{slab_checksum(record_seed(id, shape), 0, slab),
                                     slab_checksum(record_seed(id, shape), 1, slab),
                                     slab_checksum(record_seed({{1, 3}, 0, 0}, shape), 0, slab),
                                     slab_checksum(record_seed({{1, 2}, 1, 0}, shape), 0, slab),
                                     slab_checksum(record_seed({{1, 2}, 0, 1}, shape), 0, slab),
                                     slab_checksum(record_seed(id, shape_of(other_schema, true)), 0, slab),
                                     slab_checksum(record_seed(id, shape), 0, Bytes(slab).first(98303))};
  EXPECT_EQ(sums.size(), 7u);
}

TEST(Checksum, PiecesHashLikeTheWhole) {
  const auto slab = random_bytes(3, 10'000);
  SlabHasher hasher(77, 5, slab.size());
  hasher.add(Bytes(slab).first(1));
  hasher.add(Bytes(slab).subspan(1, 7000));
  hasher.add(Bytes(slab).subspan(7001));
  EXPECT_EQ(hasher.finish(), slab_checksum(77, 5, slab));
}

// Whatever an earlier hasher of the same slab has left in its memory, in part.
TEST(Checksum, PiecesHashAlikeInAnyMemory) {
  const auto slab = random_bytes(3, 1000);
  alignas(SlabHasher) std::array<std::byte, sizeof(SlabHasher)> memory{}, before{};
  const auto hash = [&] {
    auto* const hasher = new (memory.data()) SlabHasher(77, 5, slab.size());
    hasher->add(slab);
    const std::uint64_t sum = hasher->finish();
    before = memory;
    std::destroy_at(hasher);
    return sum;
  };
  EXPECT_EQ(hash(), slab_checksum(77, 5, slab));
  const auto left = before;
  for (std::size_t at = 0; at + 8 <= memory.size(); at += 8) {
    memory.fill(std::byte{0});
    std::copy_n(left.begin() + static_cast<std::ptrdiff_t>(at), 8, memory.begin() + static_cast<std::ptrdiff_t>(at));
    __asm__ volatile("" : : "r"(memory.data()) : "memory");  // these bytes are read, if by mistake
    ASSERT_EQ(hash(), slab_checksum(77, 5, slab)) << at;
  }
}

TEST(Table, RoundTripsAndRefusesEveryFlippedByte) {
  const auto shape = shape_of(smollm(), true);
  const auto foreign = random_bytes(4, 32);
  std::vector<std::uint64_t> slabs(30);
  for (std::size_t i = 0; i < slabs.size(); ++i) slabs[i] = i * 77;
  alignas(8) std::array<std::byte, kPageBytes> page{};
  encode_table(page, 9, slabs, foreign);
  const auto table = decode_table(page, 9, shape);
  ASSERT_TRUE(table.has_value());
  EXPECT_TRUE(std::ranges::equal(table->slabs, slabs));
  EXPECT_TRUE(std::ranges::equal(table->foreign, foreign));
  EXPECT_FALSE(decode_table(page, 10, shape).has_value());
  for (std::size_t i = 0; i < 16 + 30 * 8 + 32; ++i) {
    page[i] ^= std::byte{1};
    EXPECT_FALSE(decode_table(page, 9, shape).has_value()) << i;
    page[i] ^= std::byte{1};
  }
}

TEST(VerifiedCopy, CopiesAndHashesAsASlabIsHashed) {
  for (const std::size_t bytes : {0u, 1u, 4'096u, 98'304u, 262'144u, 262'145u, 1'000'001u}) {
    std::vector<std::byte> from(bytes), to(bytes);
    for (std::size_t i = 0; i < bytes; ++i) from[i] = static_cast<std::byte>(i * 31 + i / 251);
    EXPECT_EQ(copy_and_hash(7, 3, from, to, bytes >= kPastCacheBytes), slab_checksum(7, 3, from)) << bytes;
    EXPECT_EQ(from, to) << bytes;
  }
}

TEST(VerifiedCopy, PiecesOfAnyPlaceAndSizeAreOneSlab) {
  std::vector<std::byte> from(300'000), room(from.size() + 256);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 31 + i / 251);
  for (const bool past_cache : {false, true}) {
    for (const std::size_t shift : {0u, 1u, 16u, 63u, 64u}) {
      for (const std::size_t piece : {1'000u, 4'096u, 10'001u, 300'000u}) {
        std::ranges::fill(room, std::byte{0xA5});
        SlabHasher hasher(7, 3, from.size());
        for (std::size_t at = 0; at < from.size(); at += piece) {
          const std::size_t bytes = std::min(piece, from.size() - at);
          copy_and_hash(hasher, Bytes(from).subspan(at, bytes), std::span(room).subspan(shift + at, bytes), past_cache);
        }
        EXPECT_EQ(hasher.finish(), slab_checksum(7, 3, from));
        EXPECT_TRUE(std::ranges::equal(std::span(room).subspan(shift, from.size()), from));
        EXPECT_TRUE(std::ranges::all_of(std::span(room).first(shift), [](auto b) { return b == std::byte{0xA5}; }));
        EXPECT_EQ(room[shift + from.size()], std::byte{0xA5});
      }
    }
  }
}

// Whoever changes the source while it is copied: the checksum is of what has landed. It is changed through another
// mapping, as a depot does.
TEST(VerifiedCopy, TheChecksumIsOfWhatHasLanded) {
  std::vector<std::byte> to(std::size_t{1} << 20);
  const int file = ::memfd_create("block-test", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(file, static_cast<off_t>(to.size())), 0);
  const auto map = [&](int protection) {
    void* const base = ::mmap(nullptr, to.size(), protection, MAP_SHARED, file, 0);
    EXPECT_NE(base, MAP_FAILED);
    return MutableBytes(static_cast<std::byte*>(base), to.size());
  };
  const Bytes from = map(PROT_READ);
  const MutableBytes scribbled = map(PROT_READ | PROT_WRITE);
  std::atomic<bool> stop{false};
  {
    const std::jthread scribbler([&] {
      for (unsigned n = 0; !stop; ++n) {
        for (std::size_t i = 0; i < scribbled.size(); i += 64) scribbled[i] = static_cast<std::byte>(n);
      }
    });
    for (int round = 0; round < 100; ++round) {
      const std::uint64_t sum = copy_and_hash(7, 3, from, to, false);
      EXPECT_EQ(sum, slab_checksum(7, 3, to));
    }
    stop = true;
  }
  for (const Bytes mapped : {from, Bytes(scribbled)}) ::munmap(const_cast<std::byte*>(mapped.data()), mapped.size());
  ::close(file);
}

}  // namespace
}  // namespace kvd::block
