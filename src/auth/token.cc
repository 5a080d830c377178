#include "auth/token.h"

#include <algorithm>
#include <cstdint>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include "base/check.h"

namespace kvd::auth {
namespace {

constexpr std::string_view kBase64Url = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr std::string_view kHex = "0123456789abcdef";

}  // namespace

std::string show_token(const TokenDigest& secret) {
  std::string token(kTokenPrefix);
  std::uint32_t bits = 0;
  int count = 0;
  for (const std::byte byte : secret) {
    bits = (bits << 8 | static_cast<std::uint32_t>(byte)) & 0xFFFF;
    for (count += 8; count >= 6; count -= 6) token.push_back(kBase64Url[bits >> (count - 6) & 63]);
  }
  token.push_back(kBase64Url[bits << (6 - count) & 63]);
  return token;
}

Result<std::string> make_token() {
  TokenDigest secret;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(secret.data()), static_cast<int>(secret.size())) != 1) {
    return fail(Code::kIo, "draw random numbers");
  }
  std::string token = show_token(secret);
  OPENSSL_cleanse(secret.data(), secret.size());
  return token;
}

bool is_token(Bytes bytes) noexcept {
  const std::string_view text = as_text(bytes);
  return text.size() == kTokenBytes && text.starts_with(kTokenPrefix) &&
         text.find_first_not_of(kBase64Url, kTokenPrefix.size()) == std::string_view::npos;
}

TokenDigest digest_token(Bytes token) noexcept {
  TokenDigest digest;
  unsigned int bytes = 0;
  KVD_CHECK(EVP_Digest(token.data(), token.size(), reinterpret_cast<unsigned char*>(digest.data()), &bytes,
                       EVP_sha256(), nullptr) == 1 &&
            bytes == digest.size());
  return digest;
}

std::string show_digest(const TokenDigest& digest) {
  std::string text;
  for (const std::byte byte : digest) {
    text.push_back(kHex[static_cast<std::size_t>(byte) >> 4]);
    text.push_back(kHex[static_cast<std::size_t>(byte) & 15]);
  }
  return text;
}

std::optional<TokenDigest> parse_digest(std::string_view text) noexcept {
  TokenDigest digest;
  if (text.size() != 2 * digest.size()) return std::nullopt;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const std::size_t high = kHex.find(text[2 * i]);
    const std::size_t low = kHex.find(text[2 * i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    digest[i] = static_cast<std::byte>(high << 4 | low);
  }
  return digest;
}

bool same_digest(const TokenDigest& a, const TokenDigest& b) noexcept {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace kvd::auth
