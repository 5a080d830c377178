#include "cmd/store_bench.h"

#include <sys/stat.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "block/checksum.h"
#include "block/verified_copy.h"
#include "cmd/stopwatch.h"
#include "store/format.h"
#include "store/volume.h"

namespace kvd::cmd {
namespace {

constexpr std::uint64_t kPutWindowBytes = std::uint64_t{64} << 20;  // for each drive, put and not acknowledged
constexpr std::uint64_t kLayerReadBytes = 256 << 10;                // as src/node/get_op.cc groups layers
constexpr std::uint64_t kFirstLayerBytes = 64 << 10;
constexpr std::uint64_t kLayerWindowBytes = std::uint64_t{64} << 20;
constexpr Duration kDrainLimit = std::chrono::seconds(60);
constexpr Duration kPoolLimit = std::chrono::seconds(20);
// Gets from the pool go there: more than caches hold.
constexpr std::uint64_t kDestinationBytes = std::uint64_t{128} << 20;
constexpr std::size_t kStampBytes = 16;
constexpr std::uint64_t kSegmentsAhead = 4;             // open, ready twice, and one being given up
constexpr std::uint64_t kSegmentExtraBytes = 64 << 10;  // of few records: header and footer

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58'476D'1CE4'E5B9;
  x = (x ^ (x >> 27)) * 0x94D0'49BB'1331'11EB;
  return x ^ (x >> 31);
}

bool stamped(const std::byte* slab, std::uint64_t number, std::uint32_t layer) {
  return load<std::uint64_t>(slab) == number && load<std::uint64_t>(slab + 8) == layer;
}

}  // namespace

Namespace bench_namespace(const RecordSize& size) {
  Namespace ns;
  ns.tenant = "bench";
  ns.fingerprint = "records of " + std::to_string(size.layers) + " x " + std::to_string(size.slab_bytes);
  ns.groups = {{0, size.layers, size.slab_bytes, 2, 16, HitRule::kAll, 0, "LBHNC"}};
  return ns;
}

block::RecordId bench_record(std::uint64_t number) { return {{mix(number + 1), number}, 0, 0}; }

void bench_stamp(MutableBytes slab, std::uint64_t number, std::uint32_t layer) {
  const std::uint64_t words[2] = {number, layer};
  static_assert(sizeof words == kStampBytes);
  std::memcpy(slab.data(), words, sizeof words);
}

Result<std::unique_ptr<StoreBench>> StoreBench::open(Log& log, const StoreBenchOptions& options, std::string& why) {
  auto bench = std::unique_ptr<StoreBench>(new StoreBench(log, options));
  if (auto started = bench->start(why); !started) return fail(started.error());
  return bench;
}

StoreBench::~StoreBench() = default;

Status StoreBench::start(std::string& why) {
  KVD_CHECK(options_.size.slab_bytes >= kStampBytes);
  auto loop = io::make_real_loop();
  if (!loop) return fail(loop.error());
  loop_ = std::move(*loop);
  store::StoreOptions wanted;
  wanted.dir = options_.dir;
  wanted.pool_bytes = options_.pool_bytes;
  wanted.flash_bytes = options_.flash_bytes;
  for (const std::string& dir : options_.devices) wanted.devices.push_back({dir, options_.flash_bytes, true});
  wanted.verify = options_.verify;
  auto store = store::Store::open(*loop_, log_, wanted, &why);
  if (!store) return fail(store.error());
  store_ = std::move(*store);
  const auto ns = store_->open_namespace(bench_namespace(options_.size));
  if (!ns) {
    why = ns.error().what;
    return fail(ns.error());
  }
  ns_ = *ns;
  fill_source();
  wait_for_pool();
  return {};
}

// The pool's memory is touched in the background after opening, and then registered with the disk; a run would pay for
// both. Where the system gives memory back to a host it may take seconds.
void StoreBench::wait_for_pool() {
  const Time limit = after(loop_->now(), kPoolLimit);
  struct stat info{};
  while (loop_->now() < limit && ::fstat(store_->pool_fd(), &info) == 0 &&
         static_cast<std::uint64_t>(info.st_blocks) * 512 < options_.pool_bytes)
    loop_->run_once(Millis(10));
  const Time registered = after(loop_->now(), Millis(100));
  while (loop_->now() < registered) loop_->run_once(registered - loop_->now());
}

