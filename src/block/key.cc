#include "block/key.h"

#define XXH_STATIC_LINKING_ONLY  // complete state types; the library itself is linked dynamically
#include <xxhash.h>

#include "base/check.h"

namespace kvd::block {
namespace {

// Domain constants: ASCII of what is hashed, so that one kind of input never collides with another by construction.
constexpr std::uint64_t kSeedNamespace = 0x6B76'642D'6E61'6D65;  // "kvd-name"
constexpr std::uint64_t kSeedForeign = 0x6B76'642D'666F'7265;    // "kvd-fore"
constexpr std::uint64_t kSeedNative = 0x6B76'642D'6E61'7469;     // "kvd-nati"

// A small incremental XXH3-128: parts are length-prefixed by the callers where their lengths vary.
class Hasher {
 public:
  explicit Hasher(std::uint64_t seed) noexcept {
    XXH3_INITSTATE(&state_);  // or a seed that happens to lie there would be taken for one whose secret is ready
    XXH3_128bits_reset_withSeed(&state_, seed);
  }
  void add(const void* data, std::size_t n) noexcept { XXH3_128bits_update(&state_, data, n); }
  void add(Bytes bytes) noexcept {
    const std::uint64_t length = bytes.size();
    add(&length, sizeof length);
    add(bytes.data(), bytes.size());
  }
  [[nodiscard]] XXH128_hash_t digest() const noexcept { return XXH3_128bits_digest(&state_); }

 private:
  XXH3_state_t state_;
};

}  // namespace

NamespaceHash hash_namespace(std::string_view tenant, Bytes fingerprint) noexcept {
  Hasher hasher(kSeedNamespace);
  hasher.add(as_bytes(tenant));
  hasher.add(fingerprint);
  const auto digest = hasher.digest();
  return {digest.high64, digest.low64};
}

Key key_of_foreign(const NamespaceHash& ns, Bytes foreign) noexcept {
  KVD_CHECK(foreign.size() <= kForeignKeyBytesMax);
  std::byte buffer[sizeof ns + kForeignKeyBytesMax];
  std::memcpy(buffer, &ns, sizeof ns);
  std::memcpy(buffer + sizeof ns, foreign.data(), foreign.size());
  const auto digest = XXH3_128bits_withSeed(buffer, sizeof ns + foreign.size(), kSeedForeign);
  return {digest.high64, digest.low64};
}

Key next_native_key(const NamespaceHash& ns, const Key& parent, std::span<const std::uint32_t> tokens,
                    Bytes extras) noexcept {
  Hasher hasher(kSeedNative);
  hasher.add(&ns, sizeof ns);
  hasher.add(&parent, sizeof parent);
  hasher.add(std::as_bytes(tokens));
  hasher.add(extras);
  const auto digest = hasher.digest();
  return {digest.high64, digest.low64};
}

Bytes foreign_at(const KeyList& keys, std::size_t i) noexcept {
  KVD_CHECK(i < keys.count());
  return keys.native ? Bytes{} : keys.bytes.subspan(i * keys.key_bytes, keys.key_bytes);
}

Key key_at(const NamespaceHash& ns, const KeyList& keys, std::size_t i) noexcept {
  if (!keys.native) return key_of_foreign(ns, foreign_at(keys, i));
  KVD_CHECK(keys.key_bytes == 16 && i < keys.count());
  const std::byte* at = keys.bytes.data() + i * 16;
  return {load<std::uint64_t>(at), load<std::uint64_t>(at + 8)};
}

}  // namespace kvd::block
