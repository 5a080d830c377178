#include "store/testing/store_kit.h"

#include <stdlib.h>
#include <string.h>  // memmem
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "block/checksum.h"
#include "store/format.h"

namespace kvd::store {
namespace {

constexpr Duration kLimit = std::chrono::minutes(5);

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58'476D'1CE4'E5B9;
  x = (x ^ (x >> 27)) * 0x94D0'49BB'1331'11EB;
  return x ^ (x >> 31);
}

std::uint64_t slab_seed(std::uint64_t number, std::uint64_t version, std::uint32_t layer) {
  return mix(number * 1'000'003 + version * 1'009 + layer + 1);
}

}  // namespace

TempDir::TempDir() : TempDir(std::filesystem::temp_directory_path().string()) {}

TempDir::TempDir(const std::string& folder) {
  std::string path = folder + "/kvdepot-store-XXXXXX";
  KVD_CHECK(::mkdtemp(path.data()) != nullptr);
  path_ = path;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void fill_slab(MutableBytes slab, std::uint64_t number, std::uint64_t version, std::uint32_t layer) {
  const std::uint64_t seed = slab_seed(number, version, layer);
  for (std::size_t at = 0; at < slab.size(); at += 8) {
    const std::uint64_t word = seed + at * 0x9E37'79B9'7F4A'7C15;
    std::memcpy(slab.data() + at, &word, std::min<std::size_t>(8, slab.size() - at));
  }
}

bool slab_is(Bytes slab, std::uint64_t number, std::uint64_t version, std::uint32_t layer) {
  const std::uint64_t seed = slab_seed(number, version, layer);
  for (std::size_t at = 0; at < slab.size(); at += 8) {
    const std::uint64_t word = seed + at * 0x9E37'79B9'7F4A'7C15;
    if (std::memcmp(slab.data() + at, &word, std::min<std::size_t>(8, slab.size() - at)) != 0) return false;
  }
  return true;
}

block::RecordId id_of(std::uint64_t number, std::uint16_t group) { return {{mix(number), number}, 0, group}; }

std::vector<std::byte> foreign_of(std::uint64_t number) {
  std::vector<std::byte> foreign(32);
  fill_slab(foreign, number, 0, 0);
  return foreign;
}

Namespace namespace_of(std::uint16_t layers, std::uint32_t slab_bytes, const std::string& fingerprint) {
  Namespace ns;
  ns.fingerprint = fingerprint;
  ns.groups = {{0, layers, slab_bytes, 2, 128, HitRule::kAll, 0, "LBHNC"}};
  return ns;
}

StoreKit::StoreKit(std::uint64_t seed, const io::SimDiskModel& model)
    : disks(seed, model), name_space(namespace_of(4, 5'000)) {
  options.dir = dir.path() + "/store";
  options.pool_bytes = 1 << 20;
  options.segment_bytes = 256 << 10;
  options.flash_bytes = (4 << 20) + 8 * options.segment_bytes;
  options.prefault = false;
  options.small_sizes = true;
  options.list_uses = false;  // tests damage headers behind an orderly end
}

StoreKit::~StoreKit() { store.reset(); }

void StoreKit::add_device(std::uint64_t segments) {
  const std::string name = dir.path() + "/device" + std::to_string(options.devices.size() + 1);
  options.devices.push_back({name, (4 << 20) + segments * options.segment_bytes, true});
}

Status StoreKit::open() {
  auto opened = Store::open(loop, log, options, &why, &disks);
  if (!opened) return fail(opened.error());
  store = std::move(*opened);
  ns = kNotOpen;
  if (auto recovered = recover(); !recovered) {
    store.reset();
    return recovered;
  }
  if (auto named = open_namespace(); !named) return named;
  loop.run_for(Millis(10));  // segments become ready
  return {};
}

Status StoreKit::open_namespace() {
  if (ns != kNotOpen) return {};
  const auto handle = store->open_namespace(name_space);
  if (!handle) return fail(handle.error());
  ns = *handle;
  return {};
}

Status StoreKit::recover() {
  io::Timer ask(loop, [&] {
    static_cast<void>(open_namespace());  // not before flash has told of it
    meanwhile();
    ask.arm_in(std::chrono::microseconds(20));
  });
  if (options.recover_later && meanwhile) ask.arm(loop.now());
  return store->recover(&why);
}

void StoreKit::close() {
  bool drained = false;
  store->drain(after(loop.now(), kLimit), [&] { drained = true; });
  KVD_CHECK(loop.run_until([&] { return drained; }, kLimit));
  store.reset();
}

void StoreKit::kill(std::uint64_t seed) {
  disks.kill({.seed = seed});
  store.reset();
}

void StoreKit::lose_power(std::uint64_t seed, std::uint32_t keep_percent) {
  disks.lose_power({.seed = seed, .keep_percent = keep_percent});
  store.reset();
}

void StoreKit::complete(PutHandle put, std::uint64_t number, std::uint64_t version, AckLevel level,
                        std::move_only_function<void(Status)> on_ack) {
  std::vector<std::uint64_t> checksums;
  for (std::uint16_t layer = 0; layer < store->schema(ns, 0)->layers; ++layer) {
    fill_slab(put.slab(layer), number, version, layer);
    checksums.push_back(block::slab_checksum(put.seed(), layer, put.slab(layer)));
  }
  store->complete_put(std::move(put), checksums, level, std::move(on_ack));
}

std::optional<std::uint64_t> StoreKit::find_on_drive(std::uint64_t number, std::uint64_t version, std::uint32_t layer,
                                                     std::size_t device) {
  std::vector<std::byte> all(drive(device).size()), slab(name_space.groups[0].slab_bytes);
  drive(device).peek(0, all);
  fill_slab(slab, number, version, layer);
  const void* const found = ::memmem(all.data(), all.size(), slab.data(), slab.size());
  if (found == nullptr) return std::nullopt;
  return static_cast<std::uint64_t>(static_cast<const std::byte*>(found) - all.data());
}

std::uint64_t StoreKit::segment_at(std::uint64_t segment) const { return kHeadBytes + segment * options.segment_bytes; }

std::uint32_t StoreKit::segment_of(std::uint64_t number, std::uint64_t version, std::size_t device) {
  const std::uint64_t place = find_on_drive(number, version, 0, device).value() - kHeadBytes;
  return static_cast<std::uint32_t>(place / options.segment_bytes);
}

std::optional<Code> StoreKit::await_removals(Duration limit) {
  const auto code = std::make_shared<std::optional<Code>>();  // the answer may come when nobody waits any more
  store->await_removals([code](const Status& status) { *code = status ? Code::kOk : status.error().code; });
  loop.run_until([&] { return code->has_value(); }, limit);
  return *code;
}

void StoreKit::start_put(std::uint64_t number, std::optional<Code>& code, AckLevel level) {
  auto put = store->begin_put(ns, id_of(number), foreign_of(number));
  KVD_CHECK(put && *put);
  complete(std::move(*put), number, 1, level,
           [&code](Status status) { code = status ? Code::kOk : status.error().code; });
}

Status StoreKit::put(std::uint64_t number, std::uint64_t version, AckLevel level) {
  return finish(store->begin_put(ns, id_of(number), foreign_of(number)), number, version, level);
}

Status StoreKit::replace(std::uint64_t number, std::uint64_t version, AckLevel level) {
  return finish(store->begin_replacement(ns, id_of(number), foreign_of(number)), number, version, level);
}

Status StoreKit::finish(Result<PutHandle> put, std::uint64_t number, std::uint64_t version, AckLevel level) {
  if (!put) return fail(put.error());
  Status result = fail(Code::kTimeout, "never acknowledged");
  bool done = false;
  const auto on_ack = [&](Status status) {
    result = status;
    done = true;
  };
  if (!*put) {
    store->await(ns, id_of(number), level, on_ack);
  } else {
    complete(std::move(*put), number, version, level, on_ack);
  }
  loop.run_until([&] { return done; }, kLimit);
  return result;
}

std::uint64_t StoreKit::get(std::uint64_t number, std::uint16_t first, std::uint16_t count) {
  const auto foreign = foreign_of(number);
  Get get;
  get.ns = ns;
  get.id = id_of(number);
  get.foreign = foreign;
  get.layer_first = first;
  get.layer_count = count;
  get.passing = passing;
  std::uint64_t version = 0;
  bool done = false;
  get.on_done = [&](Result<RecordView> view) {
    done = true;
    why_missed.reset();
    if (view) {
      version = version_of(*view, number, first, get.layer_count);
    } else {
      why_missed = view.error().code;
    }
  };
  store->start_get(get);
  KVD_CHECK(loop.run_until([&] { return done; }, kLimit));
  return version;
}

std::uint64_t StoreKit::version_of(const RecordView& view, std::uint64_t number, std::uint16_t first,
                                   std::uint16_t count) {
  const std::uint32_t bytes = store->schema(ns, 0)->slab_bytes;
  for (std::uint64_t version = 1; version <= versions_max; ++version) {
    bool all = true;
    for (std::uint16_t i = 0; all && i < count; ++i)
      all = slab_is({view.first_slab + std::size_t{i} * view.slab_stride, bytes}, number, version, first + i);
    if (all) return version;
  }
  KVD_CHECK(wrong != nullptr);  // bytes that nobody put
  ++*wrong;
  return ~std::uint64_t{0};
}

void ManyGets::ask(std::uint64_t number, Time deadline, std::uint16_t layers) {
  asked_.push_back(std::make_unique<Asked>());
  Asked& asked = *asked_.back();
  asked.foreign = foreign_of(number);
  asked.get.ns = kit_.ns;
  asked.get.id = id_of(number);
  asked.get.foreign = asked.foreign;
  asked.get.passing = true;
  asked.get.layer_count = layers;
  asked.get.deadline = deadline;
  asked.get.on_done = [&asked, this](const Result<RecordView>& view) {
    asked.over = true;
    hits_ += view ? 1 : 0;
  };
  kit_.store->start_get(asked.get);
}

bool ManyGets::some_over() const {
  return std::ranges::any_of(asked_, [](const auto& asked) { return asked->over; });
}

void ManyGets::forget_over() {
  std::erase_if(asked_, [](const auto& asked) { return asked->over; });
}

void StoreKit::settle() {
  KVD_CHECK(loop.run_until([&] { return stats().dirty_records.value() == 0; }, kLimit));
  loop.run_for(std::chrono::milliseconds(200));
}

bool StoreKit::flip_in_pool(std::uint64_t number, std::uint16_t layer) {
  const auto foreign = foreign_of(number);
  Get get;
  get.ns = ns;
  get.id = id_of(number);
  get.foreign = foreign;
  get.layer_first = layer;
  get.layer_count = 1;
  bool flipped = false;
  get.on_done = [&](const Result<RecordView>& view) {
    if (!view) return;
    std::byte byte{};
    const auto at = static_cast<off_t>(view->pool_offset) + 100;
    flipped = ::pread(store->pool_fd(), &byte, 1, at) == 1;
    byte ^= std::byte{4};
    flipped = flipped && ::pwrite(store->pool_fd(), &byte, 1, at) == 1;
  };
  if (lookup(number) == Tier::kPool) store->start_get(get);  // answered inside
  return flipped;
}

Status StoreKit::reopen() {
  close();
  return open();
}

}  // namespace kvd::store
