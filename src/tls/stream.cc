#include "tls/stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "base/check.h"
#include "tls/peer_certificate.h"

namespace kvd::tls {
namespace {

constexpr std::size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
constexpr std::size_t kSendBytes = std::size_t{256} << 10;  // handed to the stream beneath at once
constexpr std::uint64_t kHandshakeBytesMax = std::uint64_t{256} << 10;
constexpr std::uint64_t kMessagesFree = 16;  // beside one for so many bytes
constexpr std::uint64_t kMessageEvery = std::uint64_t{64} << 20;
constexpr std::size_t kMarkSlack = kRecordBytes + 512;  // what of a record may be here already
constexpr int kFarewellReadsMax = 16;

constexpr Error kSlowHandshake{Code::kUnavailable, 0, "the TLS handshake took too long"};
constexpr Error kFlood{Code::kCorrupt, 0, "more TLS messages that are no data than anybody needs"};
constexpr Error kNoGoodbye{Code::kUnavailable, 0, "the peer ended the connection without saying so in TLS"};
constexpr Error kRefusedUs{Code::kUnavailable, 0,
                           "the depot refused this client's certificate, or wants one: its log says why"};
constexpr Error kNoTls{Code::kUnavailable, 0, "the other side does not speak TLS, or not version 1.3"};
constexpr Error kBusyNow{Code::kBusy, 0, "nothing can be moved through TLS now"};

TlsStream* stream_of(BIO* bio) noexcept { return static_cast<TlsStream*>(BIO_get_data(bio)); }

// Alerts by which a server refuses a client for what it has shown, or has not.
bool is_refusal(int alert) noexcept {
  switch (alert) {
    case SSL_AD_HANDSHAKE_FAILURE:
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_REVOKED:
    case SSL_AD_CERTIFICATE_EXPIRED:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_UNKNOWN_CA:
    case SSL_AD_ACCESS_DENIED:
    case TLS13_AD_CERTIFICATE_REQUIRED: return true;
    default: return false;
  }
}

bool is_no_tls(int reason) noexcept {
  return reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST || reason == SSL_R_UNSUPPORTED_PROTOCOL ||
         reason == SSL_R_BAD_RECORD_TYPE || reason == SSL_R_PACKET_LENGTH_TOO_LONG ||
         reason == SSL_R_TLSV1_ALERT_PROTOCOL_VERSION;
}

long bio_control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_FLUSH) return 1;
  return command == BIO_CTRL_EOF && TlsStream::at_end(bio) ? 1 : 0;
}

// Made once, and the same for all streams of the process: constant.
const BIO_METHOD* bio_method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "kvdepot stream");
    KVD_CHECK(made != nullptr);
    BIO_meth_set_write_ex(made, TlsStream::bio_write);
    BIO_meth_set_read_ex(made, TlsStream::bio_read);
    BIO_meth_set_ctrl(made, bio_control);
    return made;
  }();
  return method;
}

}  // namespace

void SslFree::operator()(ssl_st* ssl) const noexcept { SSL_free(ssl); }

TlsStream::TlsStream(std::shared_ptr<Context> context, std::unique_ptr<ssl_st, SslFree> ssl,
                     std::unique_ptr<io::Stream> beneath, bool server, Duration handshake_limit)
    : context_(std::move(context)),
      beneath_(std::move(beneath)),
      server_(server),
      handshake_limit_(handshake_limit),
      ssl_(std::move(ssl)) {
  BIO* const bio = BIO_new(bio_method());
  KVD_CHECK(bio != nullptr);
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_app_data(ssl_.get(), this);
  if (server_) {
    SSL_set_accept_state(ssl_.get());
  } else {
    SSL_set_connect_state(ssl_.get());
  }
}

TlsStream::~TlsStream() { close(); }

// ---- Life ----

