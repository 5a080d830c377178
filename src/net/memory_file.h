// Memory files that two processes of one host share: made and looked at before they are mapped. Plain functions, any
// thread.
//
// Such a file keeps its size, by seals, so that no access to a mapping of it can fault because of what the peer does
// later; and it is ordinary shared memory, as pages of other kinds can run out under who writes or reads them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/result.h"
#include "io/private_fd.h"

namespace kvd::net {

// A new one of zeros, whose size nobody can change any more. `name` is what /proc shows. kNoSpace, kIo.
Result<io::PrivateFd> make_memory_file(const char* name, std::uint64_t bytes);
// Whether the peer's file is such a one, of exactly `bytes`. kInvalid.
Status check_memory_file(const io::PrivateFd& file, std::uint64_t bytes);
// Maps all of it, shared, for `protection` (PROT_READ, PROT_WRITE). A forked child does not have the mapping, and it is
// in no core dump. kNoSpace.
Result<std::byte*> map_memory_file(const io::PrivateFd& file, std::uint64_t bytes, int protection);

}  // namespace kvd::net
