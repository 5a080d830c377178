// CRC-32C (Castagnoli, polynomial 0x1EDC6F41 reflected), as iSCSI and ext4 use it: guards headers and meta on the wire.
// Pure, any thread. Table driven, eight bytes a step: about 2 GB/s, and a request's meta is some kilobytes.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace kvd::wire {

// The CRC of `bytes`; crc32c("123456789") == 0xE3069283.
std::uint32_t crc32c(Bytes bytes) noexcept;

}  // namespace kvd::wire
