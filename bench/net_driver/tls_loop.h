// What bounds TLS: blocking SSL_write() and SSL_read() of records, by the library that the depot uses, without a
// protocol and without verification. TLS 1.3 with AES-128-GCM.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "arm.h"

namespace kvd::bench {

// The server: says its port on stdout and sends, for each request of 16 bytes, as many records from memory that no
// cache holds. One connection at a time, for ever. `certificate` and `key`: PEM files.
[[noreturn]] void serve_tls_loop(const std::string& certificate, const std::string& key);
// `ca`: who has signed its certificate. Throws Error.
std::unique_ptr<Arm> open_tls_loop(std::uint16_t port, const std::string& ca);

}  // namespace kvd::bench
