// CRC-32C (Castagnoli, polynomial 0x1EDC6F41 reflected), as iSCSI and ext4 use it: guards headers and meta on the wire.
// Pure, any thread. By the processor's instruction where there is one, else by tables, eight bytes a step: about 2
// GB/s. A small round trip through memory has ten of them, of some 60 bytes.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace kvd::wire {

// The CRC of `bytes`; crc32c("123456789") == 0xE3069283. Behind bytes whose CRC is `before`: of all of them.
std::uint32_t crc32c(Bytes bytes, std::uint32_t before = 0) noexcept;
// The same by tables.
std::uint32_t crc32c_by_tables(Bytes bytes, std::uint32_t before = 0) noexcept;

}  // namespace kvd::wire
