// Authority: turns what a client shows into who it is. Made of credentials, constant afterwards: whoever reloads makes
// another one and asks it, with renew(), what has become of the clients that are there. Values and shared constants;
// any thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "auth/credentials.h"
#include "auth/identity.h"
#include "base/bytes.h"
#include "base/result.h"

namespace kvd::auth {

// An identity is shared by the authority and by the connections and requests that it was given to.
using SharedIdentity = std::shared_ptr<const Identity>;

class Authority {
 public:
  explicit Authority(const Credentials& credentials);

  // Whose token this is. The error is for the depot's own log, never for who asked: kInvalid (not of a token's form),
  // kNotFound (nobody's), kStale (expired). All digests are compared, in a time that does not depend on what is found.
  [[nodiscard]] Result<SharedIdentity> identify(Bytes token, WallSeconds now) const;
  // Whose certificate it is: by its SHA-256, else by its names, of which the first one known counts. Whether it is
  // genuine and current was for others to say. kNotFound: nobody's; kStale: listed until an earlier day.
  [[nodiscard]] Result<SharedIdentity> identify_certificate(const TokenDigest& sha256,
                                                            const std::vector<std::string>& names,
                                                            WallSeconds now) const;
  // The same credential's identity of today, for clients of an authority that this one replaces; null: it was taken
  // back, or has expired. A token that was replaced under its name is another credential.
  [[nodiscard]] SharedIdentity renew(const Identity& identity, WallSeconds now) const;
  // Whether somebody has this right, expired or not.
  [[nodiscard]] bool grants(Right right) const noexcept;
  // Every tenant that somebody is of, expired or not, with what it may take up; in order of their names.
  [[nodiscard]] const std::map<std::string, Quotas>& tenants() const noexcept { return tenants_; }

 private:
  std::vector<SharedIdentity> tokens_;
  std::vector<SharedIdentity> subjects_;
  std::vector<SharedIdentity> certificates_;
  std::map<std::string, Quotas> tenants_;
};

}  // namespace kvd::auth