Status TlsStream::start(io::Loop& loop, io::Watch::OnReady on_ready) {
  on_ready_ = std::move(on_ready);
  deadline_.emplace(loop, [this] { on_deadline(); });
  more_.emplace(loop, [this] { on_more(); });
  if (Status below = beneath_->start(loop, [this](std::uint32_t ready) { on_beneath(ready); }); !below) return below;
  started_ = true;
  loop_ = &loop;
  if (handshake_limit_ != Duration::max()) deadline_->arm_in(handshake_limit_);
  if (!server_) shake_hands();
  settle();
  return {};
}

void TlsStream::close() {
  if (std::exchange(closed_, true)) return;
  if (deadline_) deadline_->disarm();
  if (more_) more_->disarm();
  kept_ = {};
  kept_at_ = 0;
  beneath_->close();
}

Status TlsStream::want(std::uint32_t interest) {
  interest_ = interest;
  settle();
  return {};
}

// Asks the stream beneath for what is needed now, and the loop where there is something to tell without it.
void TlsStream::settle() {
  if (closed_ || !started_) return;
  std::uint32_t below = io::Watch::kNone;
  if (state_ == State::kHandshake) {
    below = io::Watch::kRead;
  } else if (state_ == State::kOpen) {
    if (!ended_) below = interest_ & io::Watch::kRead;
    below |= interest_ & io::Watch::kWrite;
  }
  if (kept_bytes() > 0 && state_ != State::kFailed) below |= io::Watch::kWrite;
  if (const Status set = beneath_->want(below); !set) fail_with(set.error());
  const bool tells =
      state_ == State::kFailed ? interest_ != io::Watch::kNone : maybe_more_ && (interest_ & io::Watch::kRead) != 0;
  if (!tells) {
    more_->disarm();
  } else if (!more_->armed()) {
    more_->arm(loop_->now());
  }
}

void TlsStream::on_beneath(std::uint32_t ready) {
  const bool was_open = state_ == State::kOpen;
  flush();
  std::uint32_t told = 0;
  if (state_ == State::kHandshake) {
    shake_hands();
    if (state_ == State::kOpen) told = interest_;
  } else if (state_ == State::kOpen) {
    told = ready & interest_;
    if (kept_bytes() > 0) told &= ~std::uint32_t{io::Watch::kWrite};
  }
  if (state_ == State::kFailed) told = interest_;
  if (was_open || state_ != State::kHandshake) tell(told);
  settle();
}

void TlsStream::on_more() {
  tell(state_ == State::kFailed ? interest_ : interest_ & io::Watch::kRead);
  settle();
}

void TlsStream::tell(std::uint32_t ready) {
  if (ready != 0 && !closed_) on_ready_(ready);
}

void TlsStream::on_deadline() {
  fail_handshake(kSlowHandshake);
  tell(interest_);
  settle();
}

void TlsStream::fail_with(const Error& why) {
  if (state_ == State::kFailed) return;
  state_ = State::kFailed;
  why_ = why;
  if (deadline_) deadline_->disarm();
  // The peer hears the alert, and not a reset because of bytes that nobody read.
  flush();
  beneath_->end_sending();
  std::array<std::byte, 4096> rest;
  const iovec place{rest.data(), rest.size()};
  for (int i = 0; i < kFarewellReadsMax && beneath_->receive({&place, 1}, nullptr).value_or(0) > 0; ++i) {
  }
  kept_ = {};
  kept_at_ = 0;
}

void TlsStream::fail_handshake(const Error& why) {
  const bool silent = !shaken_ && why.what != kSlowHandshake.what;  // came and went
  if (server_ && !silent && state_ == State::kHandshake) refusal_ = why.what;
  fail_with(why);
}

// ---- Handshake ----

void TlsStream::shake_hands() {
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl_.get());
  const bool waits = done != 1 && SSL_get_error(ssl_.get(), done) == SSL_ERROR_WANT_READ;
  flush();
  if (state_ == State::kFailed) return;
  if (done == 1) return opened();
  if (!waits) fail_handshake(library_error());
}

