#include "net/body_turns.h"

#include <algorithm>

namespace kvd::net {

void BodyTurns::note(const User& user) {
  if (last_ == &user) return;
  const Time now = loop_.now();
  if (last_ != nullptr && user.moves_until_ <= now) alone_from_ = after(now, kQuiet);
  last_ = &user;
}

std::size_t BodyTurns::ask(User& user, bool alone) {
  note(user);
  const Time now = loop_.now();
  user.moves_until_ = after(now, kQuiet);
  if (!alone) short_until_ = after(now, kQuiet);
  if (last_share_ != user.place_.share() && now < other_share_until_) one_share_from_ = after(now, kQuiet);
  last_share_ = user.place_.share();
  other_share_until_ = after(now, kQuiet);
  if (serving_ == &user) {
    if (slice_left_ > 0 && now < turn_end_) return slice_left_;
  } else if (serving_ == nullptr && alone && is_alone() && now >= one_share_from_) {
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
  if (user.place_.waits() || user.behind_.waits()) return;
  line_.enter(user.place_);
  if (!timer_.armed()) timer_.arm(loop_.now());
}

void BodyTurns::leave(User& user) noexcept {
  for (auto* const place : {&user.place_, &user.behind_, &user.asked_}) place->leave();
}

void BodyTurns::look_behind() {
  User& user = to_ask_.front();
  to_ask_.take(user.asked_);
  if (user.untaken_bytes() >= kUntakenBytes) return to_ask_.enter(user.asked_);
  user.behind_.leave();
  line_.enter(user.place_);
}

void BodyTurns::go_behind(User& user) {
  user.place_.leave();
  behind_.enter(user.behind_);
  to_ask_.enter(user.asked_);
}

// Who is served next; null: nobody waits. Who is alone in line is not asked.
BodyTurns::User* BodyTurns::next() {
  if (turns_behind_ >= kBehindTurns && !behind_.empty()) return &behind_.front();
  while (!line_.empty()) {
    User& user = line_.front();
    const bool alone = behind_.empty() && line_.size() == 1;
    if (alone || user.untaken_bytes() < kUntakenBytes) return &user;
    go_behind(user);
  }
  return behind_.empty() ? nullptr : &behind_.front();
}

void BodyTurns::serve() {
  const bool takes_long = is_alone() && loop_.now() >= short_until_;
  turn_left_ = takes_long ? kNoLimit : kTurnBytes;
  turn_end_ = after(loop_.now(), takes_long ? kLongTurnTime : kTurnTime);
  const int as_many = takes_long ? kBehindTurns : 1;  // short ones
  for (auto i = std::min(static_cast<std::size_t>(as_many), to_ask_.size()); i > 0; --i) look_behind();
  turns_behind_ = behind_.empty() ? 0 : turns_behind_ + as_many;
  while (turn_left_ > 0) {
    User* const user = next();
    if (user == nullptr) break;
    if (user->behind_.waits()) {
      turns_behind_ = 0;
      behind_.take(user->behind_);
    } else {
      line_.take(user->place_);
    }
    leave(*user);
    serving_ = user;
    slice_left_ = std::min(takes_long ? kLongSliceBytes : kSliceBytes, turn_left_);
    user->on_body_turn();
    serving_ = nullptr;
    if (loop_.now() >= turn_end_) break;
  }
  if (!line_.empty() || !behind_.empty()) timer_.arm(loop_.now());
}

}  // namespace kvd::net
