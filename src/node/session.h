// Session: what one connection may do and has under way. Speaks the depot's side of the protocol
// (docs/formats/wire.md).
//
// Malformed messages end the connection; requests that cannot be served are answered with a status and one line why.
// Everything a client can make the node hold is bounded (Limits) and freed with the connection: leases, unfinished
// PUTs, pins of GETs. Owned by Node; belongs to its loop.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "net/arena.h"
#include "net/connection.h"
#include "net/ring_stream.h"
#include "net/window.h"
#include "node/checker.h"
#include "node/context.h"
#include "node/few.h"
#include "node/gate.h"
#include "node/get_op.h"
#include "node/holdings.h"
#include "node/match.h"
#include "node/namespace_use.h"
#include "node/put_op.h"
#include "node/stranger.h"
#include "wire/message.h"

namespace kvd::node {

class Session final : private net::MessageHandler {
 public:
  using OnClosed = std::function<void(Session&, const Error&)>;

  // `on_closed` comes once, from the loop; it may destroy the session.
  Session(NodeContext& context, std::uint64_t number, std::unique_ptr<io::Stream> stream, OnClosed on_closed);
  ~Session() override;

  Status start();
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  // Its client has said HELLO.
  [[nodiscard]] bool greeted() const noexcept { return greeted_; }
  // Nothing is under way and nothing waits to be sent.
  [[nodiscard]] bool idle() const noexcept {
    return gets_.empty() && puts_.empty() && matches_.empty() && removals_ == 0 && views_.held() == views_.kept() &&
           connection_->queued_bytes() == 0;
  }
  // GETs that waited for the pin budget may go on.
  void on_room();
  // Which of the node's refusals (NodeContext) its first waiting GET was; 0 = none waits.
  [[nodiscard]] std::uint64_t refused() const noexcept { return refused_; }
  // Since when its client has taken nothing, or given nothing back that it has to, while it pins what others may wait
  // for; kNever otherwise.
  [[nodiscard]] Time stuck_since() const noexcept {
    if (pins_.used() == 0) return kNever;
    return std::min(connection_->stuck_since(), waits_for_window_ ? window_waits_since_ : kNever);
  }
  // Ends the connection; on_closed follows.
  void close(const Error& why) { connection_->close(why); }
  [[nodiscard]] const std::string& peer_name() const noexcept { return peer_name_; }
  [[nodiscard]] const std::string& peer_host() const noexcept { return peer_host_; }
  // Other credentials or certificates count from now on: ends the connection when its client's are not among them.
  void renew_identity();

 private:
  // Of the node's bookkeeping, and what this connection has of it.
  using KeyShare = ConnectionBudget::Taken;
  // What the views of one GET may hold; shared by them and the GET. With its keys: their bookkeeping lasts as long.
  struct LentShare {
    Budget::Share connection, node;
    Budget::Share kept_connection, kept_node;  // of views that the client keeps
    KeyShare keys;
  };
  struct Queued {
    net::SendId id = 0;
    std::uint64_t view = 0;  // that the message tells of; 0 = it carries bytes
  };
  // What a GET or PUT takes of the node's bookkeeping and of its tenant's requests.
  struct Admitted {
    KeyShare keys;
    TenantSlot slot;
  };
  // A GET or PUT with what the session keeps about it.
  struct RunningGet {
    TenantSlot slot;
    SharedNamespace ns;
    std::shared_ptr<GetOp> op;  // also held by the messages it has queued
    KeyShare keys;              // moves to `lent`
    std::unique_ptr<io::Timer> deadline;
    Few<Queued, 2> queued;
    Time arrived{};
    std::uint64_t refused = 0;  // as in refused(); 0 = not yet
    bool lend_decided = false;
    std::shared_ptr<LentShare> lent{};  // null: its slabs are sent as bytes
  };
  // The next message of a GET, while its slabs are being copied to the client's window.
  struct Copying {
    std::shared_ptr<GetOp> op;
    std::uint64_t view = 0;
    std::uint64_t stretch = 0;  // of the window
    std::uint64_t at = 0;       // in the window, of what is left of it
    MutableBytes place{};       // what is left
    std::uint64_t bytes = 0;    // all of them
    net::Outgoing message{};    // its body is what is copied
    std::size_t slab = 0;       // next to copy
    std::size_t offset = 0;     // inside that slab
  };
  struct RunningPut {
    TenantSlot slot;
    SharedNamespace ns;
    std::shared_ptr<PutOp> op;  // also held by acknowledgements that the store owes
    KeyShare keys;
    std::unique_ptr<io::Timer> deadline;
    Time until{};               // nobody holds parts of the pool for longer
    bool idle_limited = false;  // the timer is the limit between two messages, up to then
    Time arrived{};
  };
  // A REMOVE on its way. Its records go a slice at a time (net::SliceLine).
  struct RunningRemove {
    TenantSlot slot;
    wire::Header header;
    SharedNamespace ns;
    std::vector<Key> keys;
    std::vector<std::uint16_t> shards, groups;
    KeyShare share;
    std::size_t next = 0;  // key that is removed next
    std::uint32_t removed = 0;
  };