void StoreBench::fill_source() {
  source_.resize(options_.size.slab_bytes);
  Random random(7);
  for (std::size_t at = 0; at + 8 <= source_.size(); at += 8) save(source_.data() + at, random.next());
}

std::uint64_t StoreBench::records_max() const {
  const GroupSchema& schema = *store_->schema(ns_, 0);
  const std::uint64_t segment = store::default_segment_bytes(options_.flash_bytes);
  const std::uint64_t segments = options_.flash_bytes / segment;
  const std::uint64_t kept = segments > kSegmentsAhead ? segments - kSegmentsAhead : 1;
  // Descriptors, footers and the ends of segments that the next record does not fit into take less than a sixteenth.
  const std::uint64_t bytes = std::min(options_.flash_bytes / 10 * 8, kept * (segment / 16 * 15));
  const std::uint64_t record = block::shape_of(schema, false).record_bytes();
  // Of large records the last of a segment may not fit. One drive may be ahead of another by a segment or so.
  const std::uint64_t real = (options_.flash_bytes - store::kHeadBytes) / segment;
  const std::uint64_t ahead = kSegmentsAhead + (drives() > 1 ? 2 : 0);
  const std::uint64_t fit = (segment - kSegmentExtraBytes) / (record + kPageBytes);
  return std::min(bytes / record, (real > ahead ? real - ahead : 1) * fit) * drives();
}

bool StoreBench::right(const store::RecordView& view, std::uint64_t number, std::uint32_t first) const {
  for (std::uint32_t i = 0; i < view.checksums.size(); ++i)
    if (!stamped(view.first_slab + std::size_t{i} * view.slab_stride, number, first + i)) return false;
  return true;
}

// ---- Puts ----

Status StoreBench::put_one(std::uint64_t number, std::uint64_t& waiting, Status& worst) {
  auto put = store_->begin_put(ns_, bench_record(number), {});
  // Full of what is not written yet: an acknowledgement makes room.
  while (!put && put.error().code == Code::kBusy) {
    loop_->run_once(Duration::max());
    put = store_->begin_put(ns_, bench_record(number), {});
  }
  if (!put) return fail(put.error());
  if (!*put) return fail(Code::kInvalid, "a record of the benchmark is in the store already");
  std::vector<std::uint64_t> checksums;
  for (std::uint16_t layer = 0; layer < options_.size.layers; ++layer) {
    const MutableBytes slab = put->slab(layer);
    std::memcpy(slab.data(), source_.data(), slab.size());
    bench_stamp(slab, number, layer);
    checksums.push_back(block::slab_checksum(put->seed(), layer, slab));
  }
  waiting += options_.size.bytes();
  store_->complete_put(std::move(*put), checksums, AckLevel::kWritten, [this, &waiting, &worst](Status status) {
    waiting -= options_.size.bytes();
    if (!status) worst = status;
  });
  return {};
}

Result<RunFigures> StoreBench::put(std::uint64_t first, std::uint64_t count) {
  const Stopwatch watch(*loop_);
  const std::uint64_t evicted = store_->stats().segments_evicted.value();
  std::uint64_t waiting = 0;
  Status worst;
  for (std::uint64_t n = first; n < first + count && worst; ++n) {
    if (auto put = put_one(n, waiting, worst); !put) worst = put;
    // Whatever has completed is taken in at once; when the window is full something must complete.
    loop_->run_once(Duration::zero());
    while (waiting > std::min(kPutWindowBytes * drives(), options_.pool_bytes / 4)) loop_->run_once(Duration::max());
  }
  while (waiting > 0) loop_->run_once(Duration::max());
  if (!worst) return fail(worst.error());
  RunFigures figures = watch.finish(count * options_.size.bytes());
  figures.segments_evicted = store_->stats().segments_evicted.value() - evicted;
  return figures;
}

// ---- Gets from flash ----

// One multiget on its way.
struct StoreBench::Request {
  std::vector<store::Get> gets;
  std::size_t pending = 0;
};

