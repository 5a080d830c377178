// SliceLine: work that takes longer than a turn of the loop may (matches and removals of many records, messages that
// come without a pause, of all sessions), cut into slices. One slice in a turn for all of a line, or those that begin
// within a time; whoever has more stands at its end again, and shares (tenants) come by turns: however many clients ask
// for much, the others wait for these slices of it. Owned by who outlives its users, a node mostly; belongs to its
// loop.
#pragma once

#include <functional>
#include <utility>

#include "io/loop.h"
#include "net/share_lines.h"

namespace kvd::net {

class SliceLine {
 public:
  // Somebody with such work. Leaves the line when destroyed.
  class User {
   public:
    // `slice` does a part of the work and returns whether there is more. It must not destroy the user.
    User(SliceLine& line, std::function<bool()> slice) : line_(line), slice_(std::move(slice)) {}
    User(const User&) = delete;
    User& operator=(const User&) = delete;
    // Goes to the end of the line, unless it stands there already. Never calls back.
    void enter() {
      if (waits()) return;
      line_.line_.enter(place_);
      if (!line_.timer_.armed()) line_.timer_.arm(line_.loop_.now());
    }
    void leave() noexcept { place_.leave(); }
    [[nodiscard]] bool waits() const noexcept { return place_.waits(); }
    // Whose work it is: equal ones share their turns (share_lines.h). Not followed.
    void set_share(const void* share) noexcept { place_.set_share(share); }

   private:
    friend class SliceLine;
    SliceLine& line_;
    std::function<bool()> slice_;
    ShareLines<User>::Place place_{*this};
  };

  // `turn`: slices follow each other for so long in a turn of the loop; zero = one. By a virtual clock a slice that has
  // more must have taken time.
  SliceLine(io::Loop& loop, Duration turn) : loop_(loop), turn_(turn), timer_(loop, [this] { serve(); }) {}
  explicit SliceLine(io::Loop& loop) : SliceLine(loop, Duration::zero()) {}
  SliceLine(const SliceLine&) = delete;
  SliceLine& operator=(const SliceLine&) = delete;
  [[nodiscard]] bool empty() const noexcept { return line_.empty(); }

 private:
  void serve() {
    const Time end = after(loop_.now(), turn_);
    do {
      if (line_.empty()) return;
      User& user = line_.front();
      line_.take(user.place_);
      if (user.slice_()) user.enter();
    } while (loop_.now() < end);
    if (!line_.empty()) timer_.arm(loop_.now());
  }

  io::Loop& loop_;
  const Duration turn_;
  io::Timer timer_;
  ShareLines<User> line_;
};

}  // namespace kvd::net
