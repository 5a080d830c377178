#include "net/tls_dialer.h"

#include <utility>

namespace kvd::net {

TlsDialer::TlsDialer(std::unique_ptr<Dialer> beneath, tls::ClientFiles files, std::string server)
    : beneath_(std::move(beneath)), files_(std::move(files)), server_(std::move(server)) {}

void TlsDialer::connect(const Endpoint& endpoint, Time deadline, OnDone on_done) {
  beneath_->connect(endpoint, deadline,
                    [this, on_done = std::move(on_done)](Result<std::unique_ptr<io::Stream>> stream) mutable {
                      on_done(stream ? wrap(std::move(*stream)) : std::move(stream));
                    });
}

void TlsDialer::cancel() { beneath_->cancel(); }

Result<std::unique_ptr<io::Stream>> TlsDialer::wrap(std::unique_ptr<io::Stream> stream) const {
  const auto context = tls::Context::make_client(files_);
  if (!context) return fail(Code::kUnavailable, "the certificate files of this client cannot be used now");
  return (*context)->wrap(std::move(stream), server_);
}

}  // namespace kvd::net
