#include "node/strangers.h"

#include "base/check.h"

namespace kvd::node {

Strangers::Place Strangers::take(Guest& guest) {
  if (entries_.size() >= places_) {
    Guest* const oldest = who_gives_way();
    if (oldest == nullptr) return {};
    oldest->give_way();
    KVD_CHECK(entries_.size() < places_);
  }
  return {*this, entries_.insert(entries_.end(), Entry{.guest = &guest, .since = loop_.now()})};
}

// Looks at all of them, which are few.
Strangers::Guest* Strangers::who_gives_way() const {
  Guest* oldest = nullptr;
  for (const Entry& entry : entries_) {
    if (loop_.now() < after(entry.since, grace_)) break;
    if (entry.stays) continue;
    if (entry.guest->silent()) return entry.guest;
    if (oldest == nullptr) oldest = entry.guest;
  }
  return oldest;
}

}  // namespace kvd::node
