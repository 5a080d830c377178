#include "client/op_table.h"

#include <unistd.h>

#include <cstring>

#include "base/check.h"

namespace kvd::client {
namespace {

constexpr unsigned kSlotBits = 16;
constexpr OpId kSlotMask = (OpId{1} << kSlotBits) - 1;
constexpr std::uint32_t kNoLayer = UINT32_MAX;
// Who has helped looks for the end, which is a claim away at most, before he sleeps: waking him would take longer.
constexpr Duration kEndLook = std::chrono::microseconds(20);
// One in a hundred of the time is looked away at most where nothing comes of it.
constexpr int kVainLooksMax = 4;
constexpr Duration kLookRest = std::chrono::milliseconds(5);

void write_event(int fd) noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t wrote = ::write(fd, &one, sizeof one);  // EAGAIN: the counter is full, so readable
}

void clear_event(int fd) noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd, &count, sizeof count);  // EAGAIN: it was not set
}

std::uint64_t bytes_of(const OpRequest& get) {
  return get.keys.count() * get.layer_count * std::uint64_t{get.layout.slab_bytes()};
}

// Requires the op's mutex: what the completion points to belongs to the op.
OwnedCompletion copy_of(const Completion& done) {
  OwnedCompletion copy{.done = done, .failed = {}, .why = done.why};
  if (done.failed != nullptr) copy.failed.assign(done.failed, done.failed + (std::size_t{done.keys} + 7) / 8);
  copy.done.failed = nullptr;
  copy.done.why = "";
  return copy;
}

}  // namespace

OpTable::OpTable(std::uint32_t ops_max, int event_fd, bool helped, Duration spin)
    : event_fd_(event_fd), copies_(helped), spin_(spin), ring_(ops_max) {
  KVD_CHECK(ops_max > 0 && ops_max <= kOpsMaxMax);
  ops_.reserve(ops_max);
  free_.reserve(ops_max);
  for (std::uint32_t slot = 0; slot < ops_max; ++slot) {
    ops_.push_back(std::make_unique<Op>());
    ops_.back()->slot = slot;
    free_.push_back(ops_max - 1 - slot);
  }
}

bool OpTable::is_empty() const {
  const std::lock_guard lock(free_mutex_);
  return free_.size() == ops_.size();
}

Result<Op*> OpTable::add(OpRequest request) {
  OpId generation = 0;
  std::uint32_t slot = 0;
  {
    const std::lock_guard lock(free_mutex_);
    if (free_.empty()) return fail(Code::kBusy, "too many operations are in flight or not released");
    slot = free_.back();
    free_.pop_back();
    generation = ++generation_;
  }
  Op& op = *ops_[slot];
  const OpId id = generation << kSlotBits | (slot + 1);
  const std::size_t keys = request.keys.count();
  const std::lock_guard lock(op.mutex);
  op.request = std::move(request);
  op.request.keys.bytes = op.request.key_bytes;
  op.results = {};
  op.results.bitmaps.push_back(std::make_unique<std::uint8_t[]>((keys + 7) / 8));
  op.results.whole = {.op = id, .keys = static_cast<std::uint32_t>(keys)};
  op.results.whole.failed = op.results.bitmaps[0].get();
  if (op.request.kind == OpKind::kGet) op.results.layers.resize(op.request.layer_count);
  const std::uint64_t released = op.request.whole ? ~std::uint64_t{0} : 0;
  for (auto& word : op.released) word.store(released, std::memory_order_relaxed);
  op.poll_next = 0;
  op.events.reset();
  op.id.store(id, std::memory_order_release);
  return &op;
}

Op* OpTable::find(OpId id) const noexcept {
  const OpId slot = (id & kSlotMask) - 1;
  if (slot >= ops_.size()) return nullptr;
  Op* const op = ops_[slot].get();
  return op->id.load(std::memory_order_acquire) == id ? op : nullptr;
}

std::optional<OpKind> OpTable::soon_kind(OpId id) const {
  Op* const op = find(id);
  if (op == nullptr) return std::nullopt;
  const std::lock_guard lock(op->mutex);  // release() takes the request away
  if (op->id.load(std::memory_order_relaxed) != id || !op->request.soon) return std::nullopt;
  return op->request.kind;
}

