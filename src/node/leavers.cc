#include "node/leavers.h"

#include <utility>

namespace kvd::node {

void Leavers::take(std::unique_ptr<Holdings> holdings) {
  holdings->pins.on_room = nullptr;
  holdings->pins.taken = nullptr;
  holdings->views.clear_passing();
  if (holdings->views.kept() == 0 || !holdings->keeper.held()) return;
  const Place place = all_.insert(all_.end(), std::move(holdings));
  counters_.leavers.add(1);
  (*place)->keeper.on_end = [this, place] { on_end(place); };
}

void Leavers::on_end(Place place) {
  const std::unique_ptr<Holdings> gone = std::move(*place);
  all_.erase(place);
  counters_.leavers.sub(1);
}

}  // namespace kvd::node
