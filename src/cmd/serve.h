// `kvdepot serve`: runs one depot node until SIGTERM or SIGINT.
#pragma once

#include "cmd/serve_options.h"

namespace kvd::cmd {

// Runs the node on this thread. Prints "listening on ADDRESS" lines on stdout when it serves (one JSON object with
// `json`). A signal drains for at most 20 s; a second one ends at once. Returns the process's exit status: 0 after a
// drain, 1 with one line on stderr otherwise. Needs the main thread, once in a process: it owns the signal handlers.
int serve(const ServeOptions& options, bool json);

}  // namespace kvd::cmd
