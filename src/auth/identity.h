// Identity: who a credential is: its tenant, what it may do, and what that tenant may take up. Values; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

namespace kvd::auth {

// What a request asks for.
enum class Right : std::uint8_t {
  kRead = 1,   // look up and get
  kWrite = 2,  // put and remove
  kAdmin = 4,  // see figures of the whole depot: all tenants', not one's own
  kPool = 8,   // be lent the pool's memory, where the records of all tenants can be read
};

// A set of rights. None includes another.
class Rights {
 public:
  constexpr Rights() noexcept = default;
  constexpr Rights& add(Right right) noexcept {
    bits_ = static_cast<std::uint8_t>(bits_ | static_cast<std::uint8_t>(right));
    return *this;
  }
  [[nodiscard]] constexpr bool allow(Right right) const noexcept {
    return (bits_ & static_cast<std::uint8_t>(right)) != 0;
  }
  [[nodiscard]] constexpr bool none() const noexcept { return bits_ == 0; }
  friend constexpr bool operator==(const Rights&, const Rights&) noexcept = default;

 private:
  std::uint8_t bits_ = 0;
};

// What all clients of a tenant together may take up.
struct Quotas {
  static constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
  // Where nothing is said: an engine has a few, so no tenant needs as many, and 63 tenants cannot take all.
  static constexpr std::uint64_t kNamespaces = 1024;

  std::uint64_t pool_bytes = kUnlimited;
  std::uint64_t flash_bytes = kUnlimited;
  std::uint64_t requests = kUnlimited;     // in flight
  std::uint64_t connections = kUnlimited;  // of clients that are known
  std::uint64_t namespaces = kNamespaces;  // open at once, of a depot's 65,535

  friend bool operator==(const Quotas&, const Quotas&) noexcept = default;
};

// Seconds since 1970 in UTC, as certificates and credentials count the time.
using WallSeconds = std::int64_t;
inline constexpr WallSeconds kNoExpiry = std::numeric_limits<WallSeconds>::max();

struct Identity {
  enum class Kind : std::uint8_t { kToken, kSubject, kCertificate };
  std::string credential;  // its name in the credentials file, for logs; not a secret
  Kind kind = Kind::kToken;
  std::array<std::byte, 32>
      digest{};  // of its token, or SHA-256 of its certificate; zeros: it is a name in certificates
  std::string tenant;
  Rights rights;
  Quotas quotas;
  WallSeconds expires = kNoExpiry;  // the first second at which it is no longer good

  [[nodiscard]] bool expired(WallSeconds now) const noexcept { return now >= expires; }
};

}  // namespace kvd::auth