Result<RunFigures> StoreBench::get(const GetPattern& pattern) {
  std::vector<std::uint64_t> order(pattern.records);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  Random random(pattern.seed);
  if (!pattern.in_order)
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  const std::uint64_t count = std::min<std::uint64_t>(order.size(), pattern.bytes / options_.size.bytes());
  // In order each run begins elsewhere, so that it is not always the same part that is read.
  const std::uint64_t skip = pattern.in_order ? random.below(order.size() - count + 1) : 0;
  std::vector<Request> requests(pattern.requests);
  std::uint64_t next = 0, got = 0;
  Status worst;
  const auto begin = [&](Request& request) {
    request.gets = std::vector<store::Get>(std::min<std::uint64_t>(pattern.keys, count - next));
    request.pending = request.gets.size();
    for (store::Get& get : request.gets) {
      const std::uint64_t number = order[skip + next++];
      get.ns = ns_;
      get.id = bench_record(number);
      get.on_done = [&, number](Result<store::RecordView> view) {
        --request.pending;
        ++got;
        if (!worst) return;  // the first one counts, not that the rest is cancelled
        if (!view) worst = fail(view.error());
        if (view && !right(*view, number, 0)) worst = fail(Code::kCorrupt, "a get gave another record's bytes");
      };
      store_->start_get(get);
    }
  };
  const std::uint64_t hits = store_->stats().flash_hits.value();
  const Stopwatch watch(*loop_);
  while (got < count && worst) {
    for (Request& request : requests)
      if (request.pending == 0 && next < count) begin(request);
    if (got < count) loop_->run_once(Duration::max());
  }
  if (!worst) {
    for (Request& request : requests)
      for (store::Get& get : request.gets)
        if (get.internal != nullptr) store_->cancel(get);
    return fail(worst.error());
  }
  const RunFigures figures = watch.finish(count * options_.size.bytes());
  if (store_->stats().flash_hits.value() - hits != count)
    return fail(Code::kInvalid, "a record was in the pool already: this is no cold read");
  return figures;
}

