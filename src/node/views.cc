#include "node/views.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvd::node {

Views::Views(io::Loop& loop, NodeCounters& counters)
    : counters_(counters), loop_(loop), timer_(loop, [this] { expire(); }) {}

void Views::add(std::uint64_t bytes, Time until, io::Callback unpin) {
  KVD_CHECK(has_room() && unpin);
  views_.emplace(next_id_++, View{.bytes = bytes, .until = until, .unpin = std::move(unpin)});
  ++held_;
  if (until == kNever) ++kept_;
  counters_.views.add(1);
  counters_.view_bytes.add(bytes);
  counters_.bytes_lent.add(bytes);
  if (until >= timer_at_) return;
  timer_at_ = until;
  timer_.arm(until);
}

// Lets go of what the view holds, if it still does.
void Views::end(View& view) {
  if (!view.unpin) return;
  --held_;
  if (view.until == kNever) --kept_;
  counters_.views.sub(1);
  counters_.view_bytes.sub(view.bytes);
  std::exchange(view.unpin, nullptr)();
}

void Views::withdraw(std::uint64_t id) {
  const auto found = views_.find(id);
  if (found == views_.end()) return;
  View view = std::move(found->second);
  views_.erase(found);
  end(view);
}

Status Views::release(const wire::U64View& ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto found = views_.find(ids[i]);
    if (found == views_.end()) return fail(Code::kCorrupt, "a view is given back that this connection does not hold");
    View view = std::move(found->second);
    views_.erase(found);
    if (view.unpin) given_back_bytes_ += view.bytes;
    end(view);
  }
  return {};
}

void Views::clear() {
  timer_.disarm();
  timer_at_ = kNever;
  for (auto& [id, view] : views_) end(view);
  views_.clear();
}

void Views::clear_passing() {
  timer_.disarm();
  timer_at_ = kNever;
  for (auto entry = views_.begin(); entry != views_.end();) {
    const auto at = entry++;
    if (at->second.until == kNever) continue;
    end(at->second);
    views_.erase(at);
  }
}

// Looks at all of them: they are few, and this is what a client that has stopped costs.
void Views::expire() {
  timer_at_ = kNever;
  for (auto& [id, view] : views_) {
    if (!view.unpin) continue;
    if (view.until <= loop_.now()) {
      counters_.views_expired.add();
      end(view);
    } else {
      timer_at_ = std::min(timer_at_, view.until);
    }
  }
  if (timer_at_ != kNever) timer_.arm(timer_at_);
}

}  // namespace kvd::node
