// PutOp: one PUT on its way in: slabs from the socket straight into the pool, or copied there from an arena, verified
// as they land, published when the last layer is in, acknowledged when all records have reached their level.
//
// A key that the store holds already, or has no room for, takes no memory: its slabs are read into scratch. A slab
// whose checksum is wrong fails its key. Dropping the op frees what is unfinished. Owned by its session, and by
// acknowledgements that the store owes; belongs to the node's loop.
#pragma once

#include <sys/uio.h>

#include <memory>
#include <optional>
#include <vector>

#include "block/checksum.h"
#include "block/schema.h"
#include "io/loop.h"
#include "node/context.h"
#include "node/keys.h"
#include "wire/message.h"

namespace kvd::node {

class PutOp : public std::enable_shared_from_this<PutOp> {
 public:
  struct Request {
    std::uint64_t id = 0;
    store::NamespaceHandle ns = 0;
    block::RecordShape shape;
    AckLevel ack = AckLevel::kPooled;
  };

  // `on_done` comes once, possibly from inside begin() or end_message(), when an acknowledgement makes complete() true.
  // `connection_unfinished` is what its connection may hold of the node's budget.
  PutOp(NodeContext& context, ConnectionBudget& connection_unfinished, const Request& request,
        std::unique_ptr<OpKeys> keys, io::Callback on_done);
  ~PutOp();
  PutOp(const PutOp&) = delete;
  PutOp& operator=(const PutOp&) = delete;

  // Reserves the records. Afterwards complete() may be true already: when nothing of it is needed.
  void begin();
  // A PUT data message starts. kCorrupt: not the next slabs of this operation, or another size.
  Status begin_message(const wire::Header& header, const wire::PutData& data);
  // The same of a message whose slabs lie in memory that its sender can write to: its bytes come with take().
  Status begin_slabs(const wire::Header& header, std::uint32_t key_first, wire::U64View checksums);
  // The next bytes of such a message, which may change meanwhile: they are read once, and what is verified is the copy
  // in the record.
  void take(Bytes from);
  // See net::MessageHandler.
  std::size_t places(std::span<iovec> out);
  void landed(std::size_t bytes);
  // The message's payload is in; with the last layer the records are published.
  void end_message();
  // Frees what is unfinished; on_done does not come any more.
  void abort();

  // All layers are in (or nothing of them is needed) and acknowledged.
  [[nodiscard]] bool complete() const noexcept { return receiving_ == 0 && unacknowledged_ == 0; }
  [[nodiscard]] const FailedKeys& failed() const noexcept { return failed_; }
  // Why the first key that failed did, in time; kOk when none has.
  [[nodiscard]] const Error& first_failure() const noexcept { return first_failure_; }
  // Slabs that were not what their checksums say.
  [[nodiscard]] std::uint64_t corrupt_slabs() const noexcept { return corrupt_slabs_; }
  [[nodiscard]] const Request& request() const noexcept { return request_; }
  [[nodiscard]] std::size_t keys() const noexcept { return keys_->count(); }

 private:
  struct Record {
    store::PutHandle handle;  // empty: present already, failed, or published
    std::size_t row = 0;      // of checksums_, for one that had a handle
    ConnectionBudget::Taken share;
  };

  void slab_landed();
  void judge_slab(std::size_t key, std::size_t layer, std::uint64_t found);
  void await_present(std::size_t key);
  void publish();
  void acknowledged(std::size_t key, Status result);
  void fail_key(std::size_t key, const Error& why);
  void drop(std::size_t key);
  [[nodiscard]] Status reserve(Record& record);
  [[nodiscard]] std::size_t slabs() const noexcept { return std::size_t{request_.shape.layers} * keys_->count(); }
  [[nodiscard]] std::uint64_t& checksum(std::size_t key, std::size_t layer) {
    return checksums_[records_[key].row * request_.shape.layers + layer];
  }

  NodeContext& context_;
  ConnectionBudget& connection_unfinished_;
  const Request request_;
  const std::unique_ptr<OpKeys> keys_;
  io::Callback on_done_;
  FailedKeys failed_;
  std::vector<Record> records_;           // by key
  std::vector<std::uint64_t> checksums_;  // a row of layers for each record that is received: 8 bytes for a slab's room
  std::size_t receiving_ = 0;             // records with a handle
  std::size_t unacknowledged_ = 0;        // published ones
  Error first_failure_{.code = Code::kOk};
  std::uint64_t corrupt_slabs_ = 0;
  bool aborted_ = false;

  // Slabs are counted in layer order, all keys of a layer together.
  std::size_t slab_ = 0;                     // the one that bytes land in now, or the next
  std::size_t slab_landed_ = 0;              // bytes of it
  std::size_t message_end_ = 0;              // the first one behind the message being received
  std::optional<block::SlabHasher> hasher_;  // of the slab that take() is in
};

}  // namespace kvd::node
