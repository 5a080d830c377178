#include "node/pins.h"

namespace kvd::node {

bool Pins::may_take(std::uint64_t bytes) {
  const std::uint64_t last = node_.bytes_max() / 16;
  const bool little = used() + bytes <= node_.bytes_max() / 256;
  if (!has_room(bytes) || !node_.has_room(bytes) || !node_.is_fair(used(), bytes, little ? 0 : last)) return false;
  if (node_.leaves(last, bytes) || (taken && taken() >= used() + bytes)) return true;
  node_.remember_refusal();
  return false;
}

}  // namespace kvd::node
