#include "node/pins.h"

namespace kvd::node {

bool Pins::may_take(std::uint64_t bytes) {
  const std::uint64_t last = node().bytes_max() / 16;
  const bool little = used() + bytes <= node().bytes_max() / 256;
  if (!has_room(bytes) || !node().has_room(bytes)) return false;
  if (is_within_part(bytes)) return true;
  if (!node().is_fair(used(), bytes, little ? 0 : last, reserved())) return false;
  if (node().leaves(last + reserved(), bytes) || (taken && taken() >= used() + bytes)) return true;
  node().remember_refusal();
  return false;
}

}  // namespace kvd::node
