#include "node/pins.h"

namespace kvd::node {

bool Pins::may_take(std::uint64_t bytes) {
  if (!has_room(bytes) || !node_.has_room(bytes) || !node_.is_fair(used(), bytes)) return false;
  return node_.leaves_some(bytes) || (taken && taken() >= used() + bytes);
}

}  // namespace kvd::node
