// ArenaRoom: which parts of the depot's arena hold slabs that it has not taken yet. Hands out stretches one after the
// other; the depot takes them in the same order.
//
// A ring: a stretch that does not fit behind the last one goes to the beginning. Only as much of the arena is used as
// keeps several stretches of the present size under way (kBytesInUse): what is written again soon stays in the caches.
// Owners (shared): the channel whose connection it belongs to, and the puts on it, which may end later. Belongs to the
// I/O thread.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "net/arena.h"

namespace kvd::client {

class ArenaRoom {
 public:
  // Of the arena; more where stretches are larger. Measured: docs/results/net.md.
  static constexpr std::uint64_t kBytesInUse = std::uint64_t{4} << 20;

  explicit ArenaRoom(std::unique_ptr<net::Arena> arena) : arena_(std::move(arena)) {}

  // What a stretch may have at most, so that several are under way.
  [[nodiscard]] std::uint64_t stretch_max() const noexcept { return arena_->size() / 4; }
  // Begins a stretch and says where it lies; nothing: there is no room now, and will be when the depot has taken
  // something. One at a time: it ends with send() or drop(). Requires bytes <= stretch_max().
  std::optional<std::uint64_t> begin(std::uint64_t bytes);
  // Its bytes, to be written.
  [[nodiscard]] MutableBytes stretch() const noexcept {
    return arena_->writable().subspan(begun_->begin, begun_->end - begun_->begin);
  }
  // The message that tells of it is on its way.
  void send();
  // It is not needed.
  void drop() noexcept { begun_.reset(); }
  // The depot has taken so many messages since the connection's beginning. kCorrupt: it cannot have.
  Status taken(std::uint64_t messages);
  [[nodiscard]] std::size_t under_way() const noexcept { return sent_.size(); }

 private:
  struct Stretch {
    std::uint64_t begin = 0, end = 0;
  };
  std::unique_ptr<net::Arena> arena_;
  std::optional<Stretch> begun_;
  std::deque<Stretch> sent_;  // not taken yet, oldest first
  std::uint64_t taken_ = 0;   // messages
};

}  // namespace kvd::client
