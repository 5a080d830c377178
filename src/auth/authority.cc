#include "auth/authority.h"

#include <algorithm>

#include "auth/token.h"

namespace kvd::auth {
namespace {

std::vector<SharedIdentity> shared(const std::vector<Identity>& identities) {
  std::vector<SharedIdentity> out;
  out.reserve(identities.size());
  for (const Identity& identity : identities) out.push_back(std::make_shared<const Identity>(identity));
  return out;
}

SharedIdentity with_digest(const std::vector<SharedIdentity>& tokens, const TokenDigest& digest) {
  SharedIdentity found;
  for (const SharedIdentity& token : tokens) {
    if (same_digest(token->digest, digest)) found = token;
  }
  return found;
}

SharedIdentity with_subject(const std::vector<SharedIdentity>& subjects, std::string_view name) {
  const auto at = std::ranges::find_if(subjects, [name](const SharedIdentity& s) { return s->credential == name; });
  return at == subjects.end() ? nullptr : *at;
}

}  // namespace

Authority::Authority(const Credentials& credentials)
    : tokens_(shared(credentials.tokens)),
      subjects_(shared(credentials.subjects)),
      certificates_(shared(credentials.certificates)) {
  for (const auto* list : {&tokens_, &subjects_, &certificates_})
    for (const SharedIdentity& identity : *list) tenants_[identity->tenant] = identity->quotas;
}

Result<SharedIdentity> Authority::identify(Bytes token, WallSeconds now) const {
  if (!is_token(token)) return fail(Code::kInvalid, "not of a token's form");
  SharedIdentity found = with_digest(tokens_, digest_token(token));
  if (found == nullptr) return fail(Code::kNotFound, "unknown or revoked token");
  if (found->expired(now)) return fail(Code::kStale, "expired token");
  return found;
}

Result<SharedIdentity> Authority::identify_certificate(const TokenDigest& sha256, const std::vector<std::string>& names,
                                                       WallSeconds now) const {
  SharedIdentity found = with_digest(certificates_, sha256);
  for (std::size_t i = 0; found == nullptr && i < names.size(); ++i) found = with_subject(subjects_, names[i]);
  if (found == nullptr) return fail(Code::kNotFound, "its certificate is nobody's");
  if (found->expired(now)) return fail(Code::kStale, "its certificate is listed until an earlier day");
  return found;
}

SharedIdentity Authority::renew(const Identity& identity, WallSeconds now) const {
  SharedIdentity found;
  switch (identity.kind) {
    case Identity::Kind::kToken: found = with_digest(tokens_, identity.digest); break;
    case Identity::Kind::kSubject: found = with_subject(subjects_, identity.credential); break;
    case Identity::Kind::kCertificate: found = with_digest(certificates_, identity.digest); break;
  }
  return found != nullptr && !found->expired(now) ? found : nullptr;
}

bool Authority::grants(Right right) const noexcept {
  return std::ranges::any_of(std::array{&tokens_, &subjects_, &certificates_}, [right](const auto* of_a_kind) {
    return std::ranges::any_of(*of_a_kind, [right](const auto& identity) { return identity->rights.allow(right); });
  });
}

}  // namespace kvd::auth
