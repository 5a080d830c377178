// Opens any depot: one that runs elsewhere, or one that lives in this process and keeps its files in a directory.
//
//   tcp://HOST:PORT, tls://HOST:PORT, unix:///PATH      as Client::open()
//   file:///DIR?pool=1GiB&flash=10GiB                   an embedded depot: this process owns DIR
//
// The sizes shown are the defaults; flash=0: memory only. Without flash= a store that is in DIR keeps its size.
//
// An embedded depot is the depot server's own code on a thread of this process. It listens on DIR/kvdepot.sock (mode
// 0600), and the client returned here is connected to it; other processes of the same user may attach to it. Puts move
// through that socket, two copies per byte; gets are copied once, from the depot's memory, unless client.shared_memory
// is false. The depot ends, with what is dirty written to flash, when the client is destroyed: within 20 s, or 30 s
// when its device hangs. Then its memory and thread stay until the device answers, and the directory stays locked; what
// was not on flash is lost.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "kvdepot/client.h"

namespace kvd {

struct OpenOptions {
  ClientOptions client;
  // file:// only: connect to the depot that another process keeps in DIR, instead of owning DIR. The owner may come
  // later, unless client.require_connection.
  bool attach_only = false;
  // file:// only: lines of this process's embedded depot that say that something was lost or refused, as `kvdepot
  // serve` logs them (the flash tier was turned off, a device is slow). Empty: they are dropped. Called rarely, on the
  // depot's threads (on the caller's within open_any()); must not throw, and must not wait for the client to end. It
  // must stay callable until the client has ended, or for good if the depot's device hangs then.
  std::function<void(std::string_view line)> on_warning{};
};

// Opens a client for `depot`. Blocks while an embedded store recovers (bounded by its footers, not by its data), and
// with client.require_connection. Errors: kInvalid (bad address, size or directory), kBusy (another process owns the
// directory: share it with `kvdepot serve`), kStale (written by a newer version), kNoSpace, kIo, kUnavailable. On error
// `why`, if given, becomes one line that names what is wrong and what to do: paths, sizes, the system's words.
Result<std::unique_ptr<Client>> open_any(const std::string& depot, const OpenOptions& options = {},
                                         std::string* why = nullptr);

}  // namespace kvd
