// PUTs whose slabs lie in the connection's arena: what is taken from it.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "node/session.h"

namespace kvd::node {
namespace {

// Copied and hashed before others get their turn: 0.2 ms or less.
constexpr std::size_t kTakenAtOnce = std::size_t{1} << 20;
// By the time that so much, or a sixteenth of the arena, was taken the client hears of it (wire.md).
constexpr std::uint64_t kUntoldMax = std::uint64_t{1} << 20;
// And by the time that so long has passed: one that waits for room sends nothing that would be answered.
constexpr Duration kToldLater = std::chrono::milliseconds(1);

}  // namespace

// What fits into a turn is taken at once. Of more the connection waits, as it would for payload, so no second message
// is looked at while slabs of this one are being copied.
Status Session::on_put_arena(const wire::Header& header, Bytes meta) {
  if (arena_ == nullptr) return fail(Code::kCorrupt, "a PUT through an arena where none was given");
  const Result<wire::PutArena> data = wire::decode<wire::PutArena>(header, meta);
  if (!data) return fail(data.error());
  KVD_CHECK(taking_.empty());
  taking_put_ = 0;
  if (const auto found = puts_.find(header.request_id); found != puts_.end()) {
    PutOp& op = *found->second.op;
    const std::uint32_t slab_bytes = op.request().shape.slab_bytes;
    if (Status checked = wire::check_arena_place(*data, slab_bytes, arena_->size()); !checked) return checked;
    if (Status begun = op.begin_slabs(header, data->key_first, data->checksums); !begun) return begun;
    taking_put_ = header.request_id;
    taking_ = arena_->bytes().subspan(data->offset, data->checksums.size() * slab_bytes);
    context_.counters.put_arena_bytes.add(taking_.size());
    if (tenant_ != nullptr) tenant_->bytes_received.add(taking_.size());
    touch_put(found->second);
  }
  taking_bytes_ = taking_.size();
  if (take_some()) {
    connection_->hold();
    arena_slices_.enter();
  }
  return {};
}

// A slice of the message; with its last one it ends. Returns whether there is more.
bool Session::take_some() {
  const auto found = puts_.find(taking_put_);
  if (found == puts_.end()) taking_ = {};  // it has ended: nothing of it is needed
  if (!taking_.empty()) {
    const std::size_t bytes = std::min(taking_.size(), kTakenAtOnce);
    found->second.op->take(taking_.first(bytes));
    taking_ = taking_.subspan(bytes);
  }
  if (!taking_.empty()) return true;
  ++arena_taken_;
  arena_untold_bytes_ += taking_bytes_;
  if (arena_untold_bytes_ >= std::min(arena_->size() / 16, kUntoldMax)) tell_taken();
  if (found != puts_.end()) end_put_message(std::exchange(taking_put_, 0));
  if (arena_told_ != arena_taken_ && !taken_timer_.armed()) taken_timer_.arm_in(kToldLater);
  return false;
}

bool Session::take_next() {
  if (connection_->closed()) return false;
  if (take_some()) return true;
  connection_->resume();
  connection_->flush();
  return false;
}

void Session::on_taken_timer() {
  tell_taken();
  connection_->flush();
}

// The places of what was taken are the client's again.
void Session::tell_taken() {
  arena_untold_bytes_ = 0;
  if (std::exchange(arena_told_, arena_taken_) == arena_taken_) return;
  connection_->send({.head = wire::frame({}, wire::Taken{arena_taken_}), .body = {}, .on_done = {}});
}

}  // namespace kvd::node
