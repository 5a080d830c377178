#include "client/arena_room.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace kvd::client {
namespace {

constexpr std::uint64_t kAlignment = 64;  // a cache line

}  // namespace

std::optional<std::uint64_t> ArenaRoom::begin(std::uint64_t bytes) {
  KVD_CHECK(!begun_ && bytes > 0 && bytes <= stretch_max());
  const std::uint64_t limit = std::min(arena_->size(), std::max(kBytesInUse, 4 * bytes));
  std::uint64_t at = 0;
  if (!sent_.empty()) {
    const std::uint64_t oldest = sent_.front().begin;
    at = align_up(sent_.back().end, kAlignment);
    const bool wrapped = sent_.back().begin < oldest;
    if (!wrapped && at + bytes > limit) at = 0;
    const bool before_oldest = wrapped || at == 0;
    if (before_oldest && at + bytes > oldest) return std::nullopt;
  }
  begun_ = Stretch{at, at + bytes};
  return at;
}

void ArenaRoom::send() {
  KVD_CHECK(begun_.has_value());
  sent_.push_back(*std::exchange(begun_, std::nullopt));
}

Status ArenaRoom::taken(std::uint64_t messages) {
  if (messages < taken_ || messages - taken_ > sent_.size()) {
    return fail(Code::kCorrupt, "the depot has taken what was not sent");
  }
  sent_.erase(sent_.begin(), sent_.begin() + static_cast<std::ptrdiff_t>(messages - taken_));
  taken_ = messages;
  return {};
}

}  // namespace kvd::client
