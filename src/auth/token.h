// Tokens: 32 random bytes behind a prefix that says what they are, "kvd_" and 43 digits of base64url. What is kept of
// one is its SHA-256. A slow hash (scrypt, argon2) protects secrets that people choose, of which there are few enough
// to try; here there are 2^256, so whoever reads the file finds no token behind a digest, and a depot that is asked by
// many connections at once does not spend its only thread on hashing. That this holds for every token, weak ones that
// somebody would like to use are refused by their form.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"

namespace kvd::auth {

inline constexpr std::string_view kTokenPrefix = "kvd_";
inline constexpr std::size_t kTokenBytes = 47;

using TokenDigest = std::array<std::byte, 32>;

// A new token from the system's random numbers. kIo: there are none.
Result<std::string> make_token();
// The token of these 32 bytes.
std::string show_token(const TokenDigest& secret);

// The bytes have the form of a token; nothing is said about whose it is.
bool is_token(Bytes text) noexcept;

TokenDigest digest_token(Bytes token) noexcept;
// The digest as 64 digits, and back; nullopt: not that.
std::string show_digest(const TokenDigest& digest);
std::optional<TokenDigest> parse_digest(std::string_view text) noexcept;
// Takes the same time whatever differs.
bool same_digest(const TokenDigest& a, const TokenDigest& b) noexcept;

}  // namespace kvd::auth