// One layer-ordered request: groups of layers of all records, read ahead up to a window.
struct StoreBench::LayerRun {
  struct Group {
    std::vector<store::Get> gets;
    std::vector<store::RecordView> views;
    std::size_t pending = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<Group> groups;
  std::size_t started = 0, done = 0;  // groups; done in order, their pins given back
  std::uint64_t window = 0;
};

Result<RunFigures> StoreBench::get_layers(std::uint64_t first, std::uint64_t count, bool whole) {
  const std::uint16_t layers = options_.size.layers;
  LayerRun run;
  std::vector<std::pair<std::uint16_t, std::uint16_t>> ranges;  // layers of each group
  for (std::uint16_t at = 0; at < layers;) {
    const std::uint64_t io = at == 0 ? kFirstLayerBytes : kLayerReadBytes;
    const auto step = static_cast<std::uint16_t>(
        whole ? layers : std::min<std::uint64_t>(layers - at, (io - 1) / options_.size.slab_bytes + 1));
    ranges.emplace_back(at, step);
    at = static_cast<std::uint16_t>(at + step);
  }
  run.groups.resize(ranges.size());
  Status worst;
  const auto begin = [&](std::size_t g) {
    LayerRun::Group& group = run.groups[g];
    group.gets = std::vector<store::Get>(count);
    group.views.resize(count);
    group.pending = count;
    group.bytes = count * ranges[g].second * options_.size.slab_bytes;
    run.window += group.bytes;
    for (std::uint64_t i = 0; i < count; ++i) {
      store::Get& get = group.gets[i];
      get.ns = ns_;
      get.id = bench_record(first + i);
      get.layer_first = ranges[g].first;
      get.layer_count = ranges[g].second;
      get.on_done = [&, g, i](Result<store::RecordView> view) {
        LayerRun::Group& of = run.groups[g];
        --of.pending;
        if (!worst) return;
        if (!view) worst = fail(view.error());
        if (view && !right(*view, first + i, ranges[g].first))
          worst = fail(Code::kCorrupt, "a get gave another record's bytes");
        if (view) of.views[i] = std::move(*view);
      };
      store_->start_get(get);
    }
  };
  const Stopwatch watch(*loop_);
  double first_layer = 0;
  while (run.done < ranges.size() && worst) {
    while (run.started < ranges.size() && (run.window == 0 || run.window < kLayerWindowBytes)) begin(run.started++);
    loop_->run_once(Duration::max());
    while (run.done < run.started && run.groups[run.done].pending == 0) {
      LayerRun::Group& group = run.groups[run.done++];
      if (run.done == 1) first_layer = watch.seconds();
      group.views.clear();
      run.window -= group.bytes;
    }
  }
  if (!worst) {
    for (auto& group : run.groups)
      for (store::Get& get : group.gets)
        if (get.internal != nullptr) store_->cancel(get);
    return fail(worst.error());
  }
  RunFigures figures = watch.finish(count * options_.size.bytes());
  figures.first_layer_seconds = first_layer;
  return figures;
}

// ---- Gets from the pool ----

Result<store::RecordView> StoreBench::get_now(std::uint64_t number) {
  Result<store::RecordView> result = fail(Code::kNotFound, "");
  bool done = false;
  store::Get get;
  get.ns = ns_;
  get.id = bench_record(number);
  get.on_done = [&](Result<store::RecordView> view) {
    result = std::move(view);
    done = true;
  };
  store_->start_get(get);
  while (!done) loop_->run_once(Duration::max());
  return result;
}

// Where record `number` is copied to: another place for each, as an engine's cache is, and not one that stays in a
// cache of the processor.
MutableBytes StoreBench::destination(std::vector<std::byte>& to, std::uint64_t number) const {
  const std::uint64_t bytes = options_.size.bytes();
  return std::span(to).subspan(number % (to.size() / bytes) * bytes, bytes);
}

Status StoreBench::pass_pool(std::uint64_t count, bool copy, std::vector<std::byte>& to) {
  const std::uint32_t slab_bytes = options_.size.slab_bytes;
  const auto shape = block::shape_of(*store_->schema(ns_, 0), false);
  for (std::uint64_t n = 0; n < count; ++n) {
    const auto view = get_now(n);
    if (!view) return fail(view.error());
    if (!right(*view, n, 0)) return fail(Code::kCorrupt, "a get gave another record's bytes");
    const std::uint64_t seed = copy ? block::record_seed(bench_record(n), shape) : 0;
    const MutableBytes place = destination(to, n);
    const bool past_cache = place.size() >= block::kPastCacheBytes;  // as a client does
    for (std::uint32_t layer = 0; copy && layer < options_.size.layers; ++layer) {
      const Bytes slab(view->first_slab + std::size_t{layer} * view->slab_stride, slab_bytes);
      const MutableBytes into = place.subspan(std::size_t{layer} * slab_bytes, slab_bytes);
      if (block::copy_and_hash(seed, layer, slab, into, past_cache) != view->checksums[layer])
        return fail(Code::kCorrupt, "a slab in the pool fails its checksum");
    }
  }
  return {};
}

// What memory gives: the same bytes, copied and nothing else.
Result<RunFigures> StoreBench::copy_pool(std::uint64_t count, std::uint32_t rounds, std::vector<std::byte>& to) {
  std::vector<store::RecordView> views;
  for (std::uint64_t n = 0; n < count; ++n) {
    auto view = get_now(n);
    if (!view) return fail(view.error());
    views.push_back(std::move(*view));
  }
  const Stopwatch watch(*loop_);
  for (std::uint32_t round = 0; round < rounds; ++round)
    for (std::uint64_t n = 0; n < count; ++n) {
      const MutableBytes place = destination(to, n);
      for (std::size_t layer = 0; layer < options_.size.layers; ++layer)
        std::memcpy(place.data() + layer * options_.size.slab_bytes, views[n].first_slab + layer * views[n].slab_stride,
                    options_.size.slab_bytes);
    }
  return watch.finish(count * rounds * options_.size.bytes());
}

Result<RunFigures> StoreBench::get_from_pool(std::uint64_t count, std::uint32_t rounds, PoolGet how) {
  std::vector<std::byte> to(std::max<std::uint64_t>(kDestinationBytes, options_.size.bytes()));
  const bool copy = how == PoolGet::kCopy;
  if (auto warm = pass_pool(count, copy, to); !warm) return fail(warm.error());
  if (how == PoolGet::kMemcpy) return copy_pool(count, rounds, to);
  const std::uint64_t hits = store_->stats().pool_hits.value();
  const Stopwatch watch(*loop_);
  for (std::uint32_t round = 0; round < rounds; ++round)
    if (auto pass = pass_pool(count, copy, to); !pass) return fail(pass.error());
  const RunFigures figures = watch.finish(count * rounds * options_.size.bytes());
  if (store_->stats().pool_hits.value() - hits != count * rounds)
    return fail(Code::kNotFound, "the records did not stay in the pool");
  return figures;
}

void StoreBench::close() {
  bool drained = false;
  store_->drain(after(loop_->now(), kDrainLimit), [&] { drained = true; });
  while (!drained) loop_->run_once(Duration::max());
  store_.reset();
}

}  // namespace kvd::cmd