  // A MATCH on its way, in slices too.
  struct RunningMatch {
    std::uint64_t request_id = 0;
    SharedNamespace ns;
    std::vector<Key> keys;  // of block b of group g at g * blocks + b
    std::vector<std::uint16_t> shards, groups;
    std::uint32_t blocks = 0;
    std::uint32_t lease_ms = 0;  // 0 = no (more) pins
    bool promote = false;
    Time readable{};  // not later than it could be read
    Time arrived{};
    Time deadline = kNever;  // looked at between two slices
    KeyShare share;          // once it takes more than a turn
    TenantSlot slot;         // the same
    PrefixSearch search;
    std::optional<MatchResult> found = std::nullopt;  // when the search is done
    std::uint32_t next_block = 0;                     // of the prefix, to be leased and promoted next
    std::size_t next_group = 0;
    std::uint64_t lease = 0;
    [[nodiscard]] block::RecordId id(std::size_t group, std::uint32_t block, std::uint16_t shard) const;
  };

  // The records of some blocks in a row of one group, looked up together; lives for one slice.
  struct LookedUp {
    std::size_t group = 0;
    std::uint32_t first = 0;  // block
    std::vector<block::RecordId> ids;
    std::vector<Tier> tiers;  // of all shards of the first block, then of the next
  };

  // net::MessageHandler
  Status on_message(const wire::Header& header, Bytes meta) override;
  std::size_t payload_places(std::span<iovec> out) override;
  void payload_landed(std::size_t bytes) override;
  Status on_payload_end() override;
  void on_drained() override { pump(); }
  wire::Buffer farewell(const Error& why, Bytes first_bytes) override;
  void on_closed(const Error& why) override;

  // session.cc: the connection and small requests
  Status on_hello(const wire::Header& header, Bytes meta);
  Status on_request(const wire::Header& header, Bytes meta);
  Status dispatch(const wire::Header& header, Bytes meta);
  void let_in(const wire::Header& hello, std::uint64_t features);
  Status on_open(const wire::Header& header, Bytes meta);
  Status on_close(const wire::Header& header, Bytes meta);
  Status on_remove(const wire::Header& header, Bytes meta);
  bool remove_some(RunningRemove& remove);
  bool remove_next();
  void removal_written(const wire::Header& request, std::uint32_t removed, const Status& written);
  Status on_unpin(const wire::Header& header, Bytes meta);
  Status on_stats(const wire::Header& header, Bytes meta);
  Status on_ping(const wire::Header& header, Bytes meta);
  Status on_cancel(const wire::Header& header, Bytes meta);
  Status on_check(const wire::Header& header, Bytes meta);
  Result<SharedNamespace> namespace_of(std::uint32_t ns) const;
  template <class M>
  Status reply(const wire::Header& request, const M& message, std::uint32_t items = 0);
  Status refuse(const wire::Header& request, const Error& why);
  Status refuse(wire::Opcode opcode, std::uint64_t id, const Error& why);
  // What to do with a request that did not decode: kInvalid is answered, the rest ends the connection.
  Status undecodable(const wire::Header& request, const Error& why);

