#include "client/get_flow.h"

#include <algorithm>
#include <limits>
#include <new>
#include <numeric>

#include "base/check.h"
#include "block/prefetch.h"
#include "block/verified_copy.h"

namespace kvd::client {
namespace {

// What helpers have taken is a claim each; longer than that, they have lost their core.
constexpr Duration kHelperSpin = std::chrono::microseconds(100);

}  // namespace

GetFlow::GetFlow(Op& op, OpTable& table, GetCounters& counters, bool verify)
    : op_(op),
      table_(table),
      counters_(counters),
      verify_(verify),
      failed_(op.request.keys.count()),
      live_(op.request.keys.count()),
      passed_over_(0) {
  std::iota(live_.begin(), live_.end(), 0U);
  const std::uint64_t slabs = std::uint64_t{op.request.layer_count} * op.request.keys.count();
  past_cache_ = slabs * op.request.layout.slab_bytes() >= block::kPastCacheBytes;
  if (!borrows()) return;
  const OpRequest& request = op.request;
  slabs_ = {.places = std::vector<const std::byte*>(std::size_t{request.layer_count} * request.keys.count()),
            .keys = request.keys.count(),
            .layer_first = request.layer_first,
            .slab_bytes = request.layout.slab_bytes(),
            .checksums = {},
            .seeds = {},
            .ns = request.ns,
            .shard = request.shards[0],
            .group = request.groups[0],
            .key_bytes = {},
            .native = request.keys.native};
  if (request.verify || !verify) return;
  slabs_.checksums.resize(slabs_.places.size());
  slabs_.seeds = request.seeds;
  slabs_.key_bytes = request.key_bytes;
}

GetFlow::~GetFlow() {
  if (shared_) table_.copies().close();
}

void GetFlow::lend(std::shared_ptr<LoanDesk> desk, SharedKeeper keeper) {
  desk_ = std::move(desk);
  keeper_ = std::move(keeper);
}

// Memory that a view has when the depot does not keep its slabs. kNoSpace.
Status GetFlow::make_copies() {
  if (!borrows() || copies_ != nullptr) return {};
  const std::size_t bytes = slabs_.places.size() * slabs_.slab_bytes;
  copies_.reset(new (std::nothrow) std::byte[bytes]);
  if (copies_ == nullptr) return fail(Code::kNoSpace, "there is no memory for a copy of the slabs");
  own_layout_ = Layout::packed(copies_.get(), op_.request.layer_count, slabs_.keys, slabs_.slab_bytes);
  return {};
}

void GetFlow::keep(std::uint64_t view, Time now) {
  if (loans_.empty() || loans_.back()->mapping() != mapping_) {
    loans_.push_back(std::make_shared<Loan>(desk_, mapping_, keeper_, now));
  }
  std::vector<Bytes> parts;
  const std::size_t bytes = (source_layers_ - 1) * source_stride_ + slabs_.slab_bytes;
  for (const std::byte* const source : sources_) parts.emplace_back(source, bytes);
  loans_.back()->add(view, parts);
}

std::unique_ptr<View> GetFlow::make_view() {
  for (std::size_t at = 0; at < slabs_.places.size(); ++at) {
    if (failed_.test(at % slabs_.keys)) slabs_.places[at] = nullptr;
  }
  return std::make_unique<LentView>(std::move(slabs_), std::move(copies_), std::move(loans_));
}

Status GetFlow::begin(const wire::Header& header, const wire::GetData& data) {
  if (Status sized = wire::check_get_payload(header, data, op_.request.layout.slab_bytes()); !sized) return sized;
  if (Status made = make_copies(); !made) return made;
  stays_ = false;
  return begin_layers(header, data.failed, data.checksums);
}

Status GetFlow::begin_view(const wire::Header& header, const wire::GetView& view, const SharedMapping& memory) {
  const std::uint32_t slab_bytes = op_.request.layout.slab_bytes();
  const Bytes bytes = memory->bytes();
  if (Status placed = wire::check_view_places(header, view, slab_bytes, bytes.size()); !placed) return placed;
  if (Status made = keeps() ? Status() : make_copies(); !made) return made;
  stays_ = keeps();
  if (Status begun = begin_layers(header, view.failed, view.checksums); !begun) return begun;
  sources_.resize(view.offsets.size());
  for (std::size_t i = 0; i < sources_.size(); ++i) sources_[i] = bytes.data() + view.offsets[i];
  source_stride_ = view.slab_stride;
  source_layer_ = announced_;
  source_layers_ = header.layer_count;
  mapping_ = memory;
  share_view();
  return {};
}

void GetFlow::share_view() {
  CopyJob& job = table_.copies();
  const std::uint32_t slab_bytes = op_.request.layout.slab_bytes();
  const std::uint64_t bytes = walk_.left();
  if (!job.shared() || !verifies() || bytes < kSharedViewMin || bytes == slab_bytes || slab_bytes > kSharedSlabMax) {
    return;
  }
  shared_ = true;
  collected_ = 0;
  passed_over_ = failed_;
  job.open(op_.results.whole.op, *this, bytes / slab_bytes, slab_bytes);
  if (bytes >= kCallingViewMin) op_.events.call();
}

// What GET data and GET view have in common.
Status GetFlow::begin_layers(const wire::Header& header, Bytes failed, const wire::U64View& checksums) {
  const OpRequest& request = op_.request;
  if (walk_.left() > 0 || header.items != request.keys.count()) {
    return fail(Code::kCorrupt, "GET data that belongs to no get");
  }
  if (Status taken = take_failures(failed); !taken) return taken;
  const bool gives_up = header.last() && live_.empty();  // the rest of the layers has no keys left
  const std::uint32_t first = std::uint32_t{request.layer_first} + announced_;
  const std::uint32_t end = std::uint32_t{announced_} + header.layer_count;
  if (header.layer_first != first || end > request.layer_count || (header.layer_count == 0 && !gives_up)) {
    return fail(Code::kCorrupt, "GET data out of layer order");
  }
  if (checksums.size() != header.layer_count * live_.size()) {
    return fail(Code::kCorrupt, "GET data with another number of checksums than slabs");
  }
  message_end_ = gives_up ? request.layer_count : static_cast<std::uint16_t>(end);
  if (header.last() && message_end_ < request.layer_count) {
    return fail(Code::kCorrupt, "GET data ends before its last layer");
  }
  checksums_.resize(checksums.size());
  for (std::size_t i = 0; i < checksums_.size(); ++i) checksums_[i] = checksums[i];
  checksum_at_ = 0;
  walk_ = SlabWalk(layout(), announced_, header.layer_count, live_);
  if (live_.empty()) {
    while (announced_ < message_end_) announce_layer();
  }
  return {};
}

// Takes over the depot's bitmap: what has failed there stays failed, and has no slabs from now on.
Status GetFlow::take_failures(Bytes failed) {
  const std::size_t keys = op_.request.keys.count();
  if (failed.size() != wire::bitmap_bytes(keys)) return fail(Code::kCorrupt, "GET data with a bitmap of another size");
  const std::size_t failing = wire::count_bits(failed);
  if (failing == 0 && live_.size() == keys) return {};
  std::erase_if(live_, [&](std::uint32_t key) {
    if (!wire::bit(failed, key)) return false;
    fail_key(key);
    return true;
  });
  // A key that had failed and is alive again makes these differ.
  if (keys - live_.size() != failing) return fail(Code::kCorrupt, "GET data with a failed key that is back");
  return {};
}

void GetFlow::fail_key(std::size_t key) {
  if (op_.request.stop_at_first_failure) {
    failed_.set_from(key);
  } else {
    failed_.set(key);
  }
}

std::size_t GetFlow::places(std::span<iovec> out) const { return walk_.gather(out, kReceiveBytesMax).count; }

void GetFlow::landed(std::size_t bytes) {
  counters_.bytes_loaded.add(bytes);
  walk_.advance(bytes, [this](std::size_t layer, std::uint32_t key) { on_slab(layer, key, std::nullopt); });
}

// Of the current view.
Bytes GetFlow::source_of(std::size_t layer, std::size_t key_at) const noexcept {
  return {sources_[key_at] + (layer - source_layer_) * source_stride_, op_.request.layout.slab_bytes()};
}

// Asks for the first pages of the slab behind that one, in which nobody else would look ahead.
void GetFlow::fetch_behind(std::size_t layer, std::size_t key_at) const noexcept {
  if (op_.request.layout.slab_bytes() < block::kAheadWorth || !block::gains_by_fetching()) return;
  if (++key_at == live_.size()) {
    key_at = 0;
    if (++layer == source_layer_ + source_layers_) return;
  }
  const Bytes next = source_of(layer, key_at);
  for (std::size_t page = 0; page < block::kAheadBytes; page += block::kAheadStep) block::fetch_ahead(next, page);
}

// Any thread: what it reads stays as it is while the job is open, and each slab is another thread's.
bool GetFlow::run_slab(std::size_t slab) const noexcept {
  const OpRequest& request = op_.request;
  const std::size_t layer = source_layer_ + slab / live_.size();
  const std::size_t key_at = slab % live_.size();
  const std::uint32_t key = live_[key_at];
  if (passed_over_.test(key)) return true;
  const Bytes source = source_of(layer, key_at);
  fetch_behind(layer, key_at);
  const auto schema_layer = static_cast<std::uint32_t>(request.layer_first + layer);
  if (stays_) return block::slab_checksum(request.seeds[key], schema_layer, source) == checksums_[slab];
  block::SlabHasher hasher(request.seeds[key], schema_layer, source.size());
  layout().write(layer, key, 0, source, &hasher, past_cache_);
  return hasher.finish() == checksums_[slab];
}

void GetFlow::copy_shared(std::size_t bytes_max) {
  CopyJob& job = table_.copies();
  const std::size_t slab_bytes = op_.request.layout.slab_bytes();
  std::size_t done = 0;
  while (done < bytes_max) {
    const std::size_t slabs = job.run_next();
    if (slabs == 0) break;
    done += slabs * slab_bytes;
    collect();
  }
  if (done == 0) job.await(collected_, kHelperSpin);
  collect();
}

// Takes the results that are there, in order.
void GetFlow::collect() {
  CopyJob& job = table_.copies();
  const std::uint32_t slab_bytes = op_.request.layout.slab_bytes();
  for (; walk_.left() > 0; ++collected_) {
    const CopyJob::State state = job.state(collected_);
    if (state == CopyJob::State::kMissing) return;
    const SlabWalk::Place at = walk_.place();
    if (stays_ && !failed_.test(at.key)) {
      slabs_.places[place_of(at.layer, at.key)] = source_of(at.layer, at.key_at).data();
    }
    (stays_ ? counters_.bytes_borrowed : counters_.bytes_shared).add(slab_bytes);
    counters_.bytes_loaded.add(slab_bytes);
    walk_.advance(slab_bytes,
                  [&](std::size_t layer, std::uint32_t key) { on_slab(layer, key, state == CopyJob::State::kGood); });
  }
  shared_ = false;
  job.close();
}

// Slabs of keys that have failed are passed over.
bool GetFlow::copy(std::size_t bytes_max) {
  if (shared_) {
    const std::uint64_t before = walk_.left();
    copy_shared(bytes_max);
    return walk_.left() < before;
  }
  const OpRequest& request = op_.request;
  const std::uint32_t slab_bytes = request.layout.slab_bytes();
  if (stays_ && !verifies()) bytes_max = std::numeric_limits<std::size_t>::max();  // nothing is read
  for (std::size_t done = 0; done < bytes_max && walk_.left() > 0;) {
    const SlabWalk::Place at = walk_.place();
    const Bytes slab = source_of(at.layer, at.key_at);
    const Bytes step = slab.subspan(at.in_slab, std::min<std::size_t>(kCopyStepBytes, slab_bytes - at.in_slab));
    if ((!stays_ || verifies()) && at.in_slab + step.size() == slab_bytes) fetch_behind(at.layer, at.key_at);
    if (!failed_.test(at.key)) {
      // One that is hashed where it lies is hashed at once, if it is not too long for that.
      if (verifies() && at.in_slab == 0 && (!stays_ || step.size() < slab_bytes)) {
        hasher_.emplace(request.seeds[at.key], static_cast<std::uint32_t>(request.layer_first + at.layer), slab_bytes);
      }
      if (stays_) {
        slabs_.places[place_of(at.layer, at.key)] = slab.data();
        if (hasher_) hasher_->add(step);
      } else {
        layout().write(at.layer, at.key, at.in_slab, step, hasher_ ? &*hasher_ : nullptr, past_cache_);
      }
    }
    (stays_ ? counters_.bytes_borrowed : counters_.bytes_shared).add(step.size());
    landed(step.size());
    done += step.size();
  }
  return true;
}

// Of the slab as it lies at its destination now.
std::uint64_t GetFlow::checksum(std::size_t layer, std::uint32_t key) const {
  if (hasher_) return hasher_->finish();
  const OpRequest& request = op_.request;
  const auto schema_layer = static_cast<std::uint32_t>(request.layer_first + layer);
  if (borrows()) {
    const Bytes slab(slabs_.places[place_of(layer, key)], slabs_.slab_bytes);
    return block::slab_checksum(request.seeds[key], schema_layer, slab);
  }
  return layout().checksum(layer, key, request.seeds[key], schema_layer);
}

// `good`: whether it is what it should be; none: it is not known yet.
void GetFlow::on_slab(std::size_t layer, std::uint32_t key, std::optional<bool> good) {
  std::byte* const copy = copies_.get();
  if (copy != nullptr && slabs_.places[place_of(layer, key)] == nullptr) {
    slabs_.places[place_of(layer, key)] = copy + place_of(layer, key) * slabs_.slab_bytes;
  }
  const std::uint64_t expected = checksums_[checksum_at_++];
  if (!slabs_.checksums.empty()) slabs_.checksums[place_of(layer, key)] = expected;
  const auto is_good = [&] { return good ? *good : checksum(layer, key) == expected; };
  if (verifies() && !failed_.test(key) && !is_good()) {
    counters_.corrupt_slabs.add();
    damaged_.push_back(key);
    fail_key(key);
  }
  hasher_.reset();
  if (key == live_.back()) announce_layer();
}

void GetFlow::announce_layer() {
  KVD_CHECK(announced_ < message_end_);
  op_.results.layers[announced_] = {.failed_keys = failed_.count(), .failed = failed_.snapshot(op_.results)};
  ++announced_;
  table_.announce_layer(op_);
}

void GetFlow::fill_whole(Completion& whole) {
  whole.failed_keys = failed_.count();
  whole.failed = failed_.snapshot(op_.results);
}

}  // namespace kvd::client
