#include "auth/credentials.h"

#include <gtest/gtest.h>

namespace kvd::auth {
namespace {

const std::string kDigest = show_digest(digest_token(as_bytes("one")));
const std::string kOther = show_digest(digest_token(as_bytes("two")));

Credentials parsed(const std::string& text) {
  const FromInput<Credentials> credentials = parse_credentials(text, "c");
  EXPECT_TRUE(credentials.has_value()) << credentials.error().str();
  return credentials.value_or(Credentials{});
}

std::string complaint(const std::string& text) {
  const FromInput<Credentials> credentials = parse_credentials(text, "c");
  return credentials ? "none" : credentials.error().str();
}

TEST(Credentials, ReadsAllKindsOfLines) {
  const Credentials got = parsed(
      "# ours\n\ntenant search pool=8GiB flash=200GiB requests=64 connections=32 namespaces=16\r\n"
      "token ci tenant=search rights=read,write sha256=" +
      kDigest + " expires=2027-06-30  # until then\n\tsubject e1.net tenant=lab rights=admin,pool");
  ASSERT_EQ(got.tokens.size(), 1U);
  const Identity& ci = got.tokens[0];
  EXPECT_EQ(ci.credential, "ci");
  EXPECT_EQ(ci.tenant, "search");
  EXPECT_TRUE(ci.rights.allow(Right::kRead) && ci.rights.allow(Right::kWrite));
  EXPECT_FALSE(ci.rights.allow(Right::kAdmin) || ci.rights.allow(Right::kPool));
  EXPECT_EQ(show_digest(ci.digest), kDigest);
  EXPECT_EQ(ci.expires, 1814313600);
  EXPECT_EQ(
      ci.quotas,
      (Quotas{
          .pool_bytes = 8ULL << 30, .flash_bytes = 200ULL << 30, .requests = 64, .connections = 32, .namespaces = 16}));
  ASSERT_EQ(got.subjects.size(), 1U);
  EXPECT_EQ(got.subjects[0].credential, "e1.net");
  EXPECT_EQ(got.subjects[0].tenant, "lab");
  EXPECT_TRUE(got.subjects[0].rights.allow(Right::kAdmin) && got.subjects[0].rights.allow(Right::kPool));
  EXPECT_EQ(got.subjects[0].quotas, Quotas{});
  EXPECT_EQ(got.subjects[0].quotas.namespaces, 1024U) << "where nothing is said";
  EXPECT_EQ(got.subjects[0].expires, kNoExpiry);
}

TEST(Credentials, ReadsTheLineItShows) {
  const TokenDigest digest = digest_token(as_bytes("one"));
  const Credentials got = parsed(show_token_line("a", "t", "write", digest, "1970-01-02"));
  EXPECT_EQ(got.tokens.at(0).digest, digest);
  EXPECT_EQ(got.tokens.at(0).expires, 86400);
  EXPECT_EQ(parsed(show_token_line("a", "t", "write", digest, "")).tokens.at(0).expires, kNoExpiry);
}

TEST(Credentials, SaysWhereAndWhatIsWrong) {
  const std::string good = "token a tenant=t rights=read sha256=" + kDigest + "\n";
  EXPECT_EQ(complaint(good + "tokn b"), "c:2: 'tokn' is not tenant, token, subject or certificate");
  EXPECT_EQ(complaint("token"), "c:1: a token's name has 1 to 255 letters, digits and ._-@:/+");
  EXPECT_EQ(complaint("token a=b"), "c:1: a token's name has 1 to 255 letters, digits and ._-@:/+");
  EXPECT_EQ(complaint("subject"), "c:1: a subject has 1 to 255 letters, digits and ._-@:/+");
  EXPECT_EQ(complaint("tenant " + std::string(65, 'a')),
            "c:1: a tenant's name has 1 to 64 letters, digits and ._-@:/+");
  EXPECT_EQ(complaint("token a rights=read sha256=" + kDigest), "c:1: tenant= is missing");
  EXPECT_EQ(complaint("token a tenant=t sha256=" + kDigest), "c:1: rights= is missing");
  EXPECT_EQ(complaint("token a tenant=t rights=read"), "c:1: sha256= is missing");
  EXPECT_EQ(complaint("subject a tenant=t"), "c:1: rights= is missing");
  EXPECT_EQ(complaint("token a tenant=t rights=root"), "c:1: 'root' is not some of read,write,admin,pool");
  EXPECT_EQ(complaint("token a tenant=t rights=read,read"), "c:1: 'read,read' is not some of read,write,admin,pool");
  EXPECT_EQ(complaint("token a tenant=t rights="), "c:1: '' is not some of read,write,admin,pool");
  EXPECT_EQ(complaint("token a tenant= rights=read"), "c:1: '' is not a tenant's name");
  EXPECT_EQ(complaint("token a sha256=abc"), "c:1: sha256 is not 64 digits of 0-9a-f, or zero");
  EXPECT_EQ(complaint("token a sha256=" + std::string(64, '0')), "c:1: sha256 is not 64 digits of 0-9a-f, or zero");
  EXPECT_EQ(complaint("token a expires=2027-13-01"), "c:1: '2027-13-01' is not a date as 2027-06-30");
  EXPECT_EQ(complaint("token a colour=red"), "c:1: 'colour' is not a setting of this line, written name=value");
  EXPECT_EQ(complaint("token a tenant"), "c:1: 'tenant' is not a setting of this line, written name=value");
  EXPECT_EQ(complaint("token a tenant=t tenant=u"), "c:1: tenant is set twice");
  EXPECT_EQ(complaint("subject a sha256=" + kDigest),
            "c:1: 'sha256' is not a setting of this line, written name=value");
  EXPECT_EQ(complaint("tenant t pool=much"), "c:1: 'much' is not a size");
  EXPECT_EQ(complaint("tenant t requests=0"), "c:1: '0' is not a number of requests above 0");
  EXPECT_EQ(complaint("tenant t requests=4x"), "c:1: '4x' is not a number of requests above 0");
  EXPECT_EQ(complaint("tenant t connections=0"), "c:1: '0' is not a number of connections above 0");
  EXPECT_EQ(complaint("tenant t namespaces=-1"), "c:1: '-1' is not a number of namespaces above 0");
  EXPECT_EQ(complaint("\x1b[31m"), "c:1: '?[31m' is not tenant, token, subject or certificate");
}

TEST(Credentials, WhatIsThereTwiceIsRefused) {
  const std::string line = "token a tenant=t rights=read sha256=" + kDigest + "\n";
  EXPECT_EQ(complaint(line + "token a tenant=t rights=read sha256=" + kOther), "c:2: token a is named twice");
  EXPECT_EQ(complaint(line + "token b tenant=t rights=read sha256=" + kDigest), "c:2: another token has this sha256");
  EXPECT_EQ(complaint(line + "tenant t\ntenant t"), "c:3: tenant t is named twice");
  EXPECT_EQ(complaint("subject s tenant=t rights=read\nsubject s tenant=u rights=read"),
            "c:2: subject s is named twice");
}

TEST(Credentials, ATenantWithoutCredentialsIsASlip) {
  EXPECT_EQ(complaint("tenant serch pool=1GiB\nsubject a tenant=search rights=read"),
            "c:1: no token, subject or certificate is of tenant serch");
}

TEST(Credentials, IsBounded) {
  EXPECT_EQ(complaint(std::string(kCredentialsBytesMax + 1, '#')), "c: longer than 1 MiB");
  std::string tenants, subjects;
  for (std::size_t i = 0; i <= kTenantsMax; ++i) tenants += "tenant t" + std::to_string(i) + "\n";
  EXPECT_EQ(complaint(tenants), "c:1025: more than 1,024 tenants");
  std::string each;
  for (std::size_t i = 0; i <= kTenantsMax; ++i)
    each += "subject s" + std::to_string(i) + " tenant=t" + std::to_string(i) + " rights=read\n";
  EXPECT_EQ(complaint(each), "c: more than 1,024 tenants") << "though no line is a tenant's";
  for (std::size_t i = 0; i <= kCredentialsMax; ++i) {
    subjects += "subject s" + std::to_string(i) + " tenant=t rights=read\n";
  }
  EXPECT_EQ(complaint(subjects), "c:4097: more than 4,096 subjects");
  std::string tokens;
  for (std::size_t i = 0; i <= kCredentialsMax; ++i) {
    const std::string name = "s" + std::to_string(i);
    tokens += show_token_line(name, "t", "read", digest_token(as_bytes(name)), "") + "\n";
  }
  EXPECT_EQ(complaint(tokens), "c:4097: more than 4,096 tokens");
}

TEST(Credentials, DatesAreDaysThatExist) {
  EXPECT_EQ(parse_date("1970-01-01").value(), 0);
  EXPECT_EQ(parse_date("2000-02-29").value(), 951782400);
  for (const char* bad : {"", "2027-02-29", "1969-12-31", "2027-6-30", "2027/06/30", "2027-06-3x", "2027-06-30 "}) {
    EXPECT_FALSE(parse_date(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace kvd::auth
