// BodyTurns: whose bodies move now, of all connections of one loop, so that what is small waits for none of them for
// long. Owned by the node, which outlives its connections; belongs to its loop.
//
// A body moves in slices. Connections that have more than 64 KiB of bodies to send or to receive stand in line, those
// of each share (a tenant's) in one of its own, and once in a turn of the loop, behind everything that has come and its
// small answers, shares get a slice by turns until the turn's time or bytes are used up; then the loop looks for what
// has come. So a tenant has no more of them for having more connections. Who has more goes to the end of its share's
// line, and a share that was served behind the others. Each slice is 128 KiB at most, a turn 50 us or 256 KiB of them
// and the end of the last slice: what comes meanwhile waits for that.
//
// Whose peer has still to take kUntakenBytes of what it was sent stands behind all others, where shares have their
// turns, too: it has what to read, and many who do not read at all would otherwise move a socket's buffer each,
// megabytes, before those who do. One of them is asked again in each turn of the loop, and one has a slice in
// kBehindTurns all the same: so that who reads slowly goes on, and that the socket of who does not is full in the end,
// which is what limits on its time go by.
//
// Where for a second nobody has said anything but those who move bodies themselves, there is nobody who could wait:
// those of one share have no line, and move as much in a turn as they like (connection.h, Turns). Those of several
// have longer slices, of 1 MiB, and turns of 1 ms, of which each counts as kBehindTurns for those behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "io/loop.h"
#include "net/share_lines.h"

namespace kvd::net {

class BodyTurns {
 public:
  static constexpr std::size_t kSmallBytes = std::size_t{64} << 10;  // no body: moves at once
  static constexpr std::size_t kSliceBytes = std::size_t{128} << 10;
  static constexpr std::size_t kTurnBytes = 2 * kSliceBytes;
  static constexpr std::size_t kUntakenBytes = std::size_t{512} << 10;
  static constexpr int kBehindTurns = 16;
  static constexpr Duration kTurnTime = std::chrono::microseconds(50);
  static constexpr std::size_t kLongSliceBytes = std::size_t{1} << 20;
  static constexpr Duration kLongTurnTime = Millis(1);
  static constexpr Duration kQuiet = std::chrono::seconds(1);
  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

  // A connection. Leaves the line when it closes.
  class User {
   public:
    virtual ~User() = default;

   protected:
    void set_share(const void* share) noexcept {
      for (auto* const place : {&place_, &behind_, &asked_}) place->set_share(share);
    }

   private:
    friend class BodyTurns;
    // It may move a slice now: ask() says how much. Must not destroy the user.
    virtual void on_body_turn() = 0;
    // Bytes that its peer was sent and has not taken, as near as that is known; 0 when it waits to receive, as its peer
    // may read when that has been taken.
    [[nodiscard]] virtual std::size_t untaken_bytes() const = 0;
    ShareLines<User>::Place place_{*this};
    ShareLines<User>::Place behind_{*this};  // all others; of these two it stands in one
    ShareLines<User>::Place asked_{*this};   // to be asked again; while it stands behind
    Time moves_until_ = Time::min();         // a second behind the last time that it had a body to move
  };

  explicit BodyTurns(io::Loop& loop) : loop_(loop), timer_(loop, [this] { serve(); }) {}
  BodyTurns(const BodyTurns&) = delete;
  BodyTurns& operator=(const BodyTurns&) = delete;

  // Something has come from this connection.
  void note(const User& user);
  // Whether for a second nobody has said anything but those who move bodies here.
  [[nodiscard]] bool is_alone() const { return loop_.now() >= alone_from_; }
  // How many bytes of bodies it may move now. 0: it stands in line, and on_body_turn() will come. kNoLimit: its share
  // is alone, and may be so: not while other threads move bodies, too, which the loop has to look after. Never calls
  // back.
  std::size_t ask(User& user, bool alone = true);
  // It has moved so many.
  void spend(const User& user, std::size_t bytes) noexcept;
  void leave(User& user) noexcept;

 private:
  void enter(User& user);
  [[nodiscard]] User* next();
  void look_behind();
  void go_behind(User& user);
  void serve();

  io::Loop& loop_;
  io::Timer timer_;
  ShareLines<User> line_;
  ShareLines<User> behind_;               // whose peers have much to take
  ShareLines<User> to_ask_;               // the same, the next one to be asked first
  int turns_behind_ = 0;                  // in which one of these waited, since one was served
  const User* last_ = nullptr;            // who was active last; maybe gone
  Time alone_from_ = Time::min();         // unless another one becomes active
  const void* last_share_ = nullptr;      // whose bodies moved last
  Time other_share_until_ = Time::min();  // it counts as another share beside one that moves some until then
  Time one_share_from_ = Time::min();
  Time short_until_ = Time::min();  // other threads move bodies, too
  const User* serving_ = nullptr;
  std::size_t slice_left_ = 0;  // of who is served
  std::size_t turn_left_ = 0;
  Time turn_end_{};
};

}  // namespace kvd::net
