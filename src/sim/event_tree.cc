#include "sim/event_tree.h"

#include "base/check.h"

namespace kvd::sim {

EventTree::EventTree(std::uint32_t count) {
  KVD_CHECK(count > 0);
  while (leaves_ < count) leaves_ *= 2;
  nodes_.resize(std::size_t{leaves_} * 2);
  for (std::uint32_t i = 0; i < leaves_; ++i) nodes_[leaves_ + i].instance = i;
  for (std::uint32_t at = leaves_; at-- > 1;) nodes_[at].instance = nodes_[2 * at].instance;
  if (leaves_ == 1) nodes_[1].instance = 0;
}

}  // namespace kvd::sim
