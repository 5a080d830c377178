// RespPut: a value on its way from a Redis client into the store: received straight into its records, then stored.
//
// begin() takes all the room that the value needs, or says kBusy. The bytes land at place(); then store_parts(), and
// when these have reached the level that is asked for, publish(): the head names them from then on, at once for all
// readers. Whatever ends before that leaves the old value. Belongs to the node's loop; owned by its session, and by
// acknowledgements that the store owes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "block/checksum.h"
#include "node/budget.h"
#include "node/context.h"
#include "node/resp_keyspace.h"

namespace kvd::node {

class RespPut : public std::enable_shared_from_this<RespPut> {
 public:
  RespPut(NodeContext& context, std::shared_ptr<RespKeyspace> keyspace, std::string_view key,
          std::uint64_t value_bytes);
  ~RespPut();
  RespPut(const RespPut&) = delete;
  RespPut& operator=(const RespPut&) = delete;

  // kBusy: no room in the pool, or unfinished puts of the connection or the node have their share, or there is a record
  // under the key of a part already. kNoSpace: it is to reach `level`, and larger than the tenant's quota of flash.
  Status begin(ConnectionBudget& connection_unfinished, AckLevel level);
  // Where the next bytes go; empty when all are in.
  [[nodiscard]] MutableBytes place() const;
  void landed(std::size_t bytes);
  [[nodiscard]] bool complete() const noexcept { return landed_ == value_bytes_; }

  // Requires complete(). `on_done` comes once, from inside when all is known there; not after abort(). An error leaves
  // nothing behind.
  void store_parts(AckLevel level, std::function<void(Status)> on_done);
  // After store_parts() has succeeded. An error (kIo, kBusy) says that the value is stored, but in memory only.
  void publish(AckLevel level, std::function<void(Status)> on_done);
  // Drops what is not published; what the store still owes is ignored.
  void abort();

  [[nodiscard]] const std::string& key() const noexcept { return key_; }
  [[nodiscard]] std::uint64_t value_bytes() const noexcept { return value_bytes_; }

 private:
  struct Part {
    store::PutHandle handle;
    std::uint32_t bytes = 0;  // of the record
    std::uint64_t checksum = 0;
  };

  void finish_part();
  void part_acknowledged(const Status& status);
  void told(Status status);

  NodeContext& context_;
  std::shared_ptr<RespKeyspace> keyspace_;  // until abort(): what the store keeps of this must not hold namespaces
  const std::string key_;
  const std::uint64_t value_bytes_;
  std::function<void(Status)> on_done_;
  store::PutHandle head_;
  std::vector<Part> parts_;  // none: the value lies in the head
  Key body_;
  std::uint64_t landed_ = 0;
  std::optional<block::SlabHasher> hasher_;  // of the part that is coming in
  std::size_t unacknowledged_ = 0;
  Status parts_status_;
  bool parts_stored_ = false;
  bool published_ = false;
  bool aborted_ = false;
  ConnectionBudget::Taken share_;
};

}  // namespace kvd::node
