#include "tls/context.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "base/error_text.h"
#include "tls/stream.h"

namespace kvd::tls {
namespace {

using SharedCtx = std::shared_ptr<SSL_CTX>;

constexpr int kChainMax = 4;  // authorities between a certificate and one that is trusted
constexpr long kChainBytesMax = 64 << 10;
constexpr std::size_t kReadBytes = std::size_t{128} << 10;  // read at once, while something is there
// Of the library's own list some cost the server a tenth of a second a handshake, and a stranger chooses.
constexpr const char* kGroups = "X25519:P-256:P-384";
constexpr const char* kSuites = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

std::unexpected<InputFault> fault(const std::string& file, std::string text) {
  return std::unexpected(InputFault{.file = file, .line = 0, .text = std::move(text)});
}

// What the library says of the file, or that it does not hold `what`.
std::unexpected<InputFault> not_there(const std::string& file, const std::string& what) {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return fault(file, "holds no " + what + " in PEM form" + (reason == nullptr ? "" : std::string(" (") + reason + ")"));
}

FromInput<void> check_file(const std::string& file, bool secret) {
  struct stat status{};
  if (::stat(file.c_str(), &status) != 0) return fault(file, "cannot be read: " + error_text(errno));
  if (!S_ISREG(status.st_mode)) return fault(file, "is not a plain file");
  if (::access(file.c_str(), R_OK) != 0) return fault(file, "cannot be read: " + error_text(errno));
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) return fault(file, "others than its owner can change it: chmod 644");
  if (!secret) return {};
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return fault(file, "others than its owner can read the key: chmod 600");
  }
  if (status.st_uid != ::geteuid() && status.st_uid != 0) return fault(file, "belongs to another user");
  return {};
}

// A key with a pass phrase is refused: there is nobody to ask.
int no_pass_phrase(char*, int, int, void*) { return -1; }

FromInput<void> load_own(SSL_CTX* ctx, const std::string& certificate, const std::string& key) {
  if (const auto checked = check_file(certificate, false); !checked) return checked;
  if (const auto checked = check_file(key, true); !checked) return checked;
  SSL_CTX_set_default_passwd_cb(ctx, no_pass_phrase);
  if (SSL_CTX_use_certificate_chain_file(ctx, certificate.c_str()) != 1) return not_there(certificate, "certificate");
  // The library compares a key with a certificate of its type at once, and one of another type when it is asked to.
  const bool loaded = SSL_CTX_use_PrivateKey_file(ctx, key.c_str(), SSL_FILETYPE_PEM) == 1;
  if (loaded && SSL_CTX_check_private_key(ctx) == 1) return {};
  const int why = ERR_GET_REASON(ERR_peek_last_error());
  if (!loaded && why != X509_R_KEY_VALUES_MISMATCH && why != X509_R_KEY_TYPE_MISMATCH)
    return not_there(key, "private key without a pass phrase");
  ERR_clear_error();
  return fault(key, "is not the key of " + certificate);
}

FromInput<void> trust(SSL_CTX* ctx, const std::string& ca) {
  if (const auto checked = check_file(ca, false); !checked) return checked;
  if (SSL_CTX_load_verify_locations(ctx, ca.c_str(), nullptr) != 1) return not_there(ca, "certificate");
  SSL_CTX_set_verify_depth(ctx, kChainMax);
  return {};
}

// A name as people read it.
std::string text_of(const X509_NAME* name) {
  const std::unique_ptr<BIO, void (*)(BIO*)> out(BIO_new(BIO_s_mem()), BIO_free_all);
  char* text = nullptr;
  if (out == nullptr || X509_NAME_print_ex(out.get(), name, 0, XN_FLAG_ONELINE & ~ASN1_STRFLGS_ESC_MSB) < 0) return "?";
  const long bytes = BIO_get_mem_data(out.get(), &text);
  return bytes > 0 ? std::string(text, static_cast<std::size_t>(bytes)) : "?";
}

