// Recycler: objects of one kind that come and go with every request. Their memory is taken at start, for as many as are
// likely at once; when more are needed it grows, and what it has it keeps, so that a store that has seen its busiest
// moment takes no more. All objects live as long as the recycler. One owner, no locking.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

namespace kvd::store {

// T has a default constructor and reset(), which gives up whatever it holds.
template <class T>
class Recycler {
 public:
  // Takes memory for `count` objects.
  explicit Recycler(std::size_t count) {
    free_.reserve(count);
    while (items_.size() < count) free_.push_back(&items_.emplace_back());
  }
  Recycler(const Recycler&) = delete;
  Recycler& operator=(const Recycler&) = delete;

  // One that is as new, until give_back().
  [[nodiscard]] T& take() {
    if (free_.empty()) {
      if (free_.capacity() <= items_.size()) free_.reserve(2 * items_.size() + 1);  // or give_back() might have to
      return items_.emplace_back();
    }
    T& item = *free_.back();
    free_.pop_back();
    return item;
  }
  void give_back(T& item) noexcept {
    item.reset();
    free_.push_back(&item);
  }

 private:
  std::deque<T> items_;
  std::vector<T*> free_;
};

}  // namespace kvd::store
