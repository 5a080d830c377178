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
  if (user.line_ != nullptr) return;
  user.line_ = &line_;
  user.place_ = line_.insert(line_.end(), &user);
  if (!timer_.armed()) timer_.arm(loop_.now());
}

void BodyTurns::leave(User& user) noexcept {
  if (user.line_ == nullptr) return;
  if (asked_ == user.place_) ++asked_;
  std::exchange(user.line_, nullptr)->erase(user.place_);
}

void BodyTurns::move(User& user, std::list<User*>& to) noexcept {
  if (asked_ == user.place_) ++asked_;
  to.splice(to.end(), *user.line_, user.place_);
  user.line_ = &to;
}

void BodyTurns::look_behind() {
  if (behind_.empty()) return;
  if (asked_ == behind_.end()) asked_ = behind_.begin();
  User& user = **asked_++;
  if (user.untaken_bytes() < kUntakenBytes) move(user, line_);
}

// Who is served next; null: nobody waits. Who is alone in line is not asked.
BodyTurns::User* BodyTurns::next() {
  if (turns_behind_ >= kBehindTurns && !behind_.empty()) return behind_.front();
  while (!line_.empty()) {
    User* const user = line_.front();
    if (line_.size() + behind_.size() == 1 || user->untaken_bytes() < kUntakenBytes) return user;
    move(*user, behind_);
  }
  return behind_.empty() ? nullptr : behind_.front();
}

void BodyTurns::serve() {
  turn_left_ = kTurnBytes;
  turn_end_ = after(loop_.now(), kTurnTime);
  look_behind();
  turns_behind_ = behind_.empty() ? 0 : turns_behind_ + 1;
  while (turn_left_ > 0) {
    User* const user = next();
    if (user == nullptr) break;
    if (user->line_ == &behind_) turns_behind_ = 0;
    leave(*user);
    serving_ = user;
    slice_left_ = std::min(kSliceBytes, turn_left_);
    user->on_body_turn();
    serving_ = nullptr;
    if (loop_.now() >= turn_end_) break;
  }
  if (!line_.empty() || !behind_.empty()) timer_.arm(loop_.now());
}

}  // namespace kvd::net
