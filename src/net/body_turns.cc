#include "net/body_turns.h"

#include <algorithm>
#include <utility>

namespace kvd::net {

void BodyTurns::note(const User& user) {
  if (last_ == &user) return;
  const Time now = loop_.now();
  if (last_ != nullptr && user.moves_until_ <= now) alone_from_ = after(now, kQuiet);
  last_ = &user;
}

std::size_t BodyTurns::ask(User& user, bool alone) {
  note(user);
  user.moves_until_ = after(loop_.now(), kQuiet);
  if (serving_ == &user) {
    if (slice_left_ > 0 && loop_.now() < turn_end_) return slice_left_;
  } else if (serving_ == nullptr && alone && is_alone()) {
    return kNoLimit;
  }
  enter(user);
  return 0;
}

void BodyTurns::spend(User& user, std::size_t bytes) noexcept {
  if (serving_ == &user || bytes > kSmallBytes) {
    user.moved_at_ = loop_.now();
    user.first_left_ -= std::min(user.first_left_, bytes);
  }
  if (serving_ != &user) return;
  slice_left_ -= std::min(slice_left_, bytes);
  turn_left_ -= std::min(turn_left_, bytes);
}

void BodyTurns::enter(User& user) {
  if (std::exchange(user.waits_, true)) return;
  if (loop_.now() >= after(user.moved_at_, kRest)) user.first_left_ = kFirstBytes;
  user.first_ = user.first_left_ > 0;
  std::list<User*>& line = line_of(user);
  user.place_ = line.insert(line.end(), &user);
  if (!timer_.armed()) timer_.arm(loop_.now());
}

void BodyTurns::leave(User& user) noexcept {
  if (std::exchange(user.waits_, false)) line_of(user).erase(user.place_);
}

void BodyTurns::serve() {
  turn_left_ = kTurnBytes;
  turn_end_ = after(loop_.now(), kTurnTime);
  const auto waits = [this] { return !line_.empty() || !first_line_.empty(); };
  while (waits() && turn_left_ > 0) {
    first_served_ = !first_line_.empty() && (line_.empty() || !first_served_);
    User& user = *(first_served_ ? first_line_ : line_).front();
    leave(user);
    serving_ = &user;
    slice_left_ = std::min(kSliceBytes, turn_left_);
    user.on_body_turn();
    serving_ = nullptr;
    if (loop_.now() >= turn_end_) break;
  }
  if (waits()) timer_.arm(loop_.now());
}

}  // namespace kvd::net
