#include "tls_loop.h"

#include <optional>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "raw_server.h"

namespace kvd::bench {
namespace {

constexpr std::size_t kReadBytes = std::size_t{128} << 10;  // read at once, as the depot does

[[noreturn]] void complain_of(const char* what) {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  throw Error(std::string(what) + (reason == nullptr ? "" : std::string(": ") + reason));
}

void must(bool ok, const char* what) {
  if (!ok) complain_of(what);
}

using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;

Context make_context(const SSL_METHOD* method) {
  Context context(SSL_CTX_new(method), SSL_CTX_free);
  must(context != nullptr && SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_ciphersuites(context.get(), "TLS_AES_128_GCM_SHA256") == 1,
       "no TLS 1.3");
  SSL_CTX_set_read_ahead(context.get(), 1);
  SSL_CTX_set_default_read_buffer_len(context.get(), kReadBytes);
  return context;
}

// One connection over a socket that outlives it.
class TlsSocket {
 public:
  TlsSocket(SSL_CTX* context, const Socket& socket, bool server) : ssl_(SSL_new(context)) {
    must(ssl_ != nullptr && SSL_set_fd(ssl_.get(), socket.fd()) == 1, "no TLS connection");
    must((server ? SSL_accept(ssl_.get()) : SSL_connect(ssl_.get())) == 1, "no TLS handshake");
  }
  void send_all(std::span<const std::byte> bytes) const {
    std::size_t sent = 0;
    if (SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &sent) != 1 || sent != bytes.size())
      complain_of("the peer has ended the TLS connection");
  }
  // False at the peer's end.
  bool receive_all(std::span<std::byte> out) const {
    while (!out.empty()) {
      std::size_t got = 0;
      if (SSL_read_ex(ssl_.get(), out.data(), out.size(), &got) != 1) return false;
      out = out.subspan(got);
    }
    return true;
  }

 private:
  std::unique_ptr<SSL, decltype([](SSL* ssl) { SSL_free(ssl); })> ssl_;
};

class TlsLoopArm final : public Arm {
 public:
  TlsLoopArm(std::uint16_t port, const std::string& ca)
      : context_(make_context(TLS_client_method())), socket_(Socket::connect(port)) {
    must(SSL_CTX_load_verify_locations(context_.get(), ca.c_str(), nullptr) == 1, "no certificate to trust");
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    tls_.emplace(context_.get(), socket_, false);
  }
  void use(Records& records) override { records_ = &records; }
  void send(What what, const Request& request) override {
    if (what != What::kGet) throw Error("the loop has no puts");
    const RawRequest raw{records_->bytes(), request.count, 0};
    tls_->send_all(std::as_bytes(std::span(&raw, 1)));
  }
  void finish(What, const Request& request) override {
    for (std::uint32_t i = request.first; i < request.first + request.count; ++i)
      if (!tls_->receive_all(records_->target(i))) throw Error("the loop's server closed the connection");
  }
  [[nodiscard]] bool fills_targets() const noexcept override { return false; }  // with something that nobody knows

 private:
  Context context_;
  Socket socket_;
  std::optional<TlsSocket> tls_;
  Records* records_ = nullptr;
};

}  // namespace

void serve_tls_loop(const std::string& certificate, const std::string& key) {
  const Context context = make_context(TLS_server_method());
  must(SSL_CTX_use_certificate_chain_file(context.get(), certificate.c_str()) == 1 &&
           SSL_CTX_use_PrivateKey_file(context.get(), key.c_str(), SSL_FILETYPE_PEM) == 1,
       "no certificate or no key");
  serve_records([&](const Socket& socket) -> RawChannel {
    const auto tls = std::make_shared<TlsSocket>(context.get(), socket, true);  // owners: both functions
    return {.receive_all = [tls](std::span<std::byte> out) { return tls->receive_all(out); },
            .send_all = [tls](std::span<const std::byte> bytes) { tls->send_all(bytes); }};
  });
}

std::unique_ptr<Arm> open_tls_loop(std::uint16_t port, const std::string& ca) {
  return std::make_unique<TlsLoopArm>(port, ca);
}

}  // namespace kvd::bench
