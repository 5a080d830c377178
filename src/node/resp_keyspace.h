// RespKeyspace: the part of a tenant's namespaces in which Redis clients store values: which record of the store is
// which head or part (resp_value.h). Belongs to the node's loop; one for a tenant and node, for the node's life, as it
// counts the keys of parts.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "block/schema.h"
#include "node/resp_value.h"
#include "store/store.h"

namespace kvd::node {

class RespKeyspace {
 public:
  static constexpr std::string_view kReserved = "kvdepot.resp.";  // begins the fingerprints of all its namespaces

  // A record: where it is, how large, and the seed of its checksum.
  struct Place {
    store::NamespaceHandle ns = 0;
    block::RecordId id;
    std::uint32_t bytes = 0;
    std::uint64_t seed = 0;
  };

  // Opens the namespaces. The store outlives the keyspace. kNoSpace: the store has too many open.
  static Result<std::shared_ptr<RespKeyspace>> open(store::Store& store, const std::string& tenant);
  ~RespKeyspace();
  RespKeyspace(const RespKeyspace&) = delete;
  RespKeyspace& operator=(const RespKeyspace&) = delete;

  [[nodiscard]] Place head(std::string_view key) const;
  [[nodiscard]] Place part(const Key& body, std::uint64_t value_bytes, std::uint32_t i) const;
  // What the head of a key says, when it is in the pool and sound; from inside.
  struct Known {
    std::uint64_t value_bytes = 0;
    Key body;
  };
  [[nodiscard]] std::optional<Known> head_in_pool(std::string_view key) const;
  // Whether a GET would find the key, as far as that can be told at once: of a head on flash its parts are not known.
  [[nodiscard]] bool present(std::string_view key) const;
  // Removes a value: head, and parts as far as they are known (others lie there until their segment is given up).
  // Whether it was present. See Store::remove for how long it stays removed.
  bool remove(std::string_view key);
  void remove_parts(const Known& value);
  // A key for a value of so many parts that no other value has or had.
  [[nodiscard]] Key new_body(std::uint32_t parts);

 private:
  explicit RespKeyspace(store::Store& store) : store_(store) {}
  Status open_one(const std::string& tenant, const std::string& fingerprint, const std::vector<std::uint32_t>& sizes);

  store::Store& store_;
  std::vector<store::NamespaceHandle> handles_;  // of heads, then of parts of 16 sizes each
  std::vector<block::RecordShape> shapes_;       // of heads, then of parts by size
  std::uint64_t next_part_ = 0;                  // with the store's opening: never used again
};

}  // namespace kvd::node
