// Attachment: what a client keeps alive and ends after itself: the depot that is embedded beside it (src/embed).
#pragma once

#include <memory>
#include <string>

#include "kvdepot/client.h"

namespace kvd::client {

class Attachment {
 public:
  virtual ~Attachment() = default;  // on the thread that destroys the client; never in a forked child
};

// Client::open() with an attachment, which may be null. When opening fails the attachment ends at once.
Result<std::unique_ptr<Client>> open_attached(const std::string& depot, const ClientOptions& options,
                                              std::unique_ptr<Attachment> attachment);

}  // namespace kvd::client
