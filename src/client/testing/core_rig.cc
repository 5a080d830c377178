#include "client/testing/core_rig.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "base/random.h"

namespace kvd::client {
namespace {

std::string make_dir() {
  char name[] = "/tmp/kvd-client-XXXXXX";
  KVD_CHECK(::mkdtemp(name) != nullptr);
  return name;
}

}  // namespace

CoreRig::CoreRig(RigOptions rig) : options(rig), dir(make_dir()) {
  depot = std::make_unique<FakeDepot>(loop, options.tcp ? "tcp://127.0.0.1:0" : "unix://" + dir + "/depot");
  proxy = std::make_unique<Proxy>(loop, "unix://" + dir + "/proxy", depot->address());
  event_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  ops = std::make_unique<OpTable>(options.ops_max, event_fd, true);
  ns = *namespaces.add(ns_value());
  memory.resize(std::size_t{options.layers} * options.keys * options.slab_bytes, kPoison);
  region = *regions.add(memory.data(), memory.size(), RegionKind::kHost);
  if (!options.connect) return;
  start_core();
  KVD_CHECK(wait_connected());
  loop.settle();
}

CoreRig::~CoreRig() {
  stop_core();
  proxy.reset();
  depot.reset();
  ::close(event_fd);
  std::filesystem::remove_all(dir);
}

void CoreRig::start_core() {
  core = std::make_unique<Core>(
      loop, *ops, namespaces, state,
      CoreOptions{.address = *net::parse_address(options.shared_memory ? depot->address() : proxy->address()),
                  .name = "rig",
                  .breaker_failures = options.breaker_failures,
                  .breaker_probe = Millis(1000),
                  .verify = options.verify,
                  .seed = 7,
                  .shared_memory = options.shared_memory,
                  .token = options.token});
  core->start();
}

void CoreRig::stop_core() {
  if (core == nullptr) return;
  core->stop();
  core.reset();
}

bool CoreRig::wait_connected(Duration limit) {
  return loop.run_until([this] { return state.connected(); }, limit);
}

Namespace CoreRig::ns_value() const {
  Namespace value;
  value.fingerprint = "weights";
  value.groups.push_back({.group = 0,
                          .layers = options.layers,
                          .slab_bytes = options.slab_bytes,
                          .parts = 2,
                          .block_tokens = 16,
                          .order = "LBHNC"});
  return value;
}

std::vector<std::uint64_t> CoreRig::entered_bytes() {
  std::vector<std::uint64_t> entered;
  std::ifstream maps("/proc/self/smaps");
  bool wanted = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ')) wanted = line.find("memfd:fake-depot") != std::string::npos;
    if (wanted && line.starts_with("Rss:")) entered.push_back(std::stoull(line.substr(4)) << 10);
  }
  return entered;
}

std::vector<std::byte> CoreRig::key_list() const {
  std::vector<std::byte> keys;
  for (std::size_t i = 0; i < options.keys; ++i) {
    std::string key = "key" + std::to_string(i % 10) + std::to_string(i / 10);
    key.resize(options.key_bytes, '.');
    const Bytes bytes = as_bytes(key);
    keys.insert(keys.end(), bytes.begin(), bytes.end());
  }
  return keys;
}

std::vector<std::uint64_t> CoreRig::layer_offsets() const {
  std::vector<std::uint64_t> offsets;
  for (std::size_t i = 0; i < options.layers; ++i) offsets.push_back(i * options.keys * options.slab_bytes);
  return offsets;
}

std::vector<std::uint64_t> CoreRig::block_offsets() const {
  std::vector<std::uint64_t> offsets;
  for (std::size_t i = 0; i < options.keys; ++i) offsets.push_back(i * options.slab_bytes);
  return offsets;
}

OpId CoreRig::submit(Result<OpRequest> request) {
  KVD_CHECK(request.has_value());
  request->submitted = loop.now();
  const auto op = ops->add(std::move(*request));
  KVD_CHECK(op.has_value());
  core->submit(**op, Op::kStart);
  return (*op)->id.load();
}

OpId CoreRig::get(Deadline deadline, bool stop_at_first_failure) {
  const auto keys = key_list();
  const auto layers = layer_offsets();
  const auto blocks = block_offsets();
  return submit(make_get(namespaces, regions,
                         {.ns = ns,
                          .keys = {.bytes = keys, .key_bytes = options.key_bytes},
                          .dest = {.region = region, .layer_offset = layers, .block_offset = blocks, .runs = {}},
                          .stop_at_first_failure = stop_at_first_failure,
                          .deadline = deadline}));
}

OpId CoreRig::borrow(bool verify, Duration hold, bool stop_at_first_failure) {
  const auto keys = key_list();
  return submit(make_borrow(namespaces, {.ns = ns,
                                         .keys = {.bytes = keys, .key_bytes = options.key_bytes},
                                         .verify = verify,
                                         .hold = std::chrono::duration_cast<std::chrono::milliseconds>(hold),
                                         .stop_at_first_failure = stop_at_first_failure,
                                         .deadline = {.total = {}, .progress = {}}}));
}

