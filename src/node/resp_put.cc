#include "node/resp_put.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace kvd::node {

RespPut::RespPut(NodeContext& context, std::shared_ptr<RespKeyspace> keyspace, std::string_view key,
                 std::uint64_t value_bytes)
    : context_(context), keyspace_(std::move(keyspace)), key_(key), value_bytes_(value_bytes) {}

RespPut::~RespPut() { abort(); }

void RespPut::abort() {
  if (std::exchange(aborted_, true)) return;
  on_done_ = nullptr;
  head_ = {};
  for (Part& part : parts_) part.handle = {};
  if (parts_stored_ && !published_) keyspace_->remove_parts({value_bytes_, body_});
  share_.release();
  keyspace_.reset();
}

Status RespPut::begin(ConnectionBudget& connection_unfinished, AckLevel level) {
  const bool whole = resp_fits_head(key_.size(), value_bytes_);
  const std::uint32_t count = whole ? 0 : resp_parts(value_bytes_);
  if (count > 0) body_ = keyspace_->new_body(count);
  std::uint64_t bytes = kPageBytes;
  for (std::uint32_t i = 0; i < count; ++i) bytes += keyspace_->part(body_, value_bytes_, i).bytes;
  const RespKeyspace::Place head = keyspace_->head(key_);
  if (level != AckLevel::kPooled && bytes > context_.store.flash_quota_bytes(head.ns))
    return fail(Code::kNoSpace, "the value is larger than the tenant's quota of flash");
  if (!connection_unfinished.has_room(bytes))
    return fail(Code::kBusy, "SETs under way hold this connection's share of the pool");
  if (connection_unfinished.is_fair(bytes)) share_ = connection_unfinished.take_of_all(bytes);
  if (!share_) return fail(Code::kBusy, "puts under way hold their share of the pool");
  auto begun = context_.store.begin_replacement(head.ns, head.id, {});
  if (!begun) return fail(begun.error());
  head_ = std::move(*begun);
  for (std::uint32_t i = 0; i < count; ++i) {
    const RespKeyspace::Place at = keyspace_->part(body_, value_bytes_, i);
    begun = context_.store.begin_put(at.ns, at.id, {});
    if (!begun) return fail(begun.error());
    // Keys of parts are new, but the index may take one for another's. The next try has others.
    if (!*begun) return fail(Code::kBusy, "the key of a part is taken");
    parts_.push_back({std::move(*begun), at.bytes, 0});
  }
  if (count > 0) hasher_.emplace(parts_[0].handle.seed(), 0, parts_[0].bytes);
  return {};
}

MutableBytes RespPut::place() const {
  if (complete()) return {};
  if (parts_.empty()) return head_.slab(0).subspan(resp_value_offset(key_.size()) + landed_, value_bytes_ - landed_);
  const std::uint64_t part = landed_ / kRespPartBytesMax;
  const std::uint64_t inside = landed_ % kRespPartBytesMax;
  const std::uint64_t bytes = resp_part_bytes(value_bytes_, static_cast<std::uint32_t>(part));
  return parts_[part].handle.slab(0).subspan(inside, bytes - inside);
}

// Hashed as it comes, while it is in the cache.
void RespPut::landed(std::size_t bytes) {
  while (bytes > 0) {
    const MutableBytes at = place();
    const std::size_t n = std::min(bytes, at.size());
    KVD_CHECK(n > 0);
    if (hasher_) hasher_->add(at.first(n));
    landed_ += n;
    bytes -= n;
    if (hasher_ && n == at.size()) finish_part();
  }
}

// What a part's record has beyond the value is zeros, and part of its checksum.
void RespPut::finish_part() {
  const std::size_t i = (landed_ - 1) / kRespPartBytesMax;
  Part& part = parts_[i];
  const MutableBytes rest = part.handle.slab(0).subspan(resp_part_bytes(value_bytes_, static_cast<std::uint32_t>(i)));
  std::ranges::fill(rest, std::byte{});
  hasher_->add(rest);
  part.checksum = hasher_->finish();
  hasher_.reset();
  if (!complete()) hasher_.emplace(parts_[i + 1].handle.seed(), 0, parts_[i + 1].bytes);
}

void RespPut::store_parts(AckLevel level, std::function<void(Status)> on_done) {
  KVD_CHECK(complete() && !aborted_);
  share_.release();
  on_done_ = std::move(on_done);
  parts_stored_ = true;
  unacknowledged_ = parts_.size() + 1;  // one for this loop
  for (Part& part : parts_) {
    context_.store.complete_put(std::move(part.handle), {&part.checksum, 1}, level,
                                [self = shared_from_this()](Status status) { self->part_acknowledged(status); });
  }
  part_acknowledged({});
}

void RespPut::part_acknowledged(const Status& status) {
  if (!status && parts_status_) parts_status_ = status;
  if (--unacknowledged_ > 0 || aborted_) return;
  if (!parts_status_) {
    const auto self = shared_from_this();
    auto on_done = std::exchange(on_done_, nullptr);
    abort();
    if (on_done) on_done(parts_status_);
    return;
  }
  told({});
}

void RespPut::told(Status status) {
  if (on_done_) std::exchange(on_done_, nullptr)(status);
}

void RespPut::publish(AckLevel level, std::function<void(Status)> on_done) {
  KVD_CHECK(parts_stored_ && !published_ && !aborted_);
  on_done_ = std::move(on_done);
  const auto old = keyspace_->head_in_pool(key_);
  encode_resp_head(head_.slab(0), as_bytes(key_), value_bytes_, body_);
  const std::uint64_t checksum = block::slab_checksum(head_.seed(), 0, head_.slab(0));
  published_ = true;
  const std::weak_ptr<RespKeyspace> keyspace = keyspace_;
  if (old) keyspace_->will_replace();
  context_.store.complete_put(std::move(head_), {&checksum, 1}, level,
                              [self = shared_from_this(), keyspace, old](Status status) {
                                // Not before: until the new head is there, a crash must find the old value whole.
                                if (const auto still = keyspace.lock(); still && old) still->remove_replaced(*old);
                                if (!self->aborted_) self->told(status);
                              });
}

}  // namespace kvd::node