void TlsStream::opened() {
  state_ = State::kOpen;
  deadline_->disarm();
  maybe_more_ = true;  // data may have come with the handshake's last message
  if (X509* const certificate = SSL_get1_peer_certificate(ssl_.get())) {
    certificate_ = read_certificate(certificate);
    X509_free(certificate);
  }
  // Files that were replaced meanwhile count.
  if (SSL_get_SSL_CTX(ssl_.get()) == context_->context_.get()) return;
  if (const Status judged = judge_again(); !judged) {
    certificate_.reset();
    state_ = State::kHandshake;
    fail_handshake({Code::kUnavailable, 0, judged.error().what});
  }
}

// The reason stays here: to the peer all chains that fail are the same.
int TlsStream::verify(X509_STORE_CTX* chain, void*) {
  const auto* const ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(chain, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* const self = static_cast<TlsStream*>(SSL_get_app_data(ssl));
  if (X509_verify_cert(chain) == 1) return 1;
  const int why = X509_STORE_CTX_get_error(chain);
  self->bad_chain_ = why == X509_V_OK ? "its certificate cannot be verified" : X509_verify_cert_error_string(why);
  if (self->server_ || why == X509_V_OK) X509_STORE_CTX_set_error(chain, X509_V_ERR_APPLICATION_VERIFICATION);
  return 0;
}

Status TlsStream::judge_again() {
  if (!server_ || !certificate_) return {};
  X509* const certificate = SSL_get0_peer_certificate(ssl_.get());
  X509_STORE_CTX* const chain = X509_STORE_CTX_new();
  KVD_CHECK(certificate != nullptr && chain != nullptr);
  Status judged;
  if (X509_STORE_CTX_init(chain, SSL_CTX_get_cert_store(context_->context_.get()), certificate,
                          SSL_get_peer_cert_chain(ssl_.get())) != 1 ||
      X509_STORE_CTX_set_default(chain, "ssl_client") != 1 || X509_verify_cert(chain) != 1) {
    const int why = X509_STORE_CTX_get_error(chain);
    judged = fail(Code::kInvalid,
                  why == X509_V_OK ? "its certificate cannot be verified" : X509_verify_cert_error_string(why));
  }
  X509_STORE_CTX_free(chain);
  ERR_clear_error();
  return judged;
}

void TlsStream::on_protocol_message(int write, int, int type, const void*, std::size_t, SSL* ssl, void*) {
  if (write != 0 || type != SSL3_RT_HANDSHAKE) return;
  auto* const self = static_cast<TlsStream*>(SSL_get_app_data(ssl));
  if (self->state_ != State::kOpen) return;
  if (++self->messages_ > kMessagesFree + self->came_ / kMessageEvery) self->flooded_ = true;
}

// What the library, or what is beneath it, has failed with.
Error TlsStream::library_error() {
  const unsigned long first = ERR_peek_error();
  const int reason = ERR_GET_REASON(first);
  const char* const text = first == 0 ? nullptr : ERR_reason_error_string(first);
  ERR_clear_error();
  if (below_) return *below_;
  if (flooded_) return kFlood;
  if (bad_chain_ != nullptr && state_ == State::kHandshake) return {Code::kUnavailable, 0, bad_chain_};
  if (beneath_ended_) return kNoGoodbye;
  if (is_no_tls(reason) && state_ == State::kHandshake) return kNoTls;
  if (!server_ && reason > SSL_AD_REASON_OFFSET && is_refusal(reason - SSL_AD_REASON_OFFSET)) return kRefusedUs;
  const bool told_by_peer = reason > SSL_AD_REASON_OFFSET;
  const Code code = state_ == State::kHandshake || told_by_peer ? Code::kUnavailable : Code::kCorrupt;
  return {code, 0, text == nullptr ? "TLS failed" : text};
}

// ---- The stream beneath ----

bool TlsStream::at_end(BIO* bio) noexcept { return stream_of(bio)->beneath_ended_; }

int TlsStream::bio_write(BIO* bio, const char* bytes, std::size_t size, std::size_t* written) {
  BIO_clear_retry_flags(bio);
  std::vector<std::byte>& out = stream_of(bio)->context_->outgoing_;
  if (out.capacity() == 0) out.reserve(kSendBytes + 2 * kRecordBytes);
  const Bytes record = std::as_bytes(std::span(bytes, size));
  out.insert(out.end(), record.begin(), record.end());
  *written = size;
  return 1;
}

int TlsStream::bio_read(BIO* bio, char* bytes, std::size_t size, std::size_t* got) {
  BIO_clear_retry_flags(bio);
  TlsStream* const self = stream_of(bio);
  *got = 0;
  if (self->state_ == State::kHandshake && self->came_ > kHandshakeBytesMax) self->flooded_ = true;
  if (self->flooded_ || self->below_ || self->beneath_ended_ || self->closed_) return 0;
  const iovec place{bytes, size};
  const Result<std::size_t> received = self->beneath_->receive({&place, 1}, nullptr);
  if (received && *received > 0) {
    self->shaken_ = true;
    self->came_ += *received;
    *got = *received;
    return 1;
  }
  if (received) {
    self->beneath_ended_ = true;
  } else if (received.error().code == Code::kBusy) {
    BIO_set_retry_read(bio);
  } else {
    self->below_ = received.error();
  }
  return 0;
}

// Hands what is kept, then the common buffer's records, to the stream beneath; keeps what that does not take.
void TlsStream::flush() {
  std::vector<std::byte>& out = context_->outgoing_;
  const auto pass_on = [this](const std::vector<std::byte>& bytes, std::size_t at) {
    while (at < bytes.size()) {
      const iovec piece{const_cast<std::byte*>(bytes.data() + at), bytes.size() - at};  // only read
      const Result<std::size_t> sent = beneath_->send({&piece, 1}, -1);
      if (!sent) {
        if (sent.error().code != Code::kBusy && !below_) below_ = sent.error();
        break;
      }
      at += *sent;
    }
    return at;
  };
  if (kept_bytes() > 0) kept_at_ = pass_on(kept_, kept_at_);
  if (kept_bytes() == 0 && !kept_.empty()) {
    kept_ = {};
    kept_at_ = 0;
  }
  if (!out.empty()) {
    const std::size_t passed = kept_bytes() == 0 ? pass_on(out, 0) : 0;
    kept_.insert(kept_.end(), out.begin() + static_cast<std::ptrdiff_t>(passed), out.end());
    out.clear();
  }
  if (ends_ && kept_bytes() == 0) {
    ends_ = false;
    beneath_->end_sending();
  }
  if (below_ && state_ != State::kFailed) fail_with(*below_);
}

// ---- Data ----

// One record's bytes, or fewer. False: nothing more has come, or see state_ and ended_.
bool TlsStream::read_record(std::span<std::byte> place, std::size_t& got) {
  got = 0;
  const int done = SSL_read_ex(ssl_.get(), place.data(), place.size(), &got);
  if (flooded_) {
    fail_with(kFlood);
    return false;
  }
  if (done == 1) return true;
  const int why = SSL_get_error(ssl_.get(), done);
  if (why == SSL_ERROR_ZERO_RETURN) {
    ended_ = true;
  } else if (why != SSL_ERROR_WANT_READ) {
    fail_with(library_error());
  }
  return false;
}

Result<std::size_t> TlsStream::receive(std::span<const iovec> places, io::PrivateFd*) {
  if (closed_) return fail(Code::kIo, "receive on a closed stream");
  if (state_ == State::kHandshake) return fail(kBusyNow);
  ERR_clear_error();  // once for all records: a call that fails is the last
  std::size_t total = 0;
  maybe_more_ = true;
  for (std::size_t i = 0; i < places.size() && state_ == State::kOpen && maybe_more_; ++i) {
    std::span<std::byte> place(static_cast<std::byte*>(places[i].iov_base), places[i].iov_len);
    while (!place.empty()) {
      std::size_t got = 0;
      if (ended_ || !read_record(place, got)) {
        maybe_more_ = false;
        break;
      }
      total += got;
      place = place.subspan(got);
    }
  }
  flush();  // what the library had to answer
  if (state_ == State::kFailed && total == 0) return fail(why_);
  if (ended_ || state_ == State::kFailed) maybe_more_ = true;  // there is an end to tell
  settle();
  if (total > 0 || ended_) return total;
  return fail(kBusyNow);
}

bool TlsStream::write_record(Bytes plain) {
  std::size_t written = 0;
  if (SSL_write_ex(ssl_.get(), plain.data(), plain.size(), &written) == 1 && written == plain.size()) {
    ++with_key_;
    return true;
  }
  fail_with(library_error());
  return false;
}

Result<std::size_t> TlsStream::send(std::span<const iovec> pieces, int descriptor) {
  KVD_CHECK(descriptor < 0);
  if (closed_) return fail(Code::kIo, "send on a closed stream");
  flush();
  if (state_ == State::kFailed) return fail(why_);
  if (state_ == State::kHandshake || kept_bytes() > 0) return fail(kBusyNow);
  if (with_key_ >= kKeyRecords) renew_keys();
  ERR_clear_error();  // once for all records: a call that fails is the last
  std::array<std::byte, kRecordBytes> gathered;
  std::size_t total = 0, i = 0, at = 0;
  while (i < pieces.size() && kept_bytes() == 0 && state_ == State::kOpen) {
    Bytes plain(static_cast<const std::byte*>(pieces[i].iov_base) + at, pieces[i].iov_len - at);
    if (plain.size() >= kRecordBytes || i + 1 == pieces.size()) {
      plain = plain.first(std::min(plain.size(), kRecordBytes));
      at += plain.size();
    } else {  // short pieces share a record
      std::size_t have = 0;
      for (; i < pieces.size() && have < kRecordBytes; at = 0, ++i) {
        const std::size_t n = std::min(pieces[i].iov_len - at, kRecordBytes - have);
        std::memcpy(gathered.data() + have, static_cast<const std::byte*>(pieces[i].iov_base) + at, n);
        have += n;
        at += n;
        if (at < pieces[i].iov_len) break;
      }
      plain = Bytes(gathered).first(have);
    }
    if (i < pieces.size() && at == pieces[i].iov_len) {
      ++i;
      at = 0;
    }
    if (!plain.empty() && !write_record(plain)) break;
    total += plain.size();
    if (context_->outgoing_.size() >= kSendBytes) flush();
  }
  flush();
  if (state_ == State::kFailed) return fail(why_);
  settle();
  if (total == 0) return fail(kBusyNow);
  return total;
}

void TlsStream::end_sending() {
  if (closed_ || state_ == State::kFailed || std::exchange(said_end_, true)) return;
  if (state_ == State::kOpen) {
    ERR_clear_error();
    SSL_shutdown(ssl_.get());  // says goodbye; what it returns says whether the peer has, too
    ERR_clear_error();
  }
  ends_ = true;
  flush();
  settle();
}

void TlsStream::renew_keys() {
  if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1) with_key_ = 0;
  ERR_clear_error();
}

// Ciphertext is longer than what it holds, but part of it may be here already.
bool TlsStream::set_read_mark(std::size_t bytes) {
  if (closed_) return false;
  return beneath_->set_read_mark(bytes > 2 * kMarkSlack ? bytes - kMarkSlack : 1);
}

}  // namespace kvd::tls
