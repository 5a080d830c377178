#include "auth/authority.h"

#include <gtest/gtest.h>

#include "auth/testing/tokens.h"

namespace kvd::auth {
namespace {

std::string token_line(int n, const std::string& name, const std::string& rights, const std::string& expires = "") {
  return auth::token_line(n, name, "t-" + name, rights, expires);
}

Authority authority_of(const std::string& text) { return Authority(parse_credentials(text, "c").value()); }

TEST(Authority, KnowsATokensTenantRightsAndQuotas) {
  const Authority authority =
      authority_of("tenant t-b requests=3\n" + token_line(1, "a", "read") + token_line(2, "b", "write"));
  const SharedIdentity b = authority.identify(as_bytes(token_number(2)), 0).value();
  EXPECT_EQ(b->tenant, "t-b");
  EXPECT_TRUE(b->rights.allow(Right::kWrite));
  EXPECT_FALSE(b->rights.allow(Right::kRead));
  EXPECT_EQ(b->quotas.requests, 3U);
  EXPECT_EQ(authority.identify(as_bytes(token_number(1)), 0).value()->tenant, "t-a");
}

TEST(Authority, ListsTheTenantsOfAllCredentials) {
  const Authority authority = authority_of("tenant t-b pool=1GiB\n" + token_line(1, "b", "read", "1970-01-02") +
                                           "subject one tenant=t-a rights=read\nsubject two tenant=t-a rights=read");
  ASSERT_EQ(authority.tenants().size(), 2U);
  EXPECT_EQ(authority.tenants().at("t-a"), Quotas());
  EXPECT_EQ(authority.tenants().at("t-b").pool_bytes, std::uint64_t{1} << 30) << "also when its token has expired";
}

TEST(Authority, SaysWhetherSomebodyHasARight) {
  const Authority authority = authority_of(
      token_line(1, "a", "read", "1970-01-02") +
      "subject s tenant=a rights=write\ncertificate c tenant=a rights=pool sha256=" + std::string(64, '1'));
  for (const Right right : {Right::kRead, Right::kWrite, Right::kPool}) EXPECT_TRUE(authority.grants(right));
  EXPECT_FALSE(authority.grants(Right::kAdmin));
}

TEST(Authority, RefusesWhatIsNobodysMalformedOrExpired) {
  const Authority authority = authority_of(token_line(1, "a", "read", "1970-01-02"));
  EXPECT_EQ(authority.identify({}, 0).error().code, Code::kInvalid);
  EXPECT_EQ(authority.identify(as_bytes("password"), 0).error().code, Code::kInvalid);
  EXPECT_EQ(authority.identify(as_bytes(token_number(2)), 0).error().code, Code::kNotFound);
  EXPECT_TRUE(authority.identify(as_bytes(token_number(1)), 86399).has_value());
  EXPECT_EQ(authority.identify(as_bytes(token_number(1)), 86400).error().code, Code::kStale);
}

TEST(Authority, AShortSecretDoesNotWorkEvenWhereItsDigestIsListed) {
  const Authority authority = authority_of(show_token_line("a", "t", "read", digest_token(as_bytes("password")), ""));
  EXPECT_EQ(authority.identify(as_bytes("password"), 0).error().code, Code::kInvalid);
}

TEST(Authority, TheFirstKnownNameOfACertificateCounts) {
  const Authority authority = authority_of("subject one tenant=t1 rights=read\nsubject two tenant=t2 rights=read");
  EXPECT_EQ(authority.identify_certificate({}, {"none", "two", "one"}, 0).value()->tenant, "t2");
  EXPECT_EQ(authority.identify_certificate({}, {"On"}, 0).error().code, Code::kNotFound);
  EXPECT_EQ(authority.identify_certificate({}, {}, 0).error().code, Code::kNotFound);
}

TEST(Authority, ACertificateByItsFingerprintComesBeforeItsNames) {
  const TokenDigest digest = digest_token(as_bytes("a certificate"));
  const std::string line = "certificate c tenant=t1 rights=read sha256=" + show_digest(digest) + " expires=1970-01-02";
  const Authority authority = authority_of(line + "\nsubject two tenant=t2 rights=read");
  const SharedIdentity found = authority.identify_certificate(digest, {"two"}, 0).value();
  EXPECT_EQ(found->tenant, "t1");
  EXPECT_EQ(authority.identify_certificate(digest_token(as_bytes("b")), {"two"}, 0).value()->tenant, "t2");
  EXPECT_EQ(authority.identify_certificate(digest, {"two"}, 86400).error().code, Code::kStale);
  EXPECT_EQ(authority.renew(*found, 0)->tenant, "t1");
  EXPECT_EQ(authority.renew(*found, 86400), nullptr);
  EXPECT_EQ(authority.identify(as_bytes(token_number(1)), 0).error().code, Code::kNotFound);
  EXPECT_EQ(authority_of(token_line(1, "a", "read")).renew(*found, 0), nullptr);
}

TEST(Authority, AnotherOneSaysWhatHasBecomeOfAClient) {
  const Authority before = authority_of(token_line(1, "a", "read") + "subject s tenant=t rights=read");
  const Identity token = *before.identify(as_bytes(token_number(1)), 0).value();
  const Identity subject = *before.identify_certificate({}, {"s"}, 0).value();
  const Authority changed = authority_of(token_line(1, "a", "write") + "subject s tenant=u rights=read");
  EXPECT_TRUE(changed.renew(token, 0)->rights.allow(Right::kWrite));
  EXPECT_EQ(changed.renew(subject, 0)->tenant, "u");
  EXPECT_EQ(authority_of(token_line(2, "a", "read")).renew(token, 0), nullptr) << "another token of the same name";
  EXPECT_EQ(authority_of(token_line(1, "a", "read")).renew(subject, 0), nullptr);
  EXPECT_EQ(authority_of(token_line(1, "a", "read", "1970-01-02")).renew(token, 86400), nullptr);
}

}  // namespace
}  // namespace kvd::auth
