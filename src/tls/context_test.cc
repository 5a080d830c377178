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
