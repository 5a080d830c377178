// GETs of clients that read the pool through shared memory: which of them are answered so, and what is given back.
#include <algorithm>
#include <utility>

#include "node/leavers.h"
#include "node/session.h"

namespace kvd::node {

Status Session::on_release(const wire::Header& header, Bytes meta) {
  const Result<wire::Release> release = wire::decode<wire::Release>(header, meta);
  if (!release) return fail(release.error());
  return views_.release(release->views);
}

// Once, when its first message can be made: what all its views may hold is known then.
void Session::decide_lending(RunningGet& get) {
  if (std::exchange(get.lend_decided, true) || !shares_memory_) return;
  const GetOp& op = *get.op;
  const std::uint64_t bytes = op.share_bytes();
  // Budgets grant any size to who comes first; this bound holds for that one, too.
  const std::uint64_t bytes_max = std::min(lent_.bytes_max(), context_.lent.bytes_max());
  const bool keeps = op.request().keep;
  const std::uint64_t kept_max = std::min(kept_.bytes_max(), context_.kept.bytes_max());
  // One that streams needs the room of what it has read for what it reads next.
  const bool keepable = !keeps || (!op.streams() && bytes <= kept_max && kept_.has_room(bytes) &&
                                   context_.kept.has_room(bytes) && may_keep_keys(op.keys()));
  const bool fits = keepable && bytes <= bytes_max && lent_.has_room(bytes) && context_.lent.has_room(bytes);
  (fits ? context_.counters.gets_lent : context_.counters.gets_not_lent).add();
  if (!fits) return;
  get.lent = std::make_shared<LentShare>(LentShare{.connection = lent_.take(bytes),
                                                   .node = context_.lent.take(bytes),
                                                   .kept_connection = {},
                                                   .kept_node = {},
                                                   .keys = {}});
  if (!keeps) {
    get.lent->keys = std::move(get.keys);
    return;
  }
  // Those of the GET itself are free as soon as it ends: else what is kept would turn every other operation away.
  get.lent->keys = kept_keys_.take_of_all(op.keys());
  get.lent->kept_connection = kept_.take(bytes);
  get.lent->kept_node = context_.kept.take(bytes);
  get.op->leave_connection();
}

// As with bytes: the bound holds for who comes first, too.
bool Session::may_keep_keys(std::uint64_t keys) {
  return keys <= kept_keys_.bytes_max() && kept_keys_.has_room(keys) && context_.kept_keys.has_room(keys);
}

// When the depot stops waiting for a view that the client copies from.
Time Session::lasts_until(const GetOp& get) const {
  return std::min(after(get.request().deadline, context_.limits.view_grace),
                  after(context_.loop.turn_begun(), context_.limits.stall_limit));
}

// The next message of a GET, as bytes or as a view, which is added then. A message without slabs has nothing to lend.
net::Outgoing Session::next_message(RunningGet& get, std::uint64_t& view) {
  if (get.op->failed() == get.op->keys()) return get.op->next();
  decide_lending(get);
  if (get.lent == nullptr || !views_.has_room()) return get.op->next();
  view = views_.next_id();
  const std::uint32_t before = get.op->layers_left();
  net::Outgoing message = get.op->next_view(view);
  const Time until = get.op->request().keep ? kNever : lasts_until(*get.op);
  const std::uint64_t bytes = get.op->slab_bytes(before - get.op->layers_left());
  lent_now_ += bytes;
  views_.add(bytes, until, [unpin = std::exchange(message.on_done, nullptr), lent = get.lent]() mutable { unpin(); });
  return message;
}

}  // namespace kvd::node
