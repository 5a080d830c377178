// TlsDialer: connects through another dialer and puts encryption above what that brings. The certificate files are read
// again for each connection, so that they can be replaced. Belongs to one loop; blocks for these small files only.
#pragma once

#include <memory>
#include <string>

#include "net/dialer.h"
#include "tls/context.h"

namespace kvd::net {

class TlsDialer final : public Dialer {
 public:
  // `server`: the name or number that the certificate at the other end must be for.
  TlsDialer(std::unique_ptr<Dialer> beneath, tls::ClientFiles files, std::string server);
  TlsDialer(const TlsDialer&) = delete;
  TlsDialer& operator=(const TlsDialer&) = delete;

  // As Dialer::connect(); the handshake takes place behind it, in the stream. kUnavailable also: the files are not
  // usable now.
  void connect(const Endpoint& endpoint, Time deadline, OnDone on_done) override;
  void cancel() override;
  [[nodiscard]] bool busy() const noexcept override { return beneath_->busy(); }

 private:
  Result<std::unique_ptr<io::Stream>> wrap(std::unique_ptr<io::Stream> stream) const;

  const std::unique_ptr<Dialer> beneath_;
  const tls::ClientFiles files_;
  const std::string server_;
};

}  // namespace kvd::net
