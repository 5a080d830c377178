// RespKeyspace: the part of a tenant's namespaces in which Redis clients store values: which record of the store is
// which head or part (resp_value.h). Belongs to the node's loop; one for a tenant and node, for as long as a client of
// it is there.
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

  // Opens the namespaces. The store outlives the keyspace, and so does `next_part`, which counts the keys of parts for
  // the opening of the store: a keyspace that comes later must not use them again. kNoSpace: the store has too many
  // open.
  static Result<std::shared_ptr<RespKeyspace>> open(store::Store& store, const std::string& tenant,
                                                    std::uint64_t& next_part);
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
  // The same of a value that is being replaced: remove_replaced() follows when its successor is there.
  void will_replace() noexcept { ++replacements_; }
  void remove_replaced(const Known& value);
  [[nodiscard]] bool replaces() const noexcept { return replacements_ > 0; }
  // A key for a value of so many parts that no other value has or had.
  [[nodiscard]] Key new_body(std::uint32_t parts);

 private:
  RespKeyspace(store::Store& store, std::uint64_t& next_part) : store_(store), next_part_(next_part) {}
  Status open_one(const std::string& tenant, const std::string& fingerprint, const std::vector<std::uint32_t>& sizes);

  store::Store& store_;
  std::vector<store::NamespaceHandle> handles_;  // of heads, then of parts of 16 sizes each
  std::vector<block::RecordShape> shapes_;       // of heads, then of parts by size
  std::uint64_t& next_part_;                     // with the store's opening: never used again
  std::size_t replacements_ = 0;
};

}  // namespace kvd::node