OpId CoreRig::put(bool whole, Deadline deadline) {
  const auto keys = key_list();
  const auto layers = layer_offsets();
  const auto blocks = block_offsets();
  return submit(make_put(namespaces, regions,
                         {.ns = ns,
                          .keys = {.bytes = keys, .key_bytes = options.key_bytes},
                          .src = {.region = region, .layer_offset = layers, .block_offset = blocks, .runs = {}},
                          .whole = whole,
                          .deadline = deadline}));
}

OpId CoreRig::match(Deadline deadline, std::uint32_t lease_ms) {
  const auto keys = key_list();
  const std::uint16_t zero = 0;
  return submit(make_match(namespaces, {.ns = ns,
                                        .shards = {&zero, 1},
                                        .groups = {&zero, 1},
                                        .keys = {.bytes = keys, .key_bytes = options.key_bytes},
                                        .lease_ms = lease_ms,
                                        .deadline = deadline}));
}

OpId CoreRig::remove() {
  const auto keys = key_list();
  const std::uint16_t zero = 0;
  return submit(make_remove(namespaces, ns, {&zero, 1}, {&zero, 1}, {.bytes = keys, .key_bytes = options.key_bytes},
                            {.total = {}, .progress = {}}));
}

OpId CoreRig::stats() {
  OpRequest request;
  request.kind = OpKind::kStats;
  request.deadline = {.total = {}, .progress = {}};
  return submit(std::move(request));
}

void CoreRig::put_layer(OpId op, std::uint16_t layer) {
  KVD_CHECK(ops->release_layer(op, layer).has_value());
  core->submit(*ops->find(op), Op::kLayers);
}

void CoreRig::cancel(OpId op) {
  ops->find(op)->cancel_id = op;
  core->submit(*ops->find(op), Op::kCancel);
  KVD_CHECK(loop.run_until([&] { return ended(op); }, Millis(1)));
}

bool CoreRig::ended(OpId op) { return ops->find(op) != nullptr && ops->find(op)->ended(); }

Completion CoreRig::finish(OpId op, Duration limit) {
  KVD_CHECK(loop.run_until([&] { return ended(op); }, limit));
  return *ops->try_get(op, kWholeOp);
}

void CoreRig::release(OpId op) { KVD_CHECK(ops->release(op).has_value()); }

std::vector<std::vector<std::byte>> CoreRig::record(std::size_t key) const {
  std::vector<std::vector<std::byte>> slabs;
  for (std::size_t layer = 0; layer < options.layers; ++layer) {
    Random random(key * 1000 + layer);
    auto& slab = slabs.emplace_back(options.slab_bytes);
    for (std::size_t at = 0; at < slab.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t word = random.next();
      std::memcpy(slab.data() + at, &word, std::min(sizeof word, slab.size() - at));
    }
  }
  return slabs;
}

void CoreRig::store_record(std::size_t key) {
  const auto keys = key_list();
  depot->store(ns_value(), 0, 0, Bytes(keys).subspan(key * 5, 5), false, record(key));
}

void CoreRig::store_records() {
  for (std::size_t key = 0; key < options.keys; ++key) store_record(key);
}

void CoreRig::poison() { std::ranges::fill(memory, kPoison); }

void CoreRig::fill_source() {
  for (std::size_t key = 0; key < options.keys; ++key) {
    const auto slabs = record(key);
    for (std::size_t layer = 0; layer < options.layers; ++layer) {
      std::ranges::copy(slabs[layer], slab(layer, key).begin());
    }
  }
}

MutableBytes CoreRig::slab(std::size_t layer, std::size_t key) {
  return MutableBytes(memory).subspan((layer * options.keys + key) * options.slab_bytes, options.slab_bytes);
}

bool CoreRig::landed(std::size_t layer, std::size_t key) {
  return std::ranges::equal(slab(layer, key), record(key)[layer]);
}

bool CoreRig::poisoned(std::size_t layer, std::size_t key) {
  return std::ranges::all_of(slab(layer, key), [](std::byte byte) { return byte == kPoison; });
}

bool CoreRig::all_given_back() {
  loop.settle();
  loop.run_until([] { return false; }, Millis(5));
  return depot->lent.empty() && depot->releases_bad == 0;
}

void SharingRigTest::start(RigOptions options, const ScriptChange& change) {
  options.shared_memory = true;
  options.connect = false;
  rig = std::make_unique<CoreRig>(std::move(options));
  rig->depot->script.shares = true;
  if (change) change(rig->depot->script);
  rig->store_records();
  rig->start_core();
  KVD_CHECK(rig->wait_connected());
  rig->loop.settle();
}

}  // namespace kvd::client