// Of what a server shows: clients would refuse it, and none could come in.
FromInput<void> check_dates(SSL_CTX* ctx, const std::string& file) {
  STACK_OF(X509)* chain = nullptr;
  SSL_CTX_get0_chain_certs(ctx, &chain);
  const int behind = chain == nullptr ? 0 : sk_X509_num(chain);
  for (int i = -1; i < behind; ++i) {
    const X509* const certificate = i < 0 ? SSL_CTX_get0_certificate(ctx) : sk_X509_value(chain, i);
    const std::string whose = i < 0 ? "" : " (of " + text_of(X509_get_subject_name(certificate)) + ")";
    if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0)
      return fault(file, "holds a certificate that has expired" + whose + ": every client would refuse it");
    if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0)
      return fault(file, "holds a certificate that is not valid yet" + whose + ": every client would refuse it");
  }
  return {};
}

bool is_list_of(X509_CRL* list, X509* authority) {
  return X509_NAME_cmp(X509_CRL_get_issuer(list), X509_get_subject_name(authority)) == 0 &&
         X509_CRL_verify(list, X509_get0_pubkey(authority)) == 1;
}

// Of an authority without a list nobody would be let in.
FromInput<void> check_crl_covers(const STACK_OF(X509_OBJECT) * objects, const std::string& crl) {
  const int count = sk_X509_OBJECT_num(objects);
  for (int i = 0; i < count; ++i) {
    X509* const authority = X509_OBJECT_get0_X509(sk_X509_OBJECT_value(objects, i));
    bool listed = authority == nullptr;
    for (int k = 0; k < count && !listed; ++k) {
      X509_CRL* const list = X509_OBJECT_get0_X509_CRL(sk_X509_OBJECT_value(objects, k));
      listed = list != nullptr && is_list_of(list, authority);
    }
    ERR_clear_error();
    if (!listed) {
      return fault(crl, "holds no revocation list of the authority " + text_of(X509_get_subject_name(authority)) +
                            ": all of its clients would be refused");
    }
  }
  return {};
}

FromInput<void> load_crl(SSL_CTX* ctx, const std::string& crl) {
  if (const auto checked = check_file(crl, false); !checked) return checked;
  X509_STORE* const store = SSL_CTX_get_cert_store(ctx);
  X509_LOOKUP* const lookup = X509_STORE_add_lookup(store, X509_LOOKUP_file());
  if (lookup == nullptr || X509_load_crl_file(lookup, crl.c_str(), X509_FILETYPE_PEM) <= 0) {
    return not_there(crl, "revocation list");
  }
  X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
  const STACK_OF(X509_OBJECT)* const objects = X509_STORE_get0_objects(store);
  for (int i = 0; i < sk_X509_OBJECT_num(objects); ++i) {
    const X509_CRL* const list = X509_OBJECT_get0_X509_CRL(sk_X509_OBJECT_value(objects, i));
    if (list == nullptr) continue;
    const ASN1_TIME* const until = X509_CRL_get0_nextUpdate(list);
    if (until != nullptr && X509_cmp_current_time(until) < 0)
      return fault(crl, "holds a revocation list that is out of date: every client would be refused");
  }
  return check_crl_covers(objects, crl);
}

