// The depot's own client as an arm: its defaults, over TCP with shared memory off, or with it.
#pragma once

#include <memory>
#include <string>

#include "arm.h"

namespace kvd::bench {

// `ca`: of tls:// addresses, who has signed the depot's certificate; else empty. Records are slabs of 64 KiB, or of
// their size where they are smaller. Each put stores new keys. Throws Error.
std::unique_ptr<Arm> open_depot(const std::string& address, bool shared_memory, const std::string& ca);
// The same, whose gets borrow: each record is verified where it lies in the depot's memory, and given back.
std::unique_ptr<Arm> open_borrower(const std::string& address);

}  // namespace kvd::bench
