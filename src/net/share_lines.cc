#include "net/share_lines.h"

#include <iterator>

#include "base/check.h"

namespace kvd::net {

ShareLinesBase::Place::~Place() {
  leave();
  if (lines_ != nullptr) lines_->forget(*this);
}

void ShareLinesBase::Place::leave() noexcept {
  if (waits()) lines_->remove(*this);
}

ShareLinesBase::~ShareLinesBase() { KVD_CHECK(lines_.empty()); }

void ShareLinesBase::enter_line(Place& place) {
  KVD_CHECK(!place.waits());
  Line& line = line_of(place);
  if (line.waiting.empty()) {
    auto before = order_.end();
    while (before != order_.begin() && std::prev(before)->served > line.served) --before;
    order_.insert(before, line);
  }
  line.waiting.push_back(place);
  ++waiting_;
}

ShareLinesBase::Place& ShareLinesBase::first() const {
  KVD_CHECK(!empty());
  return const_cast<Place&>(order_.front().waiting.front());
}

void ShareLinesBase::take(Place& place) noexcept {
  place.line_->served = ++turns_;
  order_.splice(order_.end(), order_, List<Line>::s_iterator_to(*place.line_));
  remove(place);
}

ShareLinesBase::Line& ShareLinesBase::line_of(Place& place) {
  if (place.lines_ == this && place.line_->share == place.share_) return *place.line_;
  if (place.lines_ != nullptr) place.lines_->forget(place);
  const auto [at, is_new] = lines_.try_emplace(place.share_);
  Line& line = at->second;
  if (is_new) {
    line.share = place.share_;
    line.served = turns_;
  }
  ++line.places;
  place.lines_ = this;
  place.line_ = &line;
  return line;
}

void ShareLinesBase::remove(Place& place) noexcept {
  Line& line = *place.line_;
  line.waiting.erase(List<Place>::s_iterator_to(place));
  --waiting_;
  if (line.waiting.empty()) order_.erase(List<Line>::s_iterator_to(line));
}

// The share's line goes with its last place.
void ShareLinesBase::forget(Place& place) noexcept {
  if (--place.line_->places == 0) lines_.erase(lines_.find(place.line_->share));
  place.lines_ = nullptr;
  place.line_ = nullptr;
}

}  // namespace kvd::net