FromInput<SharedCtx> make_ctx(bool server) {
  SharedCtx ctx(SSL_CTX_new(server ? TLS_server_method() : TLS_client_method()), SSL_CTX_free);
  if (ctx == nullptr || SSL_CTX_set_min_proto_version(ctx.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(ctx.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(ctx.get(), kSuites) != 1 || SSL_CTX_set1_groups_list(ctx.get(), kGroups) != 1) {
    ERR_clear_error();
    return fault("libssl", "cannot do TLS 1.3");
  }
  SSL_CTX_set_options(ctx.get(), SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(ctx.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(ctx.get(), 0);
  SSL_CTX_set_max_cert_list(ctx.get(), kChainBytesMax);
  SSL_CTX_set_mode(ctx.get(), SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(ctx.get(), 1);
  SSL_CTX_set_default_read_buffer_len(ctx.get(), kReadBytes);
  SSL_CTX_set_cert_verify_callback(ctx.get(), TlsStream::verify, nullptr);
  SSL_CTX_set_msg_callback(ctx.get(), TlsStream::on_protocol_message);
  return ctx;
}

FromInput<SharedCtx> make_server_ctx(const ServerFiles& files) {
  auto ctx = make_ctx(true);
  if (!ctx) return ctx;
  if (const auto loaded = load_own(ctx->get(), files.certificate, files.key); !loaded) {
    return std::unexpected(loaded.error());
  }
  if (const auto dated = check_dates(ctx->get(), files.certificate); !dated) return std::unexpected(dated.error());
  if (files.client_ca.empty()) return ctx;
  if (const auto trusted = trust(ctx->get(), files.client_ca); !trusted) return std::unexpected(trusted.error());
  STACK_OF(X509_NAME)* const names = SSL_load_client_CA_file(files.client_ca.c_str());
  if (names == nullptr) return not_there(files.client_ca, "certificate");
  SSL_CTX_set_client_CA_list(ctx->get(), names);
  SSL_CTX_set_verify(ctx->get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  if (files.crl.empty()) return ctx;
  if (const auto loaded = load_crl(ctx->get(), files.crl); !loaded) return std::unexpected(loaded.error());
  return ctx;
}

// The certificate has to be for this name or number.
bool expect_server(SSL* ssl, const std::string& server) {
  X509_VERIFY_PARAM* const wanted = SSL_get0_param(ssl);
  if (X509_VERIFY_PARAM_set1_ip_asc(wanted, server.c_str()) == 1) return true;
  ERR_clear_error();
  X509_VERIFY_PARAM_set_hostflags(wanted, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  return X509_VERIFY_PARAM_set1_host(wanted, server.c_str(), server.size()) == 1 &&
         SSL_set_tlsext_host_name(ssl, server.c_str()) == 1;
}

}  // namespace

Context::Context(bool server, bool knows_clients, SharedCtx context)
    : server_(server), knows_clients_(knows_clients), context_(std::move(context)) {}

Context::~Context() = default;

FromInput<std::shared_ptr<Context>> Context::make_server(const ServerFiles& files) {
  auto ctx = make_server_ctx(files);
  if (!ctx) return std::unexpected(ctx.error());
  return std::shared_ptr<Context>(new Context(true, !files.client_ca.empty(), std::move(*ctx)));
}

FromInput<std::shared_ptr<Context>> Context::make_client(const ClientFiles& files) {
  auto ctx = make_ctx(false);
  if (!ctx) return std::unexpected(ctx.error());
  if (const auto trusted = trust(ctx->get(), files.ca); !trusted) return std::unexpected(trusted.error());
  SSL_CTX_set_verify(ctx->get(), SSL_VERIFY_PEER, nullptr);
  if (!files.certificate.empty()) {
    if (const auto loaded = load_own(ctx->get(), files.certificate, files.key); !loaded) {
      return std::unexpected(loaded.error());
    }
  }
  return std::shared_ptr<Context>(new Context(false, false, std::move(*ctx)));
}

FromInput<void> Context::replace(const ServerFiles& files) {
  auto ctx = make_server_ctx(files);
  if (!ctx) return std::unexpected(ctx.error());
  context_ = std::move(*ctx);
  knows_clients_ = !files.client_ca.empty();
  return {};
}

Result<std::unique_ptr<io::Stream>> Context::wrap(std::unique_ptr<io::Stream> beneath, const std::string& server,
                                                  Duration handshake_limit) {
  std::unique_ptr<SSL, SslFree> ssl(SSL_new(context_.get()));
  if (ssl == nullptr || (!server_ && !expect_server(ssl.get(), server))) {
    ERR_clear_error();
    return fail(Code::kNoSpace, "prepare a TLS connection");
  }
  return std::make_unique<TlsStream>(shared_from_this(), std::move(ssl), std::move(beneath), server_, handshake_limit);
}

}  // namespace kvd::tls
