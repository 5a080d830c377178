// Tokens that follow from a number, their lines in a credentials file, and who judges by such a file. For tests and
// fuzz targets.
#pragma once

#include <memory>
#include <string>

#include "auth/authority.h"
#include "auth/credentials.h"
#include "auth/token.h"
#include "base/bytes.h"

namespace kvd::auth {

inline std::string token_number(int n) {
  TokenDigest secret{};
  secret[0] = static_cast<std::byte>(n);
  return show_token(secret);
}

// With the end of the line. `expires`: a date; empty = never.
inline std::string token_line(int n, const std::string& name, const std::string& tenant, const std::string& rights,
                              const std::string& expires = "") {
  return show_token_line(name, tenant, rights, digest_token(as_bytes(token_number(n))), expires) + "\n";
}

// By a credentials file's text. Requires that it is valid.
inline std::shared_ptr<const Authority> shared_authority(const std::string& text) {
  return std::make_shared<const Authority>(parse_credentials(text, "credentials").value());
}

}  // namespace kvd::auth
