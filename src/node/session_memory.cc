// What memory the client of a connection is given: the pool to read from, rings and an arena of its own. Decided when
// it is known who that is, with HELLO or, where there are credentials, with its token: before nothing of it is there.
#include <utility>

#include "node/leavers.h"
#include "node/session.h"

namespace kvd::node {

// What of the memory that these features ask for the client gets; its own is made then. The pool shows the records of
// all tenants, so where there could be several only who is allowed to gets it.
std::uint64_t Session::make_memory(std::uint64_t features) {
  const auto asks = [features](std::uint64_t feature) { return (features & feature) != 0; };
  shares_memory_ =
      asks(wire::kFeatureSharedMemory) && may_see_pool() && context_.shared_fd >= 0 && connection_->is_local();
  const bool window = asks(wire::kFeatureSharedMemory) && !shares_memory_ && make_window();
  const bool rings = asks(wire::kFeatureRings) && make_rings();
  const bool keeps = shares_memory_ && asks(wire::kFeatureKeep) && make_keeper();
  const bool arena = asks(wire::kFeatureArena) && make_arena();
  return (shares_memory_ || window ? wire::kFeatureSharedMemory : 0) | (rings ? wire::kFeatureRings : 0) |
         (keeps ? wire::kFeatureKeep : 0) | (arena ? wire::kFeatureArena : 0);
}

// Behind the reply that agrees to these, before anything else.
void Session::offer(std::uint64_t features) {
  if ((features & wire::kFeatureSharedMemory) != 0) offer_memory();
  if ((features & wire::kFeatureKeep) != 0) offer_keeper();
  if ((features & wire::kFeatureArena) != 0) offer_arena();
  if ((features & wire::kFeatureRings) != 0) offer_rings();
}

// Of a client that is known, or where everybody may do everything. Rings are for lookups and arenas for puts: who may
// do neither would only keep them from others.
bool Session::owns(auth::Right right) const noexcept { return identity_ == nullptr || identity_->rights.allow(right); }

bool Session::may_see_pool() const noexcept { return owns(auth::Right::kRead) && owns(auth::Right::kPool); }

// The pool's or its own window.
void Session::offer_memory() {
  const wire::Memory memory{.bytes = shares_memory_ ? context_.store.pool_bytes() : window_->size()};
  const int fd = shares_memory_ ? context_.shared_fd : window_->fd();
  connection_->send({.head = wire::frame({}, memory), .body = {}, .on_done = {}, .descriptor = fd});
}

// Whether this client may keep what it is lent. What it closes for that is made then.
bool Session::make_keeper() {
  if (context_.leavers.count() >= context_.limits.leavers_max) return false;
  Result<io::UniqueFd> keeper = holdings_->keeper.open();
  if (keeper) keeper_ = std::move(*keeper);
  return keeper.has_value();
}

// Once it is sent, the client's is the only one.
void Session::offer_keeper() {
  const int fd = keeper_.get();
  connection_->send(
      {.head = wire::frame({}, wire::Keeper{}), .body = {}, .on_done = [this] { keeper_.reset(); }, .descriptor = fd});
}

// Whether this connection can have rings; they are made then.
bool Session::make_rings() {
  if (context_.rings.bytes_max() == 0 || !connection_->is_local() || !owns(auth::Right::kRead)) return false;
  if (tenant_ != nullptr) rings_seat_ = context_.gate.take_rings(tenant_);
  if (tenant_ != nullptr && !rings_seat_.share) return false;
  rings_ = context_.rings.take(1);
  auto memory = rings_ ? net::RingMemory::create() : fail(Code::kBusy, "there are no more rings");
  if (!memory) {
    rings_.release();
    rings_seat_.share.release();
    return false;
  }
  ring_memory_ = std::move(*memory);
  return true;
}

// The last message on the socket. A client sends nothing between its HELLO and this one; what it sends on the socket
// all the same is read as what it is, and what follows is awaited in the ring.
void Session::offer_rings() {
  const int fd = ring_memory_->fd();
  connection_->send({.head = wire::frame({}, wire::Rings{.bytes = ring_memory_->bytes()}),
                     .body = {},
                     .on_done =
                         [this] {
                           if (connection_ == nullptr || connection_->closed()) return;
                           stream_->use(std::move(ring_memory_), net::RingStream::Side::kDepot);
                         },
                     .descriptor = fd});
}

// Whether this connection can have an arena; it is made then.
bool Session::make_arena() {
  const std::uint64_t bytes = context_.limits.arena_bytes;
  if (bytes == 0 || context_.arenas.bytes_max() < bytes) return false;
  if (!connection_->is_local() || !owns(auth::Right::kWrite)) return false;
  if (tenant_ != nullptr) arena_seat_ = context_.gate.take_arena(tenant_);
  if (tenant_ != nullptr && !arena_seat_.share) return false;
  arena_share_ = context_.arenas.take(bytes);
  auto arena = arena_share_ ? net::Arena::create(bytes) : fail(Code::kBusy, "there are no more arenas");
  if (!arena) {
    arena_share_.release();
    arena_seat_.share.release();
    return false;
  }
  arena_ = std::move(*arena);
  return true;
}

void Session::offer_arena() {
  const int fd = arena_->fd();
  connection_->send(
      {.head = wire::frame({}, wire::Arena{.bytes = arena_->size()}), .body = {}, .on_done = {}, .descriptor = fd});
}

}  // namespace kvd::node
