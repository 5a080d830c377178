// Context: what one side of TLS connections has in common: its certificate and key, whom it trusts, and the place where
// records are encrypted. Made of PEM files; wraps streams. TLS 1.3 only, AES-128-GCM first; no resumption, so that each
// connection is judged by the certificates of its day; no early data, no renegotiation (1.3 has none).
//
// A context belongs to one loop, as its streams do, which share it: replace() changes the files for those to come. A
// record's bytes are encrypted into `outgoing`, which all streams use in turn: 288 KiB a context, and not a connection.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/input.h"
#include "io/stream.h"

struct ssl_ctx_st;

namespace kvd::tls {

// Paths of PEM files. A key's file is readable by its owner only, who is this process's user or root.
struct ServerFiles {
  std::string certificate;  // with the chain behind it
  std::string key;
  std::string client_ca;  // clients have to show a certificate of one of these; empty = they show none
  std::string crl;  // certificates that were taken back; with client_ca only, of each authority in it; may be empty
};
struct ClientFiles {
  std::string ca;           // who has signed the depot's certificate
  std::string certificate;  // the client's own, with its key; both or none
  std::string key;
};

class Context : public std::enable_shared_from_this<Context> {
 public:
  // A stream that is not encrypted within this time is cut.
  static constexpr Duration kHandshakeLimit = std::chrono::seconds(5);

  // The fault names the file and says what to do: it cannot be read, others could read a key, it does not hold what it
  // should, certificate and key do not belong together; of a server also: its certificate, or one of its chain, is not
  // valid today, a revocation list is out of date or missing for one of the authorities. Blocks for small files.
  static FromInput<std::shared_ptr<Context>> make_server(const ServerFiles& files);
  static FromInput<std::shared_ptr<Context>> make_client(const ClientFiles& files);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // The same of other files, or of files with another content, for streams from now on. After a fault all stays as it
  // was. Of a server only. Loop thread.
  FromInput<void> replace(const ServerFiles& files);
  // Clients show certificates.
  [[nodiscard]] bool knows_clients() const noexcept { return knows_clients_; }

  // Encryption above a stream that was not started yet. A client says which server it means: a name, or an IP number,
  // that the server's certificate must be for; a server says nothing. kNoSpace: no memory.
  Result<std::unique_ptr<io::Stream>> wrap(std::unique_ptr<io::Stream> beneath, const std::string& server = {},
                                           Duration handshake_limit = kHandshakeLimit);

 private:
  friend class TlsStream;
  Context(bool server, bool knows_clients, std::shared_ptr<ssl_ctx_st> context);

  const bool server_;
  bool knows_clients_;
  std::shared_ptr<ssl_ctx_st> context_;  // with the streams that were made of it
  std::vector<std::byte> outgoing_;      // records on their way, of the stream that works now
};

}  // namespace kvd::tls
