// Credentials: the text of a credentials file, which a person keeps. A line is one tenant, token, certificate
// or name in certificates: a word, a name, and settings as name=value; '#' begins a comment.
//
//   tenant  search  pool=8GiB flash=200GiB requests=64 connections=32 namespaces=16
//   token   ci      tenant=search rights=read,write sha256=<64 hex digits> expires=2027-06-30
//   subject engine1.example.net  tenant=search rights=read
//   certificate e2  tenant=search rights=read sha256=<64 hex digits: the certificate's fingerprint> expires=2027-06-30
//
// A tenant's line may be left out, and each of its settings: 1,024 namespaces then, as much as there is of the rest.
// Pure; values. Bounds: a text of 1 MiB, 4,096 tokens, subjects and certificates each, 1,024 tenants. Docs:
// docs/security.md.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "auth/identity.h"
#include "auth/token.h"
#include "base/input.h"

namespace kvd::auth {

inline constexpr std::size_t kCredentialsBytesMax = 1 << 20;
inline constexpr std::size_t kCredentialsMax = 4096;  // of a kind; all of them are compared for each attempt
inline constexpr std::size_t kTenantsMax = 1024;
inline constexpr std::size_t kTenantNameMax = 64;  // as a namespace's tenant
inline constexpr std::size_t kNameMax = 255;

struct Credentials {
  std::vector<Identity> tokens;
  std::vector<Identity> subjects;  // their credential is the subject: a certificate's DNS name, URI or common name
  std::vector<Identity> certificates;
};

// Reads the text; `file` names it in a complaint. Complaints about: unknown words and settings, settings named twice or
// missing, names twice, a digest twice, a tenant line that no credential is of (a slip of the pen would lift its
// quotas), what is beyond the bounds.
FromInput<Credentials> parse_credentials(std::string_view text, const std::string& file);

// The line of a token that has this digest, as parse_credentials() reads it.
std::string show_token_line(std::string_view name, std::string_view tenant, std::string_view rights,
                            const TokenDigest& digest, std::string_view expires);

// "2027-06-30": its first second in UTC. kInvalid: not a date from 1970 to 9999.
Result<WallSeconds> parse_date(std::string_view text);
// "read,write": some of read, write, admin, pool. kInvalid: another word, one twice, none.
Result<Rights> parse_rights(std::string_view text);
// Letters, digits and . _ - @ : / +, at least one and at most `max`.
bool is_name(std::string_view text, std::size_t max) noexcept;

}  // namespace kvd::auth