// Requires op.mutex, and that the op has not been released.
Result<Completion> OpTable::completion(Op& op, std::uint16_t layer) const {
  const std::uint32_t events = op.events.value();
  const bool ended = (events & Op::kEnded) != 0;
  if (layer == kWholeOp) {
    if (!ended) return fail(Code::kBusy, "the operation has not ended");
    return op.results.whole;
  }
  const OpRequest& request = op.request;
  const std::uint32_t i = std::uint32_t{layer} - request.layer_first;
  if (request.kind != OpKind::kGet || layer < request.layer_first || i >= request.layer_count) {
    return fail(Code::kInvalid, "the operation has no such layer");
  }
  Completion done{.op = op.id.load(std::memory_order_relaxed), .layer = layer};
  done.keys = op.results.whole.keys;
  if (i < (events & ~Op::kEnded)) {
    done.failed_keys = op.results.layers[i].failed_keys;
    done.failed = op.results.layers[i].failed;
    return done;
  }
  if (!ended) return fail(Code::kBusy, "the layer is not complete");
  done = op.results.whole;  // the op ended before this layer
  done.layer = layer;
  return done;
}

Result<Completion> OpTable::try_get(OpId id, std::uint16_t layer, OwnedCompletion* copy) {
  Op* const op = find(id);
  if (op == nullptr) return fail(Code::kNotFound, "no such operation");
  const std::lock_guard lock(op->mutex);
  if (op->id.load(std::memory_order_relaxed) != id) return fail(Code::kNotFound, "no such operation");
  Result<Completion> done = completion(*op, layer);
  if (done && copy != nullptr) *copy = copy_of(*done);
  return done;
}

bool OpTable::may_look() const noexcept {
  return spin_ > Duration::zero() && copies_.was_open() && monotonic_now() >= look_rests_until_.load();
}

void OpTable::note_look(bool in_vain) noexcept {
  if (!in_vain) return vain_looks_.store(0, std::memory_order_relaxed);
  if (vain_looks_.fetch_add(1, std::memory_order_relaxed) + 1 < kVainLooksMax) return;
  look_rests_until_.store(after(monotonic_now(), kLookRest));
}

// Copies for the I/O thread until what is waited for is known, where there is something within `look`. False: there was
// nothing, and it is not known.
bool OpTable::help(const Op& op, OpId id, std::uint32_t layer_at, Time until, Duration look) {
  const auto known = [&] {
    const std::uint32_t events = op.events.value();
    return (events & Op::kEnded) != 0 || layer_at < events;
  };
  const auto comes = [&] { return copies_.wants(id) || known(); };
  if (look > Duration::zero() && monotonic_now() < until && !comes()) {
    const Time end = std::min(until, after(monotonic_now(), look));
    while (!comes() && monotonic_now() < end) pause_core();
    note_look(!comes());
  }
  bool helped = false;
  while (copies_.wants(id) && !known() && monotonic_now() < until) {
    const auto claim = copies_.claim(id);
    if (!claim) break;
    CopyJob::run(*claim);
    helped = true;
  }
  return helped || known();
}

Result<Completion> OpTable::wait(OpId id, std::uint16_t layer, Time until, OwnedCompletion* copy, bool helps) {
  Op* const op = find(id);
  if (op == nullptr) return fail(Code::kNotFound, "no such operation");
  std::uint32_t channels = Op::kWholeChannel;
  std::uint32_t layer_at = kNoLayer;
  bool gets = false;
  bool looks = false;
  if (helps || layer != kWholeOp) {
    const std::lock_guard lock(op->mutex);
    gets = helps && op->request.kind == OpKind::kGet;
    looks = gets && bytes_of(op->request) >= kCallingViewMin;
    if (layer != kWholeOp) {
      layer_at = std::uint32_t{layer} - op->request.layer_first;
      channels |= Op::layer_channel(layer_at);
    }
  }
  bool in_time = true;
  for (bool helped = false;;) {
    const std::uint32_t seen = op->events.seen();
    auto done = try_get(id, layer, copy);
    if (done || done.error().code != Code::kBusy) return done;
    if (!in_time) return fail(Code::kTimeout, "waited for an operation");
    const Duration look =
        std::max(helped ? kEndLook : Duration::zero(), looks && may_look() ? spin_ : Duration::zero());
    helped = gets && help(*op, id, layer_at, until, look);
    if (!helped) in_time = op->events.wait(seen, channels, until);
  }
}

Status OpTable::release_layer(OpId id, std::uint16_t layer) {
  Op* const op = find(id);
  if (op == nullptr) return fail(Code::kNotFound, "no such operation");
  const std::lock_guard lock(op->mutex);
  if (op->id.load(std::memory_order_relaxed) != id) return fail(Code::kNotFound, "no such operation");
  if (op->request.kind != OpKind::kPut || layer >= op->request.layer_count) {
    return fail(Code::kInvalid, "the operation has no such layer");
  }
  const std::uint64_t bit = std::uint64_t{1} << (layer % 64);
  const std::uint64_t before = op->released[layer / 64].fetch_or(bit, std::memory_order_acq_rel);
  if ((before & bit) != 0) return fail(Code::kInvalid, "the layer was released before");
  return {};
}

