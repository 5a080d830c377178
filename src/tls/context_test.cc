#include "tls/context.h"

#include <sys/stat.h>

#include <cstdio>
#include <fstream>

#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>

#include "tls/testing/certificates.h"

namespace kvd::tls {
namespace {

// A key of another type than the authority's certificates have.
std::string rsa_key(const Pki& pki) {
  EVP_PKEY* const key = EVP_RSA_gen(2048);
  std::FILE* const file = std::fopen(pki.path("rsa.key").c_str(), "w");
  EXPECT_EQ(PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr), 1);
  std::fclose(file);
  EVP_PKEY_free(key);
  EXPECT_EQ(::chmod(pki.path("rsa.key").c_str(), 0600), 0);
  return pki.path("rsa.key");
}

// Several PEM files in one.
std::string joined(const Pki& pki, const std::vector<std::string>& files) {
  std::ofstream out(pki.path("joined.pem"));
  for (const std::string& file : files) out << std::ifstream(file).rdbuf();
  return pki.path("joined.pem");
}

std::string fault_of(const ServerFiles& files) {
  const auto made = Context::make_server(files);
  return made ? "none" : made.error().text;
}

TEST(TlsContext, TakesWhatBelongsTogether) {
  Pki pki;
  ServerFiles files = pki.server_files(true);
  files.crl = pki.write_crl({});
  const auto server = Context::make_server(files);
  ASSERT_TRUE(server.has_value()) << server.error().str();
  EXPECT_TRUE((*server)->knows_clients());
  const auto client = Context::make_client(pki.client_files(pki.issue({.common_name = "engine"})));
  EXPECT_TRUE(client.has_value()) << client.error().str();
}

TEST(TlsContext, AFaultNamesTheFileAndWhatToDo) {
  Pki pki;
  const ServerFiles good = pki.server_files(true);
  std::ofstream(pki.path("text")) << "no PEM\n";
  const auto text_of = [](const ServerFiles& files) {
    const auto made = Context::make_server(files);
    return made ? std::string("good") : made.error().str();
  };
  const auto with = [&](std::string ServerFiles::* file, const std::string& value) {
    ServerFiles files = good;
    files.*file = value;
    return text_of(files);
  };
  EXPECT_EQ(text_of(good), "good");
  EXPECT_EQ(with(&ServerFiles::certificate, "/nowhere"), "/nowhere: cannot be read: No such file or directory");
  EXPECT_TRUE(
      with(&ServerFiles::certificate, pki.path("text")).starts_with(pki.path("text") + ": holds no certificate"));
  EXPECT_EQ(with(&ServerFiles::key, pki.issue({.common_name = "other"}).key),
            pki.path("101.key") + ": is not the key of " + good.certificate);
  EXPECT_NE(with(&ServerFiles::client_ca, pki.path("text")).find("holds no certificate"), std::string::npos);
  EXPECT_NE(with(&ServerFiles::crl, pki.path("text")).find("holds no revocation list"), std::string::npos);
  ASSERT_EQ(::chmod(pki.path("text").c_str(), 0600), 0);
  EXPECT_NE(with(&ServerFiles::key, pki.path("text")).find("holds no private key"), std::string::npos);
  EXPECT_EQ(with(&ServerFiles::key, rsa_key(pki)), pki.path("rsa.key") + ": is not the key of " + good.certificate);
  EXPECT_EQ(with(&ServerFiles::crl, pki.write_crl({}, -1)),
            pki.path("crl.pem") + ": holds a revocation list that is out of date: every client would be refused");
  ASSERT_EQ(::chmod(good.client_ca.c_str(), 0664), 0);
  EXPECT_EQ(text_of(good), good.client_ca + ": others than its owner can change it: chmod 644");
  ASSERT_EQ(::chmod(good.client_ca.c_str(), 0644), 0);
  ASSERT_EQ(::chmod(good.key.c_str(), 0640), 0);
  EXPECT_EQ(text_of(good), good.key + ": others than its owner can read the key: chmod 600");
}

TEST(TlsContext, ACertificateThatIsNotValidTodayIsNotShown) {
  Pki pki;
  const auto fault = [](const Pki::Files& own) {
    return fault_of({.certificate = own.certificate, .key = own.key, .client_ca = "", .crl = ""});
  };
  EXPECT_EQ(fault(pki.issue({.common_name = "depot"})), "none");
  EXPECT_EQ(fault(pki.issue({.common_name = "depot", .valid_from_s = -7200, .valid_until_s = -60})),
            "holds a certificate that has expired: every client would refuse it");
  EXPECT_EQ(fault(pki.issue({.common_name = "depot", .valid_from_s = 60, .valid_until_s = 3600})),
            "holds a certificate that is not valid yet: every client would refuse it");
  Pki good("good", pki), old("old", pki, -60);
  EXPECT_EQ(fault(good.issue({.common_name = "depot"})), "none");
  EXPECT_EQ(fault(old.issue({.common_name = "depot"})),
            "holds a certificate that has expired (of CN = old): every client would refuse it");
}

TEST(TlsContext, EachAuthorityHasAList) {
  Pki first("first"), second("second"), namesake("second");
  ServerFiles files = first.server_files(true);
  files.client_ca = first.path("both.pem");
  std::ofstream(files.client_ca) << std::ifstream(first.ca()).rdbuf() << std::ifstream(second.ca()).rdbuf();
  files.crl = first.write_crl({});
  const std::string missing =
      "holds no revocation list of the authority CN = second: all of its clients would be refused";
  EXPECT_EQ(fault_of(files), missing);
  files.crl = joined(first, {first.path("crl.pem"), namesake.write_crl({})});
  EXPECT_EQ(fault_of(files), missing) << "somebody else of that name";
  files.crl = joined(first, {first.path("crl.pem"), second.write_crl({})});
  EXPECT_EQ(fault_of(files), "none");
}

TEST(TlsContext, AFaultAtAReplacementLeavesAllAsItWas) {
  Pki pki;
  const auto context = Context::make_server(pki.server_files(true));
  ASSERT_TRUE(context.has_value());
  EXPECT_FALSE((*context)->replace({.certificate = "/nowhere", .key = "", .client_ca = "", .crl = ""}).has_value());
  EXPECT_TRUE((*context)->knows_clients());
  EXPECT_TRUE((*context)->replace(pki.server_files(false)).has_value());
  EXPECT_FALSE((*context)->knows_clients());
}

}  // namespace
}  // namespace kvd::tls
