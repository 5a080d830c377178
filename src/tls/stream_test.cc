#include "tls/stream.h"

#include <array>
#include <fstream>
#include <functional>
#include <sstream>

#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/random.h"
#include "io/sim/sim_loop.h"
#include "io/sim/sim_net.h"
#include "tls/testing/certificates.h"
#include "tls/testing/pair.h"

namespace kvd::tls {
namespace {

std::vector<std::byte> some_bytes(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
  return bytes;
}

// A depot and clients over a network in memory that does nothing wrong by itself.
class TlsStreamTest : public testing::Test {
 protected:
  void serve(const ServerFiles& files, Duration limit = Context::kHandshakeLimit) {
    auto context = Context::make_server(files);
    ASSERT_TRUE(context.has_value()) << context.error().str();
    server_context_ = *context;
    net_.listen("depot", [this, limit](std::unique_ptr<io::Stream> stream) {
      server_ = std::make_unique<End>(loop_, *server_context_->wrap(std::move(stream), {}, limit));
    });
  }
  void connect(const ClientFiles& files, const std::string& name = "localhost") {
    auto context = Context::make_client(files);
    ASSERT_TRUE(context.has_value()) << context.error().str();
    connect_plain([this, context = *context, name](std::unique_ptr<io::Stream> stream) {
      client_ = std::make_unique<End>(loop_, *context->wrap(std::move(stream), name));
    });
  }
  void connect_plain(std::function<void(std::unique_ptr<io::Stream>)> use) {
    net_.connect("depot", [use = std::move(use)](Result<std::unique_ptr<io::Stream>> stream) {
      ASSERT_TRUE(stream.has_value());
      use(std::move(*stream));
    });
  }
  bool run_until(const std::function<bool()>& done) {
    for (int i = 0; i < 200'000 && !done(); ++i)
      if (!loop_.run_once(std::chrono::minutes(10))) break;
    return done();
  }
  [[nodiscard]] bool both_there() const { return server_ != nullptr && client_ != nullptr; }
  // What the server has against the client's certificate.
  std::string refusal_of(const ClientFiles& client) {
    client_.reset();
    server_.reset();
    connect(client);
    EXPECT_TRUE(run_until([this] { return both_there() && server_->why && client_->why; }));
    EXPECT_FALSE(client_->why->what == nullptr);
    EXPECT_EQ(client_->got.size() + server_->got.size(), 0U);
    return server_->stream().refusal() == nullptr ? "" : server_->stream().refusal();
  }
  std::string client_error() {
    EXPECT_TRUE(run_until([this] { return client_ != nullptr && client_->why; }));
    return client_->why ? client_->why->what : "";
  }

  Pki pki_;
  io::SimClock clock_;
  io::SimLoop loop_{clock_};
  io::SimNet net_{loop_, 7};
  std::shared_ptr<Context> server_context_;
  std::unique_ptr<End> server_, client_;
};

TEST_F(TlsStreamTest, BytesArriveAsTheyWereBothWays) {
  serve(pki_.server_files(false));
  connect({.ca = pki_.ca(), .certificate = "", .key = ""});
  ASSERT_TRUE(run_until([this] { return both_there(); }));
  const auto there = some_bytes(3'000'000, 1), back = some_bytes(1'234'567, 2);
  client_->send(there);
  server_->send(back);
  EXPECT_TRUE(run_until([&] { return server_->got.size() == there.size() && client_->got.size() == back.size(); }));
  EXPECT_EQ(server_->got, there);
  EXPECT_EQ(client_->got, back);
  EXPECT_EQ(server_->stream().peer_certificate(), nullptr);
  ASSERT_NE(client_->stream().peer_certificate(), nullptr);
  EXPECT_EQ(client_->stream().peer_certificate()->names.front(), "localhost");
}

// A place smaller than a record: the rest is told of although nothing comes beneath.
TEST_F(TlsStreamTest, TellsOfBytesThatAreDecryptedAlready) {
  serve(pki_.server_files(false));
  connect({.ca = pki_.ca(), .certificate = "", .key = ""});
  ASSERT_TRUE(run_until([this] { return both_there(); }));
  server_->place_bytes = 100;
  const auto there = some_bytes(50'050, 1);
  client_->send(there);
  EXPECT_TRUE(run_until([&] { return server_->got.size() == there.size(); }));
  EXPECT_EQ(server_->got, there);
}

// The library's errors are a thread's, and somebody else may have left one there.
TEST_F(TlsStreamTest, AnErrorThatWasThereBeforeIsNotTheStreams) {
  serve(pki_.server_files(false));
  connect({.ca = pki_.ca(), .certificate = "", .key = ""});
  ASSERT_TRUE(run_until([this] { return both_there() && client_->stream().peer_certificate() != nullptr; }));
  std::array<std::byte, 100> bytes{};
  const iovec place{bytes.data(), bytes.size()};
  ERR_raise(ERR_LIB_SSL, ERR_R_INTERNAL_ERROR);
  EXPECT_EQ(client_->stream().receive({&place, 1}, nullptr).error().code, Code::kBusy);
  ERR_raise(ERR_LIB_SSL, ERR_R_INTERNAL_ERROR);
  EXPECT_EQ(client_->stream().send({&place, 1}, -1).value(), bytes.size());
  EXPECT_EQ(ERR_peek_error(), 0U);
}

TEST_F(TlsStreamTest, ManyShortPiecesShareRecords) {
  serve(pki_.server_files(false));
  connect({.ca = pki_.ca(), .certificate = "", .key = ""});
  ASSERT_TRUE(run_until([this] { return both_there() && client_->stream().peer_certificate() != nullptr; }));
  auto bytes = some_bytes(100'000, 3);
  std::vector<iovec> pieces;
  std::size_t at = 0;
  for (std::size_t length = 1; at < bytes.size(); length = length * 3 % 20'011 + 1) {
    const std::size_t n = std::min(length, bytes.size() - at);
    pieces.push_back({bytes.data() + at, n});
    at += n;
  }
  ASSERT_EQ(client_->stream().send(pieces, -1).value(), bytes.size());
  EXPECT_TRUE(run_until([&] { return server_->got.size() == bytes.size(); }));
  EXPECT_EQ(server_->got, bytes);
}

TEST_F(TlsStreamTest, AClientsCertificateSaysWhoItIs) {
  serve(pki_.server_files(true));
  connect(
      pki_.client_files(pki_.issue({.common_name = "engine-1", .alternative_names = "DNS:e1.example.net,URI:urn:e1"})));
  ASSERT_TRUE(run_until([this] { return both_there() && server_->stream().peer_certificate() != nullptr; }));
  const io::PeerCertificate& certificate = *server_->stream().peer_certificate();
  EXPECT_EQ(certificate.names, (std::vector<std::string>{"e1.example.net", "urn:e1"}))
      << "the common name may be anything then";
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  EXPECT_NEAR(static_cast<double>(certificate.not_after), static_cast<double>(now.count() + 3600), 60);
  EXPECT_NE(certificate.sha256, decltype(certificate.sha256){});
  EXPECT_TRUE(server_->stream().judge_again().has_value());
}

TEST_F(TlsStreamTest, CertificatesThatAreNotGoodAreRefusedAndOnlyTheServerKnowsWhy) {
  Pki stranger;
  ServerFiles files = pki_.server_files(true);
  const auto revoked = pki_.issue({.common_name = "engine"});
  files.crl = pki_.write_crl({revoked.serial});
  serve(files);
  const auto foreign = stranger.issue({.common_name = "engine"});
  EXPECT_EQ(refusal_of({.ca = pki_.ca(), .certificate = foreign.certificate, .key = foreign.key}),
            "unable to get local issuer certificate");
  const std::string said = client_->why->what;
  EXPECT_EQ(refusal_of(pki_.client_files(
                pki_.issue({.common_name = "engine", .valid_from_s = -7200, .valid_until_s = -3600}))),
            "certificate has expired");
  EXPECT_EQ(client_->why->what, said);
  EXPECT_EQ(
      refusal_of(pki_.client_files(pki_.issue({.common_name = "engine", .valid_from_s = 3600, .valid_until_s = 7200}))),
      "certificate is not yet valid");
  EXPECT_EQ(client_->why->what, said);
  EXPECT_EQ(refusal_of(pki_.client_files(revoked)), "certificate revoked");
  EXPECT_EQ(client_->why->what, said);
  EXPECT_EQ(refusal_of({.ca = pki_.ca(), .certificate = "", .key = ""}), "peer did not return a certificate");
}

TEST_F(TlsStreamTest, AClientRefusesAServerThatIsNotTheOneItMeans) {
  Pki stranger;
  serve(pki_.server_files(false));
  connect({.ca = stranger.ca(), .certificate = "", .key = ""});
  EXPECT_EQ(client_error(), std::string("unable to get local issuer certificate"));
  client_.reset();
  connect({.ca = pki_.ca(), .certificate = "", .key = ""}, "depot.example.net");
  EXPECT_EQ(client_error(), std::string("hostname mismatch"));
  client_.reset();
  connect({.ca = pki_.ca(), .certificate = "", .key = ""}, "127.0.0.2");
  EXPECT_EQ(client_error(), std::string("IP address mismatch"));
}

TEST_F(TlsStreamTest, PeopleWhoDoNotSpeakTlsAreRefused) {
  serve(pki_.server_files(false));
  std::unique_ptr<io::Stream> plain;
  connect_plain([&](std::unique_ptr<io::Stream> stream) {
    plain = std::move(stream);
    ASSERT_TRUE(plain->start(loop_, [](std::uint32_t) {}).has_value());
    std::array<char, 64> hello{"KVDP hello, this is not TLS at all"};
    const iovec piece{hello.data(), hello.size()};
    ASSERT_TRUE(plain->send({&piece, 1}, -1).has_value());
  });
  EXPECT_TRUE(run_until([this] { return server_ != nullptr && server_->why; }));
  EXPECT_STREQ(server_->stream().refusal(), "the other side does not speak TLS, or not version 1.3");
}

TEST_F(TlsStreamTest, AServerThatDoesNotSpeakTlsIsNoDepot) {
  std::unique_ptr<io::Stream> plain;
  net_.listen("depot", [&](std::unique_ptr<io::Stream> stream) {
    plain = std::move(stream);
    ASSERT_TRUE(plain->start(loop_, [&](std::uint32_t) {}).has_value());
    std::array<char, 64> answer{"-ERR unknown command, and no TLS"};
    const iovec piece{answer.data(), answer.size()};
    ASSERT_TRUE(plain->send({&piece, 1}, -1).has_value());
  });
  connect({.ca = pki_.ca(), .certificate = "", .key = ""});
  EXPECT_EQ(client_error(), "the other side does not speak TLS, or not version 1.3");
}

// Slow loris: a byte now and then keeps nobody in.
TEST_F(TlsStreamTest, AHandshakeHasADeadline) {
  serve(pki_.server_files(false), std::chrono::seconds(2));
  std::unique_ptr<io::Stream> plain;
  std::optional<io::Timer> drip;
  const Time began = loop_.now();
  connect_plain([&](std::unique_ptr<io::Stream> stream) {
    plain = std::move(stream);
    ASSERT_TRUE(plain->start(loop_, [](std::uint32_t) {}).has_value());
    drip.emplace(loop_, [&] {
      std::array<unsigned char, 1> byte{0x16};
      const iovec piece{byte.data(), 1};
      static_cast<void>(plain->send({&piece, 1}, -1));
      byte[0] = 0x03;
      drip->arm_in(std::chrono::milliseconds(900));
    });
    drip->arm_in(std::chrono::milliseconds(900));
  });
  EXPECT_TRUE(run_until([this] { return server_ != nullptr && server_->why; }));
  EXPECT_STREQ(server_->stream().refusal(), "the TLS handshake took too long");
  EXPECT_LT(loop_.now() - began, std::chrono::milliseconds(2100));
  drip.reset();
}

TEST_F(TlsStreamTest, WhoComesAndGoesWithoutAByteIsNotRefused) {
  serve(pki_.server_files(false));
  connect_plain([&](std::unique_ptr<io::Stream> stream) { stream.reset(); });
  EXPECT_TRUE(run_until([this] { return server_ != nullptr && server_->why; }));
  EXPECT_EQ(server_->stream().refusal(), nullptr);
}

TEST_F(TlsStreamTest, AnEndIsOnlyBelievedWhenThePeerSaysSo) {
  serve(pki_.server_files(false));
  connect({.ca = pki_.ca(), .certificate = "", .key = ""});
  ASSERT_TRUE(run_until([this] { return both_there(); }));
  client_->send(some_bytes(100'000, 1));
  ASSERT_TRUE(run_until([this] { return server_->got.size() == 100'000; }));
  client_->stream().end_sending();
  EXPECT_TRUE(run_until([this] { return server_->ended; }));
  EXPECT_FALSE(server_->why.has_value());
  client_->stream().close();
  client_.reset();

  server_.reset();
  connect({.ca = pki_.ca(), .certificate = "", .key = ""});
  ASSERT_TRUE(run_until([this] { return both_there() && client_->stream().peer_certificate() != nullptr; }));
  client_->stream().close();  // as whoever cuts a connection would
  EXPECT_TRUE(run_until([this] { return server_->why.has_value(); }));
  EXPECT_EQ(server_->why->code, Code::kUnavailable);
  EXPECT_FALSE(server_->ended);
}

TEST_F(TlsStreamTest, KeysAreRenewedWithoutALostByte) {
  serve(pki_.server_files(false));
  connect({.ca = pki_.ca(), .certificate = "", .key = ""});
  ASSERT_TRUE(run_until([this] { return both_there() && client_->stream().peer_certificate() != nullptr; }));
  std::vector<std::byte> all;
  for (std::uint64_t i = 0; i < 5; ++i) {
    client_->tls().renew_keys();
    const auto bytes = some_bytes(40'000, i);
    all.insert(all.end(), bytes.begin(), bytes.end());
    client_->send(bytes);
  }
  EXPECT_TRUE(run_until([&] { return server_->got.size() == all.size(); }));
  EXPECT_EQ(server_->got, all);
}

TEST_F(TlsStreamTest, WhoRenewsKeysWithoutAnEndIsCut) {
  serve(pki_.server_files(false));
  connect({.ca = pki_.ca(), .certificate = "", .key = ""});
  ASSERT_TRUE(run_until([this] { return both_there() && client_->stream().peer_certificate() != nullptr; }));
  for (std::uint64_t i = 0; i < 17; ++i) {
    client_->tls().renew_keys();
    client_->send(some_bytes(1, i));
  }
  EXPECT_TRUE(run_until([this] { return server_->why.has_value(); }));
  EXPECT_EQ(server_->why->code, Code::kCorrupt);
  EXPECT_LE(server_->got.size(), 17U);
}

TEST_F(TlsStreamTest, WhatAPeerDoesNotReadIsBounded) {
  serve(pki_.server_files(false));
  connect({.ca = pki_.ca(), .certificate = "", .key = ""});
  ASSERT_TRUE(run_until([this] { return both_there() && client_->stream().peer_certificate() != nullptr; }));
  ASSERT_TRUE(server_->stream().want(io::Watch::kNone).has_value());
  auto bytes = some_bytes(4'000'000, 1);
  const iovec piece{bytes.data(), bytes.size()};
  std::size_t taken = 0;
  for (int i = 0; i < 10; ++i) {
    taken += client_->stream().send({&piece, 1}, -1).value_or(0);
    EXPECT_LE(client_->tls().kept_bytes(), std::size_t{300} << 10);
    loop_.run_once(std::chrono::milliseconds(1));
  }
  EXPECT_LT(taken, std::size_t{1} << 20);
  EXPECT_GT(client_->tls().kept_bytes(), 0U);
  EXPECT_GE(client_->stream().untaken(), client_->tls().kept_bytes());
}

TEST_F(TlsStreamTest, NewFilesCountForNewStreamsAndOldOnesAreJudgedByThem) {
  ServerFiles files = pki_.server_files(true);
  files.crl = pki_.write_crl({});
  serve(files);
  const auto own = pki_.issue({.common_name = "engine"});
  connect(pki_.client_files(own));
  ASSERT_TRUE(run_until([this] { return both_there() && server_->stream().peer_certificate() != nullptr; }));
  EXPECT_TRUE(server_->stream().judge_again().has_value());
  pki_.write_crl({own.serial});
  ASSERT_TRUE(server_context_->replace(files).has_value());
  const auto judged = server_->stream().judge_again();
  ASSERT_FALSE(judged.has_value());
  EXPECT_STREQ(judged.error().what, "certificate revoked");
  client_.reset();
  server_.reset();
  EXPECT_EQ(refusal_of(pki_.client_files(own)), "certificate revoked");
}

// At every moment of it: neither does the one that was revoked come in, nor is anybody else kept out.
TEST_F(TlsStreamTest, AReloadWithinAHandshakeCountsForIt) {
  ServerFiles files = pki_.server_files(true);
  files.crl = pki_.write_crl({});
  serve(files);
  const auto own = pki_.issue({.common_name = "engine"});
  const auto begin = [&](int steps) {
    pki_.write_crl({});
    EXPECT_TRUE(server_context_->replace(files).has_value());
    client_.reset();
    server_.reset();
    connect(pki_.client_files(own));
    EXPECT_TRUE(run_until([this] { return both_there(); }));
    client_->send(some_bytes(1000, 1));
    for (int i = 0; i < steps; ++i) loop_.run_once(std::chrono::minutes(1));
  };
  int within = 0;
  for (int steps = 0;; ++steps) {
    begin(steps);
    if (server_->stream().peer_certificate() != nullptr) break;
    ++within;
    ASSERT_TRUE(server_context_->replace(files).has_value());
    EXPECT_TRUE(run_until([this] { return server_->got.size() == 1000; })) << steps;
    begin(steps);
    pki_.write_crl({own.serial});
    ASSERT_TRUE(server_context_->replace(files).has_value());
    EXPECT_TRUE(run_until([this] { return server_->why && client_->why; })) << steps;
    EXPECT_STREQ(server_->stream().refusal(), "certificate revoked");
    EXPECT_EQ(server_->got.size(), 0U);
  }
  EXPECT_GT(within, 1);
}

// A depot and a client of an authority in the middle, each of which the other knows the root of only.
class TlsChain : public TlsStreamTest {
 protected:
  ServerFiles files() {
    ServerFiles files = middle_.server_files(true);
    files.client_ca = pki_.ca();
    return files;
  }
  ClientFiles engine() {
    const auto own = middle_.issue({.common_name = "engine"});
    return {.ca = pki_.ca(), .certificate = own.certificate, .key = own.key};
  }
  std::string lists(const std::vector<std::string>& of) {
    std::ofstream out(pki_.path("lists.pem"));
    for (const std::string& list : of) out << std::ifstream(list).rdbuf();
    return pki_.path("lists.pem");
  }
  Pki middle_{"middle", pki_};
};

TEST_F(TlsChain, AnAuthorityInTheMiddleIsVerifiedOnBothSides) {
  ServerFiles own = files();
  own.crl = lists({pki_.write_crl({}), middle_.write_crl({})});
  serve(own);
  connect(engine());
  ASSERT_TRUE(run_until([this] { return both_there(); }));
  client_->send(some_bytes(1000, 1));
  server_->send(some_bytes(2000, 2));
  EXPECT_TRUE(run_until([this] { return server_->got.size() == 1000 && client_->got.size() == 2000; }));
  EXPECT_EQ(server_->stream().peer_certificate()->names.front(), "engine");
  EXPECT_TRUE(server_->stream().judge_again().has_value());
}

TEST_F(TlsChain, WithoutTheMiddleNobodyIsKnown) {
  serve(files());
  const auto whole = engine();
  const std::string alone = pki_.path("alone.pem");
  std::ostringstream text;
  text << std::ifstream(whole.certificate).rdbuf();
  std::ofstream(alone) << text.str().substr(0, text.str().find("-----BEGIN", 1));
  EXPECT_EQ(refusal_of({.ca = whole.ca, .certificate = alone, .key = whole.key}),
            "unable to get local issuer certificate");
  Pki other("other root");
  client_.reset();
  connect({.ca = other.ca(), .certificate = whole.certificate, .key = whole.key});
  EXPECT_EQ(client_error(), std::string("unable to get local issuer certificate"));
}

TEST_F(TlsChain, TheRootTakesBackAnAuthorityAndThisOneItsClients) {
  ServerFiles own = files();
  own.crl = lists({pki_.write_crl({middle_.serial()}), middle_.write_crl({})});
  serve(own);
  EXPECT_EQ(refusal_of(engine()), "certificate revoked");
  const auto revoked = middle_.issue({.common_name = "engine"});
  lists({pki_.write_crl({}), middle_.write_crl({revoked.serial})});
  ASSERT_TRUE(server_context_->replace(own).has_value());
  EXPECT_EQ(refusal_of({.ca = pki_.ca(), .certificate = revoked.certificate, .key = revoked.key}),
            "certificate revoked");
  lists({pki_.write_crl({})});
  ASSERT_TRUE(server_context_->replace(own).has_value());
  EXPECT_EQ(refusal_of(engine()), "unable to get certificate CRL") << "of an authority that only the client shows";
}

// Older versions are not spoken, whatever is asked for.
TEST_F(TlsStreamTest, SpeaksVersionThreeWithAes128) {
  serve(pki_.server_files(false));
  SSL_CTX* const old = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_max_proto_version(old, TLS1_2_VERSION);
  SSL* const ssl = SSL_new(old);
  SSL_set_bio(ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  SSL_set_connect_state(ssl);
  SSL_do_handshake(ssl);
  char* hello = nullptr;
  const long size = BIO_get_mem_data(SSL_get_wbio(ssl), &hello);
  std::unique_ptr<io::Stream> plain;
  connect_plain([&](std::unique_ptr<io::Stream> stream) {
    plain = std::move(stream);
    ASSERT_TRUE(plain->start(loop_, [](std::uint32_t) {}).has_value());
    const iovec piece{hello, static_cast<std::size_t>(size)};
    ASSERT_TRUE(plain->send({&piece, 1}, -1).has_value());
  });
  EXPECT_TRUE(run_until([this] { return server_ != nullptr && server_->why; }));
  EXPECT_STREQ(server_->stream().refusal(), "the other side does not speak TLS, or not version 1.3");
  SSL_free(ssl);
  SSL_CTX_free(old);
}

}  // namespace
}  // namespace kvd::tls