  // session_auth.cc: who the client is and what it may do
  Status on_stranger(const wire::Header& hello, const wire::Hello& said);
  Status on_auth(const wire::Header& header, Bytes meta);
  // kBusy: the tenant has no connection left; the client is a stranger still.
  Status admit(Gate::Admission admission);
  void turn_away(wire::Opcode opcode, const Error& why);
  void say_unauthorized(wire::Opcode opcode);
  [[nodiscard]] bool may(wire::Opcode opcode) const noexcept;
  Result<TenantSlot> take_slot();

  // session_match.cc
  Status on_match(const wire::Header& header, Bytes meta);
  bool match_some(RunningMatch& match);
  [[nodiscard]] Tier slowest(const RunningMatch& match, LookedUp& ahead, PrefixSearch::Place place) const;
  void keep(RunningMatch& match);
  void answer_match(const RunningMatch& match);
  void end_match(const RunningMatch& match);
  bool match_next();

  // session_memory.cc: what memory a client is given
  [[nodiscard]] std::uint64_t make_memory(std::uint64_t features);
  void offer(std::uint64_t features);
  [[nodiscard]] bool owns(auth::Right right) const noexcept;
  [[nodiscard]] bool may_see_pool() const noexcept;
  void offer_memory();
  bool make_keeper();
  void offer_keeper();
  bool make_rings();
  void offer_rings();
  bool make_arena();
  void offer_arena();

  // session_window.cc: GETs into memory of the client's own
  bool make_window();
  [[nodiscard]] bool goes_through_window(const RunningGet& get);
  bool begin_copying(RunningGet& get);
  void go_on_copying();
  bool copy_some();
  net::Outgoing take_copied(Time until);
  bool drop_copying(const GetOp& op);
  void on_window_room();
  bool copy_next();

  // session_view.cc: GETs through shared memory
  Status on_release(const wire::Header& header, Bytes meta);
  void decide_lending(RunningGet& get);
  bool may_keep_keys(std::uint64_t keys);
  [[nodiscard]] Time lasts_until(const GetOp& get) const;
  net::Outgoing next_message(RunningGet& get, std::uint64_t& view);

  // session_arena.cc: PUTs through memory
  Status on_put_arena(const wire::Header& header, Bytes meta);
  bool take_some();
  bool take_next();
  void on_taken_timer();
  void tell_taken();

  // session_body.cc: GET and PUT
  Status on_get(const wire::Header& header, Bytes meta);
  Status on_put(const wire::Header& header, Bytes meta);
  Status on_put_data(const wire::Header& header, Bytes meta);
  Status check_op(const wire::Header& header);
  Result<Admitted> admit(const wire::Header& header);
  Result<KeyShare> take_keys(std::uint64_t keys);
  void schedule_pump();
  void pump();
  void pump_all();
  void pump_get(RunningGet& get);
  void send_next(RunningGet& get, net::Outgoing message, std::uint64_t view);
  void finish_get(const GetOp& op);
  void end_get(std::uint64_t id, const Error& why);
  void end_put_message(std::uint64_t id);
  void finish_put(std::uint64_t id);
  void end_put(std::uint64_t id, const Error& why);
  void touch_put(RunningPut& put);
  void count_corrupt();
  void forget_corrupt(std::uint64_t id);

  // Slabs of a PUT that was answered and were not what their checksums say: counted a moment later, as a client that
  // cancels a PUT in the middle of a message fills the message up with zeros, and its CANCEL comes behind them.
  struct Doubt {
    std::uint64_t put = 0;
    std::uint64_t slabs = 0;
    Time until{};
  };

