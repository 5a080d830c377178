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

void BodyTurns::spend(const User& user, std::size_t bytes) noexcept {
  if (serving_ != &user) return;
  slice_left_ -= std::min(slice_left_, bytes);
  turn_left_ -= std::min(turn_left_, bytes);
}

void BodyTurns::enter(User& user) {
  if (std::exchange(user.waits_, true)) return;
  user.place_ = line_.insert(line_.end(), &user);
  if (!timer_.armed()) timer_.arm(loop_.now());
}

void BodyTurns::leave(User& user) noexcept {
  if (std::exchange(user.waits_, false)) line_.erase(user.place_);
}

void BodyTurns::serve() {
  turn_left_ = kTurnBytes;
  turn_end_ = after(loop_.now(), kTurnTime);
  while (!line_.empty() && turn_left_ > 0) {
    User& user = *line_.front();
    leave(user);
    serving_ = &user;
    slice_left_ = std::min(kSliceBytes, turn_left_);
    user.on_body_turn();
    serving_ = nullptr;
    if (loop_.now() >= turn_end_) break;
  }
  if (!line_.empty()) timer_.arm(loop_.now());
}

}  // namespace kvd::net
