// Byte spans, little-endian loads and stores, alignment. Everything on disk and wire is little-endian; these are the
// only places that know it. No allocation, no failure: callers check bounds first (ByteReader does it for parsers).
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

namespace kvd {

static_assert(std::endian::native == std::endian::little, "kvdepot supports little-endian machines only");

// Borrowed bytes: never owned by the span, valid as long as their owner says.
using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

inline constexpr std::size_t kPageBytes = 4096;  // unit of direct I/O, of pool allocation and of the flash format

// Smallest multiple of `unit` (a power of two) that is >= n.
constexpr std::uint64_t align_up(std::uint64_t n, std::uint64_t unit) noexcept { return (n + unit - 1) & ~(unit - 1); }
constexpr bool is_aligned(std::uint64_t n, std::uint64_t unit) noexcept { return (n & (unit - 1)) == 0; }

// Reads / writes a trivially copyable value at an unaligned address.
template <class T>
  requires std::is_trivially_copyable_v<T>
T load(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
template <class T>
  requires std::is_trivially_copyable_v<T>
void save(std::byte* at, const T& value) noexcept {
  std::memcpy(at, &value, sizeof value);
}

inline Bytes as_bytes(std::string_view text) noexcept { return std::as_bytes(std::span(text.data(), text.size())); }
inline std::string_view as_text(Bytes bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A bounds-checked cursor over outside bytes. After the first read past the end every read yields zero and ok() is
// false, so a parser reads all its fields and asks once.
class ByteReader {
 public:
  explicit ByteReader(Bytes bytes) noexcept : bytes_(bytes) {}

  template <std::integral T>
  T read() noexcept {
    if (!take(sizeof(T))) return T{};
    return load<T>(bytes_.data() + at_ - sizeof(T));
  }
  // The next n bytes, or an empty span when there are fewer (and ok() turns false).
  Bytes read_bytes(std::size_t n) noexcept { return take(n) ? bytes_.subspan(at_ - n, n) : Bytes{}; }

  [[nodiscard]] bool ok() const noexcept { return ok_; }
  [[nodiscard]] std::size_t left() const noexcept { return bytes_.size() - at_; }
  // True when everything was read and nothing is left: a message with trailing bytes is malformed.
  [[nodiscard]] bool done() const noexcept { return ok_ && left() == 0; }

 private:
  bool take(std::size_t n) noexcept {
    if (!ok_ || n > left()) return ok_ = false;
    at_ += n;
    return true;
  }

  Bytes bytes_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace kvd
