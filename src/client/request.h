// From the public request structs to checked OpRequests. Runs on the caller's thread, so that hashing keys and copying
// arrays does not keep the I/O thread from moving bytes. Errors: kInvalid, with what is wrong.
#pragma once

#include "client/namespace_table.h"
#include "client/op.h"
#include "client/region_table.h"

namespace kvd::client {

Result<OpRequest> make_match(const NamespaceTable& namespaces, const MatchRequest& request);
Result<OpRequest> make_get(const NamespaceTable& namespaces, RegionTable& regions, const GetRequest& request);
Result<OpRequest> make_borrow(const NamespaceTable& namespaces, const BorrowRequest& request);
Result<OpRequest> make_put(const NamespaceTable& namespaces, RegionTable& regions, const PutRequest& request);
Result<OpRequest> make_remove(const NamespaceTable& namespaces, NamespaceId ns, std::span<const std::uint16_t> shards,
                              std::span<const std::uint16_t> groups, const KeyList& keys, Deadline deadline);

}  // namespace kvd::client
