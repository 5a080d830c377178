#include "node/resp_read.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "block/checksum.h"

namespace kvd::node {
namespace {

constexpr int kAttemptsMax = 8;                                  // SETs that may come between head and parts
constexpr std::uint64_t kCheckAtOnce = std::uint64_t{64} << 10;  // 3 us
constexpr Duration kLimit = std::chrono::seconds(10);

}  // namespace

void RespChecks::enter(RespRead& read) {
  reads_.push_back(&read);
  user_.enter();
}

void RespChecks::leave(const RespRead& read) noexcept { std::erase(reads_, &read); }

bool RespChecks::check_next() {
  if (reads_.empty()) return false;
  RespRead& read = *reads_.front();
  if (!read.verify_next()) leave(read);
  return !reads_.empty();
}

RespRead::RespRead(NodeContext& context, std::shared_ptr<RespKeyspace> keyspace, Pins& connection_pins,
                   RespChecks& connection_checks, std::string_view key, Want want)
    : context_(context),
      keyspace_(std::move(keyspace)),
      connection_pins_(connection_pins),
      connection_checks_(connection_checks),
      key_(key),
      want_(want),
      next_(context.loop, [this] { search(); }) {}

RespRead::~RespRead() { abort(); }

void RespRead::abort() {
  on_done_ = nullptr;
  done_ = true;
  next_.disarm();
  connection_checks_.leave(*this);
  if (head_.pending) context_.store.cancel(head_.get);
  for (Part& part : parts_)
    if (part.pending) context_.store.cancel(part.get);
  give_up_pins();
}

void RespRead::give_up_pins() {
  head_.view = {};
  for (Part& part : parts_) part.view = {};
  share_.release();
}

void RespRead::begin(std::function<void()> on_done) {
  on_done_ = std::move(on_done);
  deadline_ = after(context_.loop.now(), kLimit);
  search();
}

void RespRead::start(Part& part, const RespKeyspace::Place& place,
                     std::function<void(Result<store::RecordView>)> on_done) {
  part.place = place;
  part.pending = true;
  part.get = {};
  part.get.ns = place.ns;
  part.get.id = place.id;
  part.get.deadline = deadline_;
  part.get.on_done = [&part, on_done = std::move(on_done)](Result<store::RecordView> view) {
    part.pending = false;
    on_done(std::move(view));
  };
  context_.store.start_get(part.get);
}

bool RespRead::reserve(std::uint64_t bytes) {
  share_.release();
  if (connection_pins_.may_take(bytes)) share_ = connection_pins_.take_of_all(bytes);
  if (!share_) context_.on_refused();
  return static_cast<bool>(share_);
}

void RespRead::search() {
  ++attempts_;
  give_up_pins();
  if (!reserve(kPageBytes)) return finish(Code::kBusy);
  start(head_, keyspace_->head(key_), [this](Result<store::RecordView> view) { head_found(std::move(view)); });
}

// A record that was replaced or removed while it was read: what is there now is asked for, from the loop.
void RespRead::again(Code why) {
  if (done_) return;
  const RespKeyspace::Place place = keyspace_->head(key_);
  const bool there = context_.store.lookup(place.ns, place.id) != Tier::kNone;
  if (!there || attempts_ >= kAttemptsMax) return finish(why);
  parts_.clear();
  verified_ = 0;
  next_.arm(context_.loop.now());
}

bool RespRead::sound(const Part& part) {
  const Bytes slab(part.view.first_slab, part.place.bytes);
  if (block::slab_checksum(part.place.seed, 0, slab) == part.view.checksums[0]) return true;
  context_.store.check(part.place.ns, part.place.id);
  return false;
}

void RespRead::head_found(Result<store::RecordView> view) {
  if (done_) return;
  if (!view) {
    const Code code = view.error().code;
    if (code != Code::kNotFound && code != Code::kCorrupt) return finish(code);
    return again(Code::kNotFound);
  }
  head_.view = std::move(*view);
  if (!sound(head_)) return again(Code::kNotFound);
  const Bytes page(head_.view.first_slab, kPageBytes);
  const Result<RespHead> head = decode_resp_head(page);
  if (!head || !std::ranges::equal(head->key, as_bytes(key_))) return finish(Code::kNotFound);
  value_bytes_ = head->value_bytes;
  body_ = head->body;
  if (head->whole()) return finish(Code::kOk);
  ask_parts();
}

void RespRead::ask_parts() {
  const std::uint32_t count = resp_parts(value_bytes_);
  if (want_ == Want::kSize) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const RespKeyspace::Place place = keyspace_->part(body_, value_bytes_, i);
      if (context_.store.lookup(place.ns, place.id) == Tier::kNone) return finish(Code::kNotFound);
    }
    return finish(Code::kOk);
  }
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < count; ++i) bytes += keyspace_->part(body_, value_bytes_, i).bytes;
  head_.view = {};
  if (!reserve(bytes)) return finish(Code::kBusy);
  parts_ = std::vector<Part>(count);
  verified_ = 0;
  parts_failed_ = 0;
  parts_pending_ = count + 1;  // one for this loop
  part_code_ = Code::kNotFound;
  for (std::uint32_t i = 0; i < count; ++i) {
    Part& part = parts_[i];
    start(part, keyspace_->part(body_, value_bytes_, i),
          [this, &part](Result<store::RecordView> view) { part_found(part, std::move(view)); });
  }
  part_found(head_, store::RecordView{});
}

void RespRead::part_found(Part& part, Result<store::RecordView> view) {
  if (done_) return;
  --parts_pending_;
  if (!view) {
    ++parts_failed_;
    if (view.error().code != Code::kCorrupt) part_code_ = view.error().code;
  } else if (&part != &head_) {
    part.view = std::move(*view);
  }
  if (parts_pending_ > 0) return;
  if (parts_failed_ == 0) {
    if (parts_.size() > 1 || parts_.front().place.bytes > kCheckAtOnce) return connection_checks_.enter(*this);
    static_cast<void>(verify_next());
    return;
  }
  if (part_code_ != Code::kNotFound) return finish(part_code_);
  again(Code::kNotFound);
}

// Whether there is another one.
bool RespRead::verify_next() {
  if (!sound(parts_[verified_])) {
    again(Code::kNotFound);
    return false;
  }
  if (++verified_ < parts_.size()) return true;
  finish(Code::kOk);
  return false;
}

void RespRead::finish(Code code) {
  KVD_CHECK(!done_);
  done_ = true;
  code_ = code;
  if (code != Code::kOk || want_ == Want::kSize) give_up_pins();
  if (on_done_) std::exchange(on_done_, nullptr)();
}

std::vector<Bytes> RespRead::pieces(std::uint64_t first, std::uint64_t bytes) const {
  std::vector<Bytes> pieces;
  if (parts_.empty()) {
    const Bytes page(head_.view.first_slab, kPageBytes);
    if (bytes > 0) pieces.push_back(page.subspan(resp_value_offset(key_.size()) + first, bytes));
    return pieces;
  }
  for (std::uint32_t i = 0; i < parts_.size() && bytes > 0; ++i) {
    const std::uint64_t has = resp_part_bytes(value_bytes_, i);
    const std::uint64_t skipped = std::min(first, has);
    first -= skipped;
    const std::uint64_t n = std::min(bytes, has - skipped);
    if (n > 0) pieces.emplace_back(parts_[i].view.first_slab + skipped, n);
    bytes -= n;
  }
  return pieces;
}

}  // namespace kvd::node
