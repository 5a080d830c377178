// Movers: threads beside a loop that send bodies for its connections, so that the kernel's copies of them take other
// cores than the loop's. Owned by the node, which outlives its connections; belongs to its loop, and only the threads'
// own work is done elsewhere. Plain sockets only (io::Stream::bare_socket()).
//
// A connection asks for a list, fills it with pieces (1 MiB at most), and hands it over with its socket. A thread sends
// them, in calls of 128 KiB that do not wait, until all is taken, the socket is full, or it fails; then on_moved()
// comes on the loop's thread. Meanwhile the connection sends nothing, keeps the socket open, and keeps the memory that
// the pieces name; everything else about it goes on. It has one list at a time.
//
// Who must have the memory back at once calls recall(), which waits for the call that is under way: 30 us of copying,
// or as long as a thread of this process waits for a core. While a thread is within a call whoever receives from the
// same socket waits as long, as the kernel locks it.
//
// There are two lists for each thread, so that one waits for it while the loop is busy; the second is given only while
// somebody is left for the loop's own thread to move. Who finds none stands in line, and gets one when it is free:
// shares (tenants) by turns, within one first come, first served; who has more goes to the end.
#pragma once

#include <sys/uio.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/result.h"
#include "io/loop.h"
#include "net/share_lines.h"

namespace kvd::net {

class Movers {
  struct Move;

 public:
  static constexpr std::uint32_t kThreadsMax = 63;
  static constexpr std::size_t kMoveBytes = std::size_t{1} << 20;
  static constexpr std::size_t kBytesMin = std::size_t{256} << 10;  // less is sent sooner than a thread is woken
  static constexpr std::size_t kCallBytes = std::size_t{128} << 10;
  static constexpr std::size_t kPiecesMax = 1024;  // IOV_MAX on Linux
  static constexpr Duration kQuiet = Millis(100);

  // What became of a list.
  struct Moved {
    std::size_t bytes = 0;
    std::uint32_t calls = 0;
    std::optional<Error> error;  // none: all was taken, or it was recalled; kBusy: the socket is full; others end it
  };
  // Sends without waiting, as io::Stream::send().
  using Send = std::function<Result<std::size_t>(int socket, std::span<const iovec> pieces)>;

  // A connection. Leaves the line, and recalls what it has handed over, before it is gone.
  class User {
   public:
    virtual ~User() = default;

   protected:
    void set_share(const void* share) noexcept { place_.set_share(share); }

   private:
    friend class Movers;
    Move* move_ = nullptr;
    // A list is free for it: ask() gives one. Must not destroy the user.
    virtual void on_mover() = 0;
    // No thread reads its pieces any more. Must not destroy the user.
    virtual void on_moved(const Moved& moved) = 0;
    ShareLines<User>::Place place_{*this};
  };

  // kIo when not one of `threads` can be had: fewer are slower, not wrong.
  // `send` is for tests; empty: the system's.
  static Result<std::unique_ptr<Movers>> start(io::Loop& loop, std::uint32_t threads, Send send = {});
  // Waits for the threads. Nothing is handed over any more. Not from inside a callback of a user.
  ~Movers();
  Movers(const Movers&) = delete;
  Movers& operator=(const Movers&) = delete;

  // It has bodies to send. Whether for kQuiet nobody else had: it gains nothing by a thread then.
  bool is_alone(const User& user);
  // The list to fill now, to be handed over before the next call of anything here, or left. Empty: none is free or
  // others were first; the user stands in line and on_mover() will come. Never calls back.
  std::span<iovec> ask(User& user);
  // Hands over the first `pieces` (at least one, none empty) of the list, to be sent through `socket`.
  void move(User& user, int socket, std::size_t pieces);
  [[nodiscard]] bool moves(const User& user) const noexcept { return user.move_ != nullptr; }
  // Takes back what was handed over: no thread reads it when this returns, and on_moved() does not come for it. What
  // had been sent by then was sent. Requires moves().
  Moved recall(User& user);
  // Stands in line: on_mover() comes from the loop.
  void enter(User& user);
  void leave(User& user) noexcept;

 private:
  // The way back to the loop. Owners: this and what it has posted, which outlives it.
  struct Back {
    Movers* movers;  // null once they are gone; read and written on the loop's thread only
  };

  Movers(io::Loop& loop, Send send);
  void run();
  void send_all(Move& move) const;
  void deliver();
  void serve();
  Moved give_back(User& user);
  [[nodiscard]] bool has_list(std::size_t others) const noexcept;

  io::Loop& loop_;
  const Send send_;
  const std::shared_ptr<Back> back_;
  io::Timer timer_;  // serves the line
  std::vector<std::unique_ptr<Move>> moves_;
  std::vector<Move*> free_;
  ShareLines<User> line_;
  const User* serving_ = nullptr;
  const User* last_ = nullptr;  // who had bodies last; maybe gone
  Time alone_from_ = Time::min();

  std::mutex mutex_;  // guards the rest
  std::condition_variable wake_, ended_;
  std::vector<Move*> handed_;  // in the order in which they came
  std::vector<Move*> done_;
  bool posted_ = false;  // deliver() is on its way
  bool stopped_ = false;
  std::vector<std::thread> threads_;  // last
};

}  // namespace kvd::net
