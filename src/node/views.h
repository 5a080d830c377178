// Views: what one connection reads of the pool through shared memory. Each view is a message of a GET whose slabs are
// pinned until the client gives it back, until its time has passed, or until the connection ends. Those without a time
// (kNever) the client keeps: see Holdings.
//
// A view whose time has passed holds nothing any more, but its number stays, so that a client that comes late is not
// taken for one that gives back what it does not hold. Bounded by kViewsMax with those. Owned by a session; belongs to
// its loop.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "io/loop.h"
#include "node/counters.h"
#include "wire/message.h"

namespace kvd::node {

class Views {
 public:
  static constexpr std::size_t kViewsMax = 4096;  // ten GETs of 400 layers, each layer a message; 100 bytes each

  Views(io::Loop& loop, NodeCounters& counters);
  ~Views() { clear(); }
  Views(const Views&) = delete;
  Views& operator=(const Views&) = delete;

  // Whether one more can be added.
  [[nodiscard]] bool has_room() const noexcept { return views_.size() < kViewsMax; }
  // The number of the next view; never 0, never reused on a connection.
  [[nodiscard]] std::uint64_t next_id() const noexcept { return next_id_; }
  // Adds it. `unpin` is called once, when nobody reads it any more; it must not add views or end them.
  void add(std::uint64_t bytes, Time until, io::Callback unpin);
  // Ends a view that the client has not been told of. Ignored when it has ended.
  void withdraw(std::uint64_t id);
  // Ends what the client gives back. kCorrupt: one of them was never lent to it, or it gave it back before.
  Status release(const wire::U64View& ids);
  // Ends all of them; all but those that the client keeps.
  void clear();
  void clear_passing();
  // What the client has given back in time so far.
  [[nodiscard]] std::uint64_t given_back_bytes() const noexcept { return given_back_bytes_; }
  // How many hold something, and how many of them the client keeps.
  [[nodiscard]] std::size_t held() const noexcept { return held_; }
  [[nodiscard]] std::size_t kept() const noexcept { return kept_; }

 private:
  struct View {
    std::uint64_t bytes = 0;
    Time until{};
    io::Callback unpin;  // empty: its time has passed
  };
  void end(View& view);
  void expire();

  NodeCounters& counters_;
  io::Loop& loop_;
  io::Timer timer_;
  Time timer_at_ = kNever;
  std::unordered_map<std::uint64_t, View> views_;
  std::uint64_t next_id_ = 1;
  std::uint64_t given_back_bytes_ = 0;
  std::size_t held_ = 0;
  std::size_t kept_ = 0;
};

}  // namespace kvd::node
