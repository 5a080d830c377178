// GetOp: one GET on its way: records from the store into GET data messages, in layer order.
//
// Records in the pool leave in messages of several layers. Records on flash are asked of the store in groups of layers,
// for all keys in order; groups are read ahead while earlier layers are being sent, up to a window. A message covers
// whole layers of all keys that have not failed. All records of a GET are pinned or read into the pool, so their bytes
// are taken from one budget before the first is touched: a GET that waits for the budget holds nothing, and who holds a
// share never waits for more.
//
// A GET of more than its budget, or with more on flash than the pool has room for, streams: it pins records of the
// pool, first keys first, for half of the budget, and all others pass through the other half, a group of layers at a
// time. So a prefix larger than the pool is delivered whole, as long as one layer of all its records fits.
//
// The layers of a record are of one put: where it is replaced by other bytes between two groups, its key fails.
//
// Owned by its session, and by the messages it has queued: memory stays pinned until the last of them is in the socket,
// or, for one that the client reads from shared memory, until it is given back.
// Belongs to the node's loop.
#pragma once

#include <memory>
#include <vector>

#include "io/loop.h"
#include "net/connection.h"
#include "node/context.h"
#include "node/few.h"
#include "node/keys.h"
#include "node/pins.h"
#include "wire/message.h"

namespace kvd::node {

class GetOp : public std::enable_shared_from_this<GetOp> {
 public:
  struct Request {
    std::uint64_t id = 0;
    store::NamespaceHandle ns = 0;
    std::uint32_t slab_bytes = 0;
    std::uint32_t slab_stride = 0;  // with padding: what a slab takes in the pool
    std::uint32_t record_bytes = 0;
    std::uint16_t layer_first = 0;
    std::uint16_t layer_end = 0;  // > layer_first
    bool stop_at_first_failure = false;
    bool keep = false;  // its views are kept until the client gives them back, and used when all are there
    Time deadline = kNever;
  };

  // `on_progress` comes from the loop, never from inside a call of this object, when advance() has work.
  // `connection_pins` is what its connection may pin of the node's budget.
  GetOp(NodeContext& context, Pins& connection_pins, const Request& request, std::unique_ptr<OpKeys> keys,
        io::Callback on_progress);
  ~GetOp();
  GetOp(const GetOp&) = delete;
  GetOp& operator=(const GetOp&) = delete;

  // Asks the store for as much as the window allows; call after construction, after on_progress, and when the budget
  // has room again.
  void advance();
  // It has what it may pin, or needs nothing. Until then it holds nothing and waits for the budgets.
  [[nodiscard]] bool started() const noexcept { return started_; }
  // The next message can be made.
  [[nodiscard]] bool ready() const;
  // Makes it. Requires ready(). The last one has flag `last`.
  net::Outgoing next();
  // The same as GET view number `view`: it says where the slabs lie, and its on_done is to be called when nobody reads
  // them any more. Requires that some key has not failed.
  net::Outgoing next_view(std::uint64_t view);
  // The same of slabs that are to be copied, one behind the other as they are in the body, to `offset` of memory that
  // the client reads; its on_done is to be called when they are.
  // As many layers as have `bytes_max`, at least one.
  net::Outgoing next_copied(std::uint64_t view, std::uint64_t offset, std::uint64_t bytes_max);
  // Slab bytes of that message. Requires ready().
  [[nodiscard]] std::uint64_t next_bytes(std::uint64_t bytes_max) const {
    return failed_.left() == 0 ? 0 : slab_bytes(message_end(bytes_max) - next_layer_);
  }
  // It asks for more of flash than it may have in the pool at a time: what it reads is given up when it is sent.
  [[nodiscard]] bool streams() const noexcept { return streams_; }
  // What it has pinned counts as its client's no more, who keeps it and may go on getting other records.
  void leave_connection() { share_.connection.release(); }
  // All messages have been made.
  [[nodiscard]] bool finished() const noexcept { return next_layer_ == request_.layer_end; }
  // Asks the store for nothing more and ignores what comes; on_progress does not come any more.
  void abort();

