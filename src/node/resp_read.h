// RespRead: finding one value for a Redis client: its head, then its parts, verified and pinned until they are sent.
//
// The value is one that was current at some moment between begin() and the end: where a SET comes between head and
// parts, the search begins again. A value whose parts are gone, damaged or not all there is a miss, as is a head of
// another key with the same hash. Bounded by the pool's budgets for GETs: no room is kBusy at once. A part's checksum
// takes some 50 us per MiB: larger values wait for that (RespChecks). Belongs to the node's loop; owned by who wants
// the value and by the messages that carry it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/loop.h"
#include "node/budget.h"
#include "node/context.h"
#include "node/pins.h"
#include "node/resp_keyspace.h"
#include "store/store.h"

namespace kvd::node {

class RespRead;

// Reads of one connection whose values are to be verified, first come first served, a part at a time. One part in a
// turn of the loop for all connections in turn: however many values one asks for, others wait for one part of it.
class RespChecks final {
 public:
  explicit RespChecks(net::SliceLine& line) : user_(line, [this] { return check_next(); }) {}
  void set_share(const void* share) noexcept { user_.set_share(share); }
  void enter(RespRead& read);
  void leave(const RespRead& read) noexcept;

 private:
  bool check_next();
  net::SliceLine::User user_;
  std::deque<RespRead*> reads_;
};

class RespRead final {
 public:
  enum class Want : std::uint8_t { kValue, kSize };

  // `connection_pins` is what its connection may pin, `connection_checks` where it waits to be verified; they and all
  // that is borrowed outlive the read, or abort() is called.
  RespRead(NodeContext& context, std::shared_ptr<RespKeyspace> keyspace, Pins& connection_pins,
           RespChecks& connection_checks, std::string_view key, Want want);
  ~RespRead();
  RespRead(const RespRead&) = delete;
  RespRead& operator=(const RespRead&) = delete;

  // Starts; `on_done` comes once, from inside when the answer is known there. It may not destroy the read.
  void begin(std::function<void()> on_done);
  // Ends without a word; what is pinned goes.
  void abort();

  [[nodiscard]] bool done() const noexcept { return done_; }
  // kOk: found; kNotFound: a miss; else why it could not be read.
  [[nodiscard]] Code code() const noexcept { return code_; }
  [[nodiscard]] std::uint64_t value_bytes() const noexcept { return value_bytes_; }
  // The value's bytes [first, first + bytes), in pieces; in the pool as long as this lives. Requires Want::kValue, kOk.
  [[nodiscard]] std::vector<Bytes> pieces(std::uint64_t first, std::uint64_t bytes) const;
  // Of the head that was found: where its parts are.
  [[nodiscard]] const Key& body() const noexcept { return body_; }
  void give_up_pins();

 private:
  friend class RespChecks;
  struct Part {
    store::Get get;
    store::RecordView view;
    RespKeyspace::Place place;
    bool pending = false;
  };

  void search();
  void start(Part& part, const RespKeyspace::Place& place, std::function<void(Result<store::RecordView>)> on_done);
  void head_found(Result<store::RecordView> view);
  void ask_parts();
  void part_found(Part& part, Result<store::RecordView> view);
  bool verify_next();
  [[nodiscard]] bool sound(const Part& part);
  [[nodiscard]] bool reserve(std::uint64_t bytes);
  void again(Code why);
  void finish(Code code);

  NodeContext& context_;
  const std::shared_ptr<RespKeyspace> keyspace_;
  Pins& connection_pins_;
  RespChecks& connection_checks_;
  const std::string key_;
  const Want want_;
  std::function<void()> on_done_;
  Time deadline_{};
  io::Timer next_;
  int attempts_ = 0;
  bool done_ = false;
  Code code_ = Code::kOk;
  std::uint64_t value_bytes_ = 0;
  Key body_;
  Part head_;
  std::vector<Part> parts_;
  std::size_t parts_pending_ = 0;
  std::size_t parts_failed_ = 0;
  Code part_code_ = Code::kOk;
  std::size_t verified_ = 0;
  Pins::Taken share_;
};

}  // namespace kvd::node
