#include "node/put_op.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "block/verified_copy.h"

namespace kvd::node {
namespace {

// Received in one call: what is verified right behind it is still in the second-level cache.
constexpr std::size_t kReceiveBytesMax = std::size_t{256} << 10;

// Where bytes nobody needs go; written by every loop of the process and read by none.
constexpr std::size_t kScratchBytes = std::size_t{64} << 10;
thread_local std::array<std::byte, kScratchBytes> scratch;

}  // namespace

PutOp::PutOp(NodeContext& context, ConnectionBudget& connection_unfinished, const Request& request,
             std::unique_ptr<OpKeys> keys, io::Callback on_done)
    : context_(context),
      connection_unfinished_(connection_unfinished),
      request_(request),
      keys_(std::move(keys)),
      on_done_(std::move(on_done)),
      failed_(keys_->count()),
      records_(keys_->count()) {}

PutOp::~PutOp() { abort(); }

void PutOp::abort() {
  aborted_ = true;
  on_done_ = nullptr;
  for (std::size_t key = 0; key < records_.size(); ++key) drop(key);
}

void PutOp::begin() {
  ++unacknowledged_;  // keeps complete() false until every key has been looked at
  for (std::size_t key = 0; key < keys_->count(); ++key) {
    Record& record = records_[key];
    if (const Status reserved = reserve(record); !reserved) {
      fail_key(key, reserved.error());
      continue;
    }
    Result<store::PutHandle> begun = context_.store.begin_put(request_.ns, keys_->id(key), keys_->foreign(key));
    if (!begun) {
      fail_key(key, begun.error());
    } else if (*begun) {
      record.handle = std::move(*begun);
      record.row = receiving_++;
    } else {
      drop(key);
      context_.counters.keys_put_present.add();
      await_present(key);
    }
  }
  checksums_.resize(receiving_ * request_.shape.layers);
  acknowledged(keys_->count(), {});
}

Status PutOp::reserve(Record& record) {
  const std::uint64_t bytes = request_.shape.record_bytes();
  if (!connection_unfinished_.has_room(bytes))
    return fail(Code::kBusy, "PUTs under way hold this connection's share of the pool");
  if (connection_unfinished_.is_fair(bytes)) record.share = connection_unfinished_.take_of_all(bytes);
  if (!record.share) return fail(Code::kBusy, "PUTs under way hold their share of the pool");
  return {};
}

// A record that is here already counts when it has reached the level that this PUT asks for.
void PutOp::await_present(std::size_t key) {
  if (request_.ack == AckLevel::kPooled) return;
  ++unacknowledged_;
  context_.store.await(request_.ns, keys_->id(key), request_.ack,
                       [self = shared_from_this(), key](Status result) { self->acknowledged(key, result); });
}

Status PutOp::begin_message(const wire::Header& header, const wire::PutData& data) {
  if (Status checked = wire::check_put_payload(header, data, request_.shape.slab_bytes); !checked) return checked;
  return begin_slabs(header, data.key_first.value_or(0), data.checksums);
}

Status PutOp::begin_slabs(const wire::Header& header, std::uint32_t key_first, wire::U64View checksums) {
  const std::size_t first = std::size_t{header.layer_first} * keys_->count() + key_first;
  if (header.items != keys_->count() || first != slab_ || checksums.size() > slabs() - slab_) {
    return fail(Code::kCorrupt, "PUT data does not continue its PUT");
  }
  message_end_ = slab_ + checksums.size();
  for (std::size_t slab = slab_; slab < message_end_; ++slab) {
    const std::size_t key = slab % keys_->count();
    if (records_[key].handle) checksum(key, slab / keys_->count()) = checksums[slab - slab_];
  }
  return {};
}

void PutOp::take(Bytes from) {
  const std::size_t slab_bytes = request_.shape.slab_bytes;
  const bool past_cache = keys_->count() * request_.shape.record_bytes() >= block::kPastCacheBytes;
  while (!from.empty()) {
    const std::size_t key = slab_ % keys_->count();
    const std::size_t layer = slab_ / keys_->count();
    const std::size_t n = std::min(from.size(), slab_bytes - slab_landed_);
    Record& record = records_[key];
    if (record.handle) {
      if (slab_landed_ == 0) hasher_.emplace(record.handle.seed(), static_cast<std::uint32_t>(layer), slab_bytes);
      const MutableBytes slab = record.handle.slab(static_cast<std::uint16_t>(layer));
      block::copy_and_hash(*hasher_, from.first(n), slab.subspan(slab_landed_, n), past_cache);
    }
    from = from.subspan(n);
    slab_landed_ += n;
    if (slab_landed_ < slab_bytes) return;
    if (record.handle) judge_slab(key, layer, hasher_->finish());
    ++slab_;
    slab_landed_ = 0;
  }
}

std::size_t PutOp::places(std::span<iovec> out) {
  std::size_t count = 0;
  std::size_t offset = slab_landed_;
  std::size_t bytes = 0;
  for (std::size_t slab = slab_; slab < message_end_ && count < out.size() && bytes < kReceiveBytesMax;) {
    Record& record = records_[slab % keys_->count()];
    std::size_t n = request_.shape.slab_bytes - offset;
    if (record.handle) {
      const auto layer = static_cast<std::uint16_t>(slab / keys_->count());
      out[count++] = {record.handle.slab(layer).data() + offset, n};
    } else {
      n = std::min(n, kScratchBytes);
      out[count++] = {scratch.data(), n};
    }
    offset += n;
    bytes += n;
    if (offset == request_.shape.slab_bytes) {
      offset = 0;
      ++slab;
    }
  }
  return count;
}

void PutOp::landed(std::size_t bytes) {
  while (bytes > 0) {
    const std::size_t n = std::min<std::size_t>(bytes, request_.shape.slab_bytes - slab_landed_);
    bytes -= n;
    slab_landed_ += n;
    if (slab_landed_ < request_.shape.slab_bytes) return;
    slab_landed();
    ++slab_;
    slab_landed_ = 0;
  }
}

// A slab is whole: it must be what its sender says it is.
void PutOp::slab_landed() {
  const std::size_t key = slab_ % keys_->count();
  Record& record = records_[key];
  if (!record.handle) return;
  const std::size_t layer = slab_ / keys_->count();
  const MutableBytes slab = record.handle.slab(static_cast<std::uint16_t>(layer));
  const std::uint64_t found = block::slab_checksum(record.handle.seed(), static_cast<std::uint32_t>(layer),
                                                   slab.first(request_.shape.slab_bytes));
  judge_slab(key, layer, found);
}

void PutOp::judge_slab(std::size_t key, std::size_t layer, std::uint64_t found) {
  if (found == checksum(key, layer)) return;
  ++corrupt_slabs_;
  fail_key(key, {Code::kCorrupt, 0, "a slab was not what its checksum says when it arrived"});
}

void PutOp::end_message() {
  if (slab_ == slabs()) publish();
}

void PutOp::publish() {
  ++unacknowledged_;  // acknowledgements may come from inside complete_put(): not complete before the last was asked
                      // for
  for (std::size_t key = 0; key < records_.size() && !aborted_; ++key) {
    Record& record = records_[key];
    if (!record.handle) continue;
    --receiving_;
    ++unacknowledged_;
    record.share.release();
    context_.store.complete_put(std::exchange(record.handle, {}), std::span(&checksum(key, 0), request_.shape.layers),
                                request_.ack,
                                [self = shared_from_this(), key](Status result) { self->acknowledged(key, result); });
  }
  acknowledged(keys_->count(), {});
}

void PutOp::acknowledged(std::size_t key, Status result) {
  --unacknowledged_;
  if (aborted_) return;
  if (!result) fail_key(key, result.error());
  if (complete() && on_done_) std::exchange(on_done_, nullptr)();
}

void PutOp::fail_key(std::size_t key, const Error& why) {
  if (failed_.add(key) && first_failure_.code == Code::kOk) first_failure_ = why;
  drop(key);
}

// Frees the record's memory. What is receiving it in this very call still writes there: see landed(), which comes
// after.
void PutOp::drop(std::size_t key) {
  Record& record = records_[key];
  if (record.handle) --receiving_;
  record.handle = {};
  record.share.release();
}

}  // namespace kvd::node