  NodeContext& context_;
  const std::uint64_t number_;
  OnClosed on_closed_;
  std::string peer_name_ = "unnamed";
  std::string peer_host_;
  bool greeted_ = false;
  bool awaits_token_ = false;                         // HELLO was answered, AUTH was not
  std::uint64_t asked_ = 0;                           // features of that HELLO
  Stranger stranger_;                                 // until it is known who this is, where that has to be
  auth::SharedIdentity identity_;                     // null: there are no credentials
  SharedTenant tenant_;                               // of the identity
  TenantSlot seat_;                                   // one of the tenant's connections
  bool puts_in_parts_ = false;                        // PUT data need not be whole layers
  bool shares_memory_ = false;                        // the client has the pool's memory
  TenantSlot rings_seat_, arena_seat_, window_seat_;  // its tenant's part of the next ones, where there are tenants
  Budget::Share rings_;                               // one of the node's, where messages go through memory
  std::unique_ptr<net::RingMemory> ring_memory_;      // until the client was told of it
  Budget::Share arena_share_;                         // of the node's bytes of arenas
  std::unique_ptr<net::Arena> arena_;                 // null: slabs of PUTs come as bytes
  Budget::Share window_share_;                        // of the node's bytes of windows
  std::unique_ptr<net::Window> window_;               // null: slabs of GETs are sent as bytes, or lent by the pool
  net::RingStream* stream_ = nullptr;                 // the connection's
  std::vector<SharedNamespace> namespaces_;           // by the handle that the client knows; null = closed

  std::unique_ptr<Holdings> holdings_;  // outlives what is below; the next six are its
  Pins& pins_;
  Budget& lent_;
  Budget& kept_;
  ConnectionBudget& kept_keys_;
  ConnectionBudget& op_keys_;
  Views& views_;
  io::UniqueFd keeper_;          // the client's end, until it is sent
  ConnectionBudget unfinished_;  // of the node's `unfinished`
  io::Timer handshake_timer_;
  io::Timer refusal_timer_;
  io::Timer pump_timer_;
  std::list<RunningGet> gets_;  // in order of arrival: the first one that can send goes first
  std::unordered_map<std::uint64_t, std::list<RunningGet>::iterator> gets_by_id_;
  std::uint64_t refused_ = 0;
  std::unordered_map<std::uint64_t, RunningPut> puts_;
  std::uint64_t lent_now_ = 0;  // bytes in views made in this turn
  std::optional<Copying> copying_;
  std::size_t copies_left_ = 0;    // that this turn may copy
  bool waits_for_window_ = false;  // a GET does, until the client gives something back
  Time window_waits_since_{};      // so long it has given nothing back
  net::SliceLine::User window_slices_;
  std::list<Doubt> doubts_;  // in order of time
  io::Timer doubt_timer_;
  std::list<RunningMatch> matches_;  // in order of arrival; small ones are answered before
  net::SliceLine::User match_slices_;
  std::list<RunningRemove> removes_;
  net::SliceLine::User remove_slices_;
  Checker checker_;
  std::size_t removals_ = 0;  // REMOVEs that are answered when they are written
  std::shared_ptr<Session*> self_ = std::make_shared<Session*>(this);  // what the store calls back finds it gone
  std::uint64_t receiving_put_ = 0;    // whose PUT data is coming in now; 0 = nobody's: it is discarded
  std::uint64_t taking_put_ = 0;       // the same of PUT arena
  Bytes taking_;                       // what of it is still to be copied from the arena
  net::SliceLine::User arena_slices_;  // while that takes more than a turn
  std::uint64_t taking_bytes_ = 0;     // all of it
  io::Timer taken_timer_;
  std::uint64_t arena_taken_ = 0;                // messages
  std::uint64_t arena_told_ = 0;                 // of these, those that the client has been told of
  std::uint64_t arena_untold_bytes_ = 0;         // of the others
  std::unique_ptr<net::Connection> connection_;  // last: its end gives bodies back to the operations above
};

}  // namespace kvd::node
