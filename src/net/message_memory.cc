#include "net/message_memory.h"

#include <utility>

namespace kvd::net {

bool MessageMemory::User::hold(std::size_t bytes, std::uint64_t message) {
  if (bytes <= kFreeBytes) {
    release();
    return true;
  }
  std::list<User*>& users = memory_.users_;
  if (bytes_ == 0)
    place_ = users.insert(users.end(), this);
  else if (message != message_)
    users.splice(users.end(), users, place_);
  memory_.bytes_ += bytes;
  memory_.bytes_ -= std::exchange(bytes_, bytes);
  message_ = message;
  while (memory_.bytes_ > memory_.bytes_max_) {
    User& oldest = *users.front();
    oldest.release();
    if (memory_.ended_ != nullptr) memory_.ended_->add();
    if (&oldest == this) return false;
    oldest.end_();
  }
  return true;
}

void MessageMemory::User::release() noexcept {
  if (bytes_ == 0) return;
  memory_.bytes_ -= std::exchange(bytes_, 0);
  memory_.users_.erase(place_);
}

}  // namespace kvd::net
