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
  user.line_ = &line_of(user.share_);
  user.place_ = user.line_->users.insert(user.line_->users.end(), &user);
  if (!timer_.armed()) timer_.arm(loop_.now());
}

BodyTurns::Line& BodyTurns::line_of(const void* share) {
  const auto [at, is_new] = lines_.try_emplace(share);
  Line& line = at->second;
  if (is_new) {
    line.share = share;
    line.place = order_.insert(order_.end(), &line);
  }
  return line;
}

void BodyTurns::drop_if_empty(Line& line) noexcept {
  if (&line == &behind_ || !line.users.empty()) return;
  order_.erase(line.place);
  lines_.erase(lines_.find(line.share));
}

void BodyTurns::leave(User& user) noexcept {
  if (user.line_ == nullptr) return;
  if (asked_ == user.place_) ++asked_;
  Line& line = *std::exchange(user.line_, nullptr);
  line.users.erase(user.place_);
  drop_if_empty(line);
}

void BodyTurns::look_behind() {
  if (behind_.users.empty()) return;
  if (asked_ == behind_.users.end()) asked_ = behind_.users.begin();
  User& user = **asked_++;
  if (user.untaken_bytes() >= kUntakenBytes) return;
  user.line_ = &line_of(user.share_);
  user.line_->users.splice(user.line_->users.end(), behind_.users, user.place_);
}

// Who is served next; null: nobody waits. Who is alone in line is not asked.
BodyTurns::User* BodyTurns::next() {
  if (turns_behind_ >= kBehindTurns && !behind_.users.empty()) return behind_.users.front();
  while (!order_.empty()) {
    Line& line = *order_.front();
    User* const user = line.users.front();
    const bool alone = behind_.users.empty() && order_.size() == 1 && line.users.size() == 1;
    if (alone || user->untaken_bytes() < kUntakenBytes) return user;
    user->line_ = &behind_;
    behind_.users.splice(behind_.users.end(), line.users, user->place_);
    drop_if_empty(line);
  }
  return behind_.users.empty() ? nullptr : behind_.users.front();
}

void BodyTurns::serve() {
  turn_left_ = kTurnBytes;
  turn_end_ = after(loop_.now(), kTurnTime);
  look_behind();
  turns_behind_ = behind_.users.empty() ? 0 : turns_behind_ + 1;
  while (turn_left_ > 0) {
    User* const user = next();
    if (user == nullptr) break;
    if (user->line_ == &behind_) {
      turns_behind_ = 0;
    } else {
      order_.splice(order_.end(), order_, user->line_->place);
    }
    leave(*user);
    serving_ = user;
    slice_left_ = std::min(kSliceBytes, turn_left_);
    user->on_body_turn();
    serving_ = nullptr;
    if (loop_.now() >= turn_end_) break;
  }
  if (!order_.empty() || !behind_.users.empty()) timer_.arm(loop_.now());
}

}  // namespace kvd::net