  [[nodiscard]] const Request& request() const noexcept { return request_; }
  [[nodiscard]] std::size_t failed() const noexcept { return failed_.failed(); }
  [[nodiscard]] std::size_t keys() const noexcept { return keys_->count(); }
  // Bytes of the pool that it may hold, as taken from the budget.
  [[nodiscard]] std::uint64_t share_bytes() const noexcept { return share_bytes_; }
  // Layers that are in no message yet.
  [[nodiscard]] std::uint32_t layers_left() const noexcept {
    return static_cast<std::uint32_t>(request_.layer_end - next_layer_);
  }
  // Slab bytes of a message with these layers.
  [[nodiscard]] std::uint64_t slab_bytes(std::uint32_t layers) const noexcept {
    return std::uint64_t{layers} * failed_.left() * request_.slab_bytes;
  }

 private:
  // One record, or a stretch of its layers, asked of the store and then held.
  struct Fetch {
    store::Get get;
    store::RecordView view;
    std::size_t key = 0;
    bool active = false;  // the store owes an on_done
  };
  // Adjacent layers of all records that come from flash. Owned by the op and by messages that carry its layers.
  struct Group {
    std::uint16_t first = 0;
    std::uint16_t end = 0;
    std::vector<Fetch> fetches;
    std::size_t pending = 0;   // fetches that the store has not answered
    std::size_t messages = 0;  // queued ones that carry its layers
    bool taken = false;        // all its layers are in messages
    std::uint64_t bytes = 0;
  };

  bool ask_pool();
  bool take_share(std::span<const Tier> tiers);
  [[nodiscard]] std::uint16_t group_layers() const;
  bool ask_group();
  void start(Fetch& fetch, std::size_t key, std::uint16_t first, std::uint16_t end, std::size_t& pending);
  void arrived(Fetch& fetch, Result<store::RecordView> result);
  [[nodiscard]] bool is_same(std::size_t key, std::uint64_t content);
  void cancel_useless();
  void stop(Fetch& fetch);
  void fail_key(std::size_t key);
  [[nodiscard]] bool streaming() const;
  [[nodiscard]] std::uint16_t message_end(std::uint64_t bytes_max) const;
  [[nodiscard]] std::uint16_t kept_end() const;
  // A record that is alive: what is pinned of it, and the layer that this begins with.
  struct Stretch {
    const store::RecordView* view = nullptr;
    std::uint16_t first = 0;
  };
  using Stretches = Few<Stretch, 8>;
  using Numbers = Few<std::uint64_t, 16>;
  [[nodiscard]] Stretches living() const;
  wire::Header take_layers(std::shared_ptr<Group>& carried, std::uint16_t end);
  void gather(const wire::Header& header, const Stretches& records, std::vector<Bytes>& slabs,
              Numbers& checksums) const;
  [[nodiscard]] io::Callback done_with(std::shared_ptr<Group> carried);
  void message_done(Group& group);

  NodeContext& context_;
  Pins& connection_pins_;
  const Request request_;
  const std::unique_ptr<OpKeys> keys_;
  io::Callback on_progress_;
  FailedKeys failed_;
  bool started_ = false;
  bool aborted_ = false;

  Few<Fetch, 1> records_;  // by key; of records that were in the pool
  Pins::Taken share_;
  std::uint64_t share_bytes_ = 0;
  std::uint64_t refused_bytes_ = 0;  // of the budgets; asked for again before the keys are looked up again
  std::size_t records_pending_ = 0;
  bool streams_ = false;                        // groups keep nothing in the pool
  std::uint64_t window_max_;                    // bytes of groups that may be read ahead
  std::vector<std::size_t> flash_keys_;         // keys that are read in groups
  Few<std::uint64_t, 4> contents_;              // by key; RecordView::content of its first group, 0: not read yet
  std::vector<std::shared_ptr<Group>> groups_;  // a few: read or being read, not yet wholly in messages
  std::uint64_t window_bytes_ = 0;              // of groups that are not yet sent
  std::uint16_t next_read_;                     // first layer of the next group
  std::uint16_t next_layer_;                    // first layer of the next message
};

}  // namespace kvd::node
