#include "auth/token.h"

#include <gtest/gtest.h>

namespace kvd::auth {
namespace {

TEST(Token, EachIsNewAndHasTheForm) {
  const std::string one = make_token().value();
  const std::string other = make_token().value();
  EXPECT_NE(one, other);
  EXPECT_EQ(one.size(), kTokenBytes);
  EXPECT_TRUE(is_token(as_bytes(one)));
}

TEST(Token, ShowsItsBytesAsBase64Url) {
  TokenDigest secret;
  for (std::size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<std::byte>(255 - 9 * i);
  // base64.urlsafe_b64encode(bytes((255 - 9 * i) % 256 for i in range(32))) without its padding
  EXPECT_EQ(show_token(secret), "kvd___bt5NvSycC3rqWck4qBeG9mXVRLQjkwJx4VDAP68eg");
}

TEST(Token, WhatDoesNotHaveTheFormIsNone) {
  const std::string good = show_token(TokenDigest{});
  EXPECT_TRUE(is_token(as_bytes(good)));
  EXPECT_FALSE(is_token({}));
  EXPECT_FALSE(is_token(as_bytes("password")));
  EXPECT_FALSE(is_token(as_bytes(good + "A")));
  EXPECT_FALSE(is_token(as_bytes(good.substr(1) + "A")));
  EXPECT_FALSE(is_token(as_bytes(good.substr(0, kTokenBytes - 1) + "=")));
}

TEST(Token, DigestIsSha256) {
  EXPECT_EQ(show_digest(digest_token(as_bytes("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Token, DigestsAreReadBack) {
  const TokenDigest digest = digest_token(as_bytes("abc"));
  const std::string text = show_digest(digest);
  EXPECT_TRUE(same_digest(parse_digest(text).value(), digest));
  EXPECT_FALSE(parse_digest(text.substr(1)).has_value());
  EXPECT_FALSE(parse_digest(text.substr(1) + "g").has_value());
  EXPECT_FALSE(parse_digest(text + "0").has_value());
}

TEST(Token, DigestsDifferByAnyBit) {
  const TokenDigest digest = digest_token(as_bytes("abc"));
  for (std::size_t bit = 0; bit < 256; ++bit) {
    TokenDigest other = digest;
    other[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    EXPECT_FALSE(same_digest(digest, other)) << bit;
  }
}

}  // namespace
}  // namespace kvd::auth
