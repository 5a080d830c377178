// Opens any depot: one that runs elsewhere, or one that lives in this process and keeps its files in a directory.
//
//   tcp://HOST:PORT, unix:///PATH               as Client::open()
//   file:///DIR?pool=1GiB&flash=10GiB           an embedded depot: this process owns DIR
//
// An embedded depot is the depot server's own code on a thread of this process. It listens on DIR/kvdepot.sock (mode
// 0600), and the client returned here is connected to it; other processes of the same user may attach to it. Bytes
// move through that socket: two copies per byte. The depot ends, with what is dirty written to flash, when the client
// is destroyed: within 20 s, or 30 s when its device hangs. Then its memory and thread stay until the device answers,
// and the directory stays locked; what was not on flash is lost.
#pragma once

#include <memory>
#include <string>

#include "kvdepot/client.h"

namespace kvd {

struct OpenOptions {
  ClientOptions client;
  // file:// only: connect to the depot that another process keeps in DIR, instead of owning DIR. The owner may come
  // later, unless client.require_connection.
  bool attach_only = false;
};

// Opens a client for `depot`. Blocks while an embedded store recovers (bounded by its footers, not by its data), and
// with client.require_connection. Errors: kInvalid (bad address, size or directory), kBusy (another process owns the
// directory: share it with `kvdepot serve`), kStale (written by a newer version), kNoSpace, kIo, kUnavailable.
Result<std::unique_ptr<Client>> open_any(const std::string& depot, const OpenOptions& options = {});

}  // namespace kvd
