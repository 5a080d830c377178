// What a verified certificate says of its owner. Plain function; any thread.
#pragma once

#include "io/stream.h"

struct x509_st;

namespace kvd::tls {

// At most 32 names of at most 255 printable characters each; others are left out, as nobody can list them.
io::PeerCertificate read_certificate(x509_st* certificate);

}  // namespace kvd::tls
