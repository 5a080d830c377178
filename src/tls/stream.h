// TlsStream: encryption above another stream (io/stream.h), by OpenSSL. Owned by the connection; belongs to its loop;
// nothing blocks and nothing calls back from inside. Made by tls::Context.
//
// Where bytes are: what comes is read into the library's buffer (128 KiB, given back when it is empty), decrypted
// there, and copied to the user's place. What goes is copied record by record into the context's common buffer,
// encrypted there and handed to the stream beneath at 256 KiB; what that does not take, at most these 256 KiB and a
// record, is kept here, and nothing more is taken until it is out. A peer that vanishes, or a close(), loses what is
// kept.
//
// Bounds against who is not known yet: a handshake has a deadline, a chain of certificates 64 KiB and four authorities,
// a handshake 256 KiB. Against who is: key updates and other messages that are no data are counted, and more of them
// than one for 64 MiB of data beside a few ends the stream. Our own keys are renewed every 64 GiB.
//
// Any byte that is not what the peer sent ends the stream; so does its end without the peer's word (kUnavailable).
// What was wrong with a client's certificate is told by refusal(), for the log; the client hears "handshake failure".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "io/stream.h"
#include "tls/context.h"

struct ssl_st;
struct bio_st;
struct x509_store_ctx_st;

namespace kvd::tls {

struct SslFree {
  void operator()(ssl_st* ssl) const noexcept;
};

class TlsStream final : public io::Stream {
 public:
  // Sent with one key: AES-GCM allows 2^24.5 records (RFC 8446, 5.5), whatever they hold.
  static constexpr std::uint64_t kKeyRecords = std::uint64_t{1} << 23;

  TlsStream(std::shared_ptr<Context> context, std::unique_ptr<ssl_st, SslFree> ssl, std::unique_ptr<io::Stream> beneath,
            bool server, Duration handshake_limit);
  ~TlsStream() override;

  Status start(io::Loop& loop, io::Watch::OnReady on_ready) override;
  Status want(std::uint32_t interest) override;
  Result<std::size_t> receive(std::span<const iovec> places, io::PrivateFd* descriptor) override;
  Result<std::size_t> send(std::span<const iovec> pieces, int descriptor) override;
  void end_sending() override;
  void close() override;
  bool set_read_mark(std::size_t bytes) override;
  [[nodiscard]] bool is_local() const noexcept override { return false; }  // no descriptors go through encryption
  [[nodiscard]] int fd() const noexcept override { return beneath_->fd(); }
  [[nodiscard]] bool is_secure() const noexcept override { return true; }
  [[nodiscard]] std::size_t unsent() const noexcept override { return kept_bytes(); }
  [[nodiscard]] std::size_t untaken() const noexcept override { return kept_bytes() + beneath_->untaken(); }
  [[nodiscard]] bool heard() const noexcept override { return shaken_; }
  [[nodiscard]] const io::PeerCertificate* peer_certificate() const noexcept override {
    return certificate_ ? &*certificate_ : nullptr;
  }
  [[nodiscard]] const char* refusal() const noexcept override { return refusal_; }
  Status judge_again() override;

  // Bytes held here for the stream beneath.
  [[nodiscard]] std::size_t kept_bytes() const noexcept { return kept_.size() - kept_at_; }
  // Renews our own keys with the next bytes; for tests that do not send so much.
  void renew_keys();

  // What the library calls.
  static int verify(x509_store_ctx_st* chain, void*);
  static void on_protocol_message(int write, int version, int type, const void* bytes, std::size_t size, ssl_st* ssl,
                                  void*);
  static bool at_end(bio_st* bio) noexcept;
  static int bio_write(bio_st* bio, const char* bytes, std::size_t size, std::size_t* written);
  static int bio_read(bio_st* bio, char* bytes, std::size_t size, std::size_t* got);

 private:
  enum class State : std::uint8_t { kHandshake, kOpen, kFailed };

  void on_beneath(std::uint32_t ready);
  void on_deadline();
  void on_more();
  void shake_hands();
  void opened();
  void fail_with(const Error& why);
  void fail_handshake(const Error& why);
  [[nodiscard]] Error library_error();
  bool read_record(std::span<std::byte> place, std::size_t& got);
  bool write_record(Bytes plain);
  void flush();
  void tell(std::uint32_t ready);
  void settle();

  const std::shared_ptr<Context> context_;
  const std::unique_ptr<io::Stream> beneath_;
  const bool server_;
  const Duration handshake_limit_;
  std::unique_ptr<ssl_st, SslFree> ssl_;
  io::Loop* loop_ = nullptr;
  io::Watch::OnReady on_ready_;
  std::optional<io::Timer> deadline_;  // of the handshake
  std::optional<io::Timer> more_;      // there may be more although nothing has come beneath
  State state_ = State::kHandshake;
  bool started_ = false, closed_ = false;
  std::uint32_t interest_ = io::Watch::kRead;
  bool maybe_more_ = false;  // the last receive filled its places, or there is an end or an error to tell
  bool ended_ = false;       // the peer has said that it sends no more
  bool ends_ = false;        // end_sending() waits for kept bytes
  bool said_end_ = false;    // end_sending() was called
  bool flooded_ = false;
  bool beneath_ended_ = false;
  bool shaken_ = false;              // a byte of the peer has come
  Error why_{};                      // of kFailed
  std::optional<Error> below_;       // an error of the stream beneath that the library does not know
  const char* refusal_ = nullptr;    // static text
  const char* bad_chain_ = nullptr;  // what is wrong with the peer's certificate; static text
  std::optional<io::PeerCertificate> certificate_;
  std::vector<std::byte> kept_;  // records that the stream beneath did not take
  std::size_t kept_at_ = 0;
  std::uint64_t came_ = 0;      // bytes, encrypted
  std::uint64_t with_key_ = 0;  // records sent since our keys were renewed
  std::uint64_t messages_ = 0;  // that are no data, after the handshake
};

}  // namespace kvd::tls