Status OpTable::release(OpId id) {
  Op* const op = find(id);
  if (op == nullptr) return fail(Code::kNotFound, "no such operation");
  std::unique_ptr<View> view;
  {
    const std::lock_guard lock(op->mutex);
    if (op->id.load(std::memory_order_relaxed) != id) return fail(Code::kNotFound, "no such operation");
    if (!op->ended()) return fail(Code::kBusy, "the operation has not ended");
    op->id.store(0, std::memory_order_release);
    op->request = {};
    view = std::move(op->results.view);  // is given back outside of the lock
    op->results = {};
    op->events.raise(Op::kReleased, EventCount::kAllChannels);
  }
  const std::lock_guard lock(free_mutex_);
  free_.push_back(op->slot);
  return {};
}

Result<std::unique_ptr<View>> OpTable::take_view(OpId id) {
  Op* const op = find(id);
  if (op == nullptr) return fail(Code::kNotFound, "no such operation");
  const std::lock_guard lock(op->mutex);
  if (op->id.load(std::memory_order_relaxed) != id) return fail(Code::kNotFound, "no such operation");
  if (!op->ended()) return fail(Code::kBusy, "the operation has not ended");
  if (op->results.view == nullptr) return fail(Code::kNotFound, "the operation has no view, or it was taken");
  return std::move(op->results.view);
}

Result<std::string> OpTable::take_text(OpId id) {
  Op* const op = find(id);
  if (op == nullptr) return fail(Code::kNotFound, "no such operation");
  const std::lock_guard lock(op->mutex);
  return std::move(op->results.text);
}

void OpTable::signal() {
  if (signalling_.exchange(true, std::memory_order_seq_cst)) return;
  write_event(event_fd_);  // completions may wait already; poll() finds out
}

// Takes completions of one op until it has no more or `out` is full. Requires poll_mutex_.
std::size_t OpTable::deliver(Op& op, std::span<Completion> out, std::vector<OwnedCompletion>* copies) {
  const std::lock_guard lock(op.mutex);
  if (op.id.load(std::memory_order_relaxed) == 0) return 0;
  const auto layers = static_cast<std::uint32_t>(op.results.layers.size());
  std::size_t taken = 0;
  while (taken < out.size()) {
    const std::uint32_t events = op.events.value();
    const std::uint32_t announced = events & ~Op::kEnded;
    if (op.poll_next < announced) {
      const auto layer = static_cast<std::uint16_t>(op.request.layer_first + op.poll_next);
      out[taken++] = *completion(op, layer);
      ++op.poll_next;
    } else if ((events & Op::kEnded) != 0 && op.poll_next <= layers) {
      out[taken++] = op.results.whole;
      op.poll_next = layers + 1;
    } else {
      break;
    }
  }
  if (copies != nullptr) {
    for (const Completion& done : out.first(taken)) copies->push_back(copy_of(done));
  }
  return taken;
}

std::size_t OpTable::poll(std::span<Completion> out, std::vector<OwnedCompletion>* copies) {
  const std::lock_guard lock(poll_mutex_);
  const bool signalling = signalling_.load(std::memory_order_relaxed);
  if (signalling) clear_event(event_fd_);  // before looking: what comes later sets it again
  std::size_t taken = 0;
  while (taken < out.size()) {
    if (polling_ == nullptr) {
      if (ring_tail_ == ring_head_.load(std::memory_order_acquire)) break;
      polling_ = ops_[ring_[ring_tail_++ % ring_.size()].load(std::memory_order_relaxed)].get();
      polling_->queued.exchange(false, std::memory_order_acq_rel);  // events from now on queue it again
    }
    taken += deliver(*polling_, out.subspan(taken), copies);
    if (taken < out.size()) polling_ = nullptr;
  }
  const bool more = polling_ != nullptr || ring_tail_ != ring_head_.load(std::memory_order_acquire);
  if (signalling && more) write_event(event_fd_);
  return taken;
}

void OpTable::enqueue(Op& op) {
  if (op.queued.exchange(true, std::memory_order_acq_rel)) return;
  const std::uint64_t head = ring_head_.load(std::memory_order_relaxed);
  ring_[head % ring_.size()].store(op.slot, std::memory_order_relaxed);
  ring_head_.store(head + 1, std::memory_order_seq_cst);
  if (signalling_.load(std::memory_order_seq_cst)) write_event(event_fd_);
}

void OpTable::announce_layer(Op& op) {
  const std::uint32_t announced = op.events.value();
  KVD_CHECK(announced < op.results.layers.size());
  op.events.raise(announced + 1, Op::layer_channel(announced));
  enqueue(op);
}

void OpTable::announce_end(Op& op) {
  // `queued` and the ring belong to the slot, so they stay valid when the op is released as soon as it has ended.
  op.events.raise(op.events.value() | Op::kEnded, EventCount::kAllChannels);
  enqueue(op);
}

}  // namespace kvd::client
