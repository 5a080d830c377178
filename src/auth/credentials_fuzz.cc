// Fuzzes the reader of credentials files. What is read is within its bounds, every identity is of somebody and may do
// something, and every token that it lists is found by its authority.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "auth/authority.h"
#include "auth/credentials.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  using kvd::auth::Identity;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto credentials = kvd::auth::parse_credentials(text, "c");
  if (!credentials) {
    if (credentials.error().text.empty() || credentials.error().text.size() > 400) std::abort();
    return 0;
  }
  const kvd::auth::Authority authority(*credentials);
  for (const auto* list : {&credentials->tokens, &credentials->subjects}) {
    if (list->size() > kvd::auth::kCredentialsMax) std::abort();
    for (const Identity& identity : *list) {
      if (identity.rights.none() || identity.quotas.requests == 0) std::abort();
      if (identity.quotas.connections == 0 || identity.quotas.namespaces == 0) std::abort();
      if (!kvd::auth::is_name(identity.tenant, kvd::auth::kTenantNameMax)) std::abort();
      if (!kvd::auth::is_name(identity.credential, kvd::auth::kNameMax)) std::abort();
      const auto found = authority.renew(identity, 0);
      if (found == nullptr ? !identity.expired(0) : found->tenant != identity.tenant) std::abort();
    }
  }
  return 0;
}
