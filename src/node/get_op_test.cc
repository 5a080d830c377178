// Tests of GetOp on a store that answers when and how the test says.
#include "node/get_op.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "base/check.h"
#include "block/checksum.h"
#include "node/leavers.h"
#include "node/turn_allowance.h"
#include "store/testing/store_kit.h"

namespace kvd::node {
namespace {

// A store in memory, of which some records are said to be on flash: gets of these wait until they are cancelled, or
// fail at once.
class HalfOnFlash final : public store::Store {
 public:
  explicit HalfOnFlash(store::Store& pool) : pool_(pool) {}

  std::vector<block::RecordId> on_flash;
  bool answers = false;                  // gets of these are answered at once, from the pool, where they are, too
  std::uint16_t busy_from = UINT16_MAX;  // gets of layers from this one on find no room
  std::vector<store::Get*> waiting;
  int cancelled = 0;

  Tier lookup(store::NamespaceHandle ns, const block::RecordId& id) const override {
    return std::ranges::find(on_flash, id) != on_flash.end() ? Tier::kFlash : pool_.lookup(ns, id);
  }
  void start_get(store::Get& get) override {
    if (answers || std::ranges::find(on_flash, get.id) == on_flash.end()) return pool_.start_get(get);
    if (get.layer_first < busy_from) return waiting.push_back(&get);
    get.on_done(fail(Code::kBusy, "no room in the pool"));
  }
  void cancel(store::Get& get) override {
    ++cancelled;
    std::erase(waiting, &get);
    get.on_done(fail(Code::kCancelled, "cancelled"));
  }

  void drain(Time deadline, std::move_only_function<void()> done) override { pool_.drain(deadline, std::move(done)); }
  Result<store::NamespaceHandle> open_namespace(const Namespace& ns) override { return pool_.open_namespace(ns); }
  Result<store::NamespaceHandle> open_own_namespace(const Namespace& ns) override {
    return pool_.open_own_namespace(ns);
  }
  void close_namespace(store::NamespaceHandle ns) override { pool_.close_namespace(ns); }
  const block::NamespaceHash& namespace_hash(store::NamespaceHandle ns) const override {
    return pool_.namespace_hash(ns);
  }
  const GroupSchema* schema(store::NamespaceHandle ns, std::uint16_t group) const override {
    return pool_.schema(ns, group);
  }
  std::uint64_t room_bytes(store::NamespaceHandle ns) const noexcept override { return pool_.room_bytes(ns); }
  void promote(store::NamespaceHandle ns, const block::RecordId& id) override { pool_.promote(ns, id); }
  void set_quotas(std::span<const store::TenantQuota> quotas) override { pool_.set_quotas(quotas); }
  std::vector<store::DeviceFigures> device_figures() const override { return {}; }
  std::vector<store::TenantFigures> tenant_figures(std::size_t max) const override { return pool_.tenant_figures(max); }
  std::uint64_t flash_quota_bytes(store::NamespaceHandle ns) const noexcept override {
    return pool_.flash_quota_bytes(ns);
  }
  store::LeasePin pin_for_lease(store::NamespaceHandle ns, const block::RecordId& id,
                                std::uint64_t bytes_max) override {
    return pool_.pin_for_lease(ns, id, bytes_max);
  }
  std::uint64_t unpin_lease(store::Pin pin) override { return pool_.unpin_lease(std::move(pin)); }
  Result<store::PutHandle> begin_put(store::NamespaceHandle ns, const block::RecordId& id, Bytes foreign) override {
    return pool_.begin_put(ns, id, foreign);
  }
  Result<store::PutHandle> begin_replacement(store::NamespaceHandle ns, const block::RecordId& id,
                                             Bytes foreign) override {
    return pool_.begin_replacement(ns, id, foreign);
  }
  void complete_put(store::PutHandle put, std::span<const std::uint64_t> checksums, AckLevel level,
                    std::move_only_function<void(Status)> on_ack) override {
    pool_.complete_put(std::move(put), checksums, level, std::move(on_ack));
  }
  void await(store::NamespaceHandle ns, const block::RecordId& id, AckLevel level,
             std::move_only_function<void(Status)> on_ack) override {
    pool_.await(ns, id, level, std::move(on_ack));
  }
  Status recover(std::string* why) override { return pool_.recover(why); }
  [[nodiscard]] bool recovering() const noexcept override { return pool_.recovering(); }
  bool check(store::NamespaceHandle ns, const block::RecordId& id) override { return pool_.check(ns, id); }
  bool remove(store::NamespaceHandle ns, const block::RecordId& id) override { return pool_.remove(ns, id); }
  void await_removals(std::move_only_function<void(Status)> on_ack) override {
    pool_.await_removals(std::move(on_ack));
  }
  int pool_fd() const noexcept override { return pool_.pool_fd(); }
  int shared_fd() const noexcept override { return -1; }
  std::uint64_t pool_bytes() const noexcept override { return pool_.pool_bytes(); }
  const store::StoreStats& stats() const noexcept override { return pool_.stats(); }
  std::array<std::byte, 16> uuid() const noexcept override { return pool_.uuid(); }
  std::uint64_t boot_epoch() const noexcept override { return pool_.boot_epoch(); }

 protected:
  void drop_put(store::PoolRecord&) noexcept override { KVD_CHECK(false); }  // its puts are the other store's

 private:
  store::Store& pool_;
};

// What a node lends to its operations, without the node.
struct Lender {
  explicit Lender(io::Loop& loop, store::Store& store)
      : leases(loop, store, counters, limits),
        slices(loop),
        messages(loop),
        checks(loop),
        leavers(counters),
        copies(loop, 1),
        gate(loop, log, counters, options) {}
  NullLog log;
  Limits limits;
  NodeCounters counters;
  net::NetCounters net;
  net::MessageMemory message_memory{SIZE_MAX};
  Leases leases;
  net::SliceLine slices;
  net::SliceLine messages;
  net::SliceLine checks;
  Leavers leavers;
  TurnAllowance copies;
  NodeOptions options;
  Gate gate;
  Budget pinned{std::uint64_t{1} << 30}, lent{1}, kept{1}, kept_keys{1}, unfinished{1}, op_keys{1}, rings{1};

  NodeContext context(io::Loop& loop, store::Store& store) {
    return {.loop = loop,
            .log = log,
            .store = store,
            .limits = limits,
            .counters = counters,
            .gate = gate,
            .net = net,
            .shaper = nullptr,
            .turns = nullptr,
            .message_memory = message_memory,
            .movers = nullptr,
            .leases = leases,
            .slices = slices,
            .messages = messages,
            .checks = checks,
            .pinned = pinned,
            .lent = lent,
            .kept = kept,
            .kept_keys = kept_keys,
            .leavers = leavers,
            .unfinished = unfinished,
            .op_keys = op_keys,
            .rings = rings,
            .arenas = rings,
            .windows = rings,
            .copies = copies,
            .verified_at_once = copies,
            .shared_fd = -1,
            .on_refused = [] {},
            .stats_json = {}};
  }
};

std::unique_ptr<OpKeys> some_keys(store::StoreKit& kit, std::size_t count) {
  std::vector<std::byte> bytes(count * 16);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  const KeyList keys{.bytes = bytes, .key_bytes = 16, .native = true};
  return std::make_unique<OpKeys>(kit.store->namespace_hash(kit.ns), keys, std::uint16_t{0}, std::uint16_t{0});
}

// Of all six layers.
GetOp::Request six_layers(const store::StoreKit& kit, std::uint32_t slab_bytes, bool keep = false) {
  return {.id = 1,
          .ns = kit.ns,
          .slab_bytes = slab_bytes,
          .slab_stride = slab_bytes,
          .record_bytes = 6 * slab_bytes,
          .layer_first = 0,
          .layer_end = 6,
          .stop_at_first_failure = true,
          .keep = keep};
}

void put_native(store::StoreKit& kit, const block::RecordId& id, std::uint64_t version = 1) {
  auto put = kit.store->begin_replacement(kit.ns, id, {});
  ASSERT_TRUE(put && *put);
  std::vector<std::uint64_t> checksums;
  for (std::uint16_t layer = 0; layer < kit.store->schema(kit.ns, 0)->layers; ++layer) {
    store::fill_slab(put->slab(layer), 1, version, layer);
    checksums.push_back(block::slab_checksum(put->seed(), layer, put->slab(layer)));
  }
  kit.store->complete_put(std::move(*put), checksums, AckLevel::kPooled, [](Status) {});
}

// A prefix whose first records are in the pool. The first layers of the others are being read when there is no room for
// the next: they have failed, and what the store still owes for them is called off before anything forgets it.
TEST(GetOp, AGroupWhoseKeysHaveFailedIsCancelledBeforeItGoes) {
  constexpr std::uint32_t kSlabBytes = 64 << 10;  // one layer fills the first group
  store::StoreKit kit;
  kit.options.flash_bytes = 0;
  kit.options.pool_bytes = 16 << 20;
  kit.name_space = store::namespace_of(6, kSlabBytes);
  ASSERT_TRUE(kit.open()) << kit.why;
  HalfOnFlash store(*kit.store);
  Lender lent(kit.loop, store);
  NodeContext context = lent.context(kit.loop, store);
  auto keys = some_keys(kit, 4);
  for (std::size_t key = 0; key < 2; ++key) put_native(kit, keys->id(key));
  for (std::size_t key = 2; key < 4; ++key) store.on_flash.push_back(keys->id(key));
  store.busy_from = 1;  // there is room for the first group only

  Pins connection_pins(std::uint64_t{1} << 30, context.pinned);
  const auto op =
      std::make_shared<GetOp>(context, connection_pins, six_layers(kit, kSlabBytes), std::move(keys), io::Callback{});
  op->advance();
  ASSERT_EQ(store.waiting.size(), 2U) << "the first layers of both";
  ASSERT_TRUE(op->ready());
  EXPECT_EQ(op->failed(), 2U);
  for (int messages = 0; !op->finished(); ++messages) {
    ASSERT_LT(messages, 6);
    net::Outgoing message = op->next();
    EXPECT_EQ(message.body.size() % 2, 0U) << "both that are alive";
    message.on_done();
    op->advance();
  }
  EXPECT_TRUE(store.waiting.empty());
  EXPECT_EQ(store.cancelled, 2);
}

// Groups of layers are gets of their own: between two of them a record may be replaced.
TEST(GetOp, WhatIsReplacedBetweenItsLayersFails) {
  constexpr std::uint32_t kSlabBytes = 64 << 10;
  store::StoreKit kit;
  kit.options.flash_bytes = 0;
  kit.options.pool_bytes = 16 << 20;
  kit.name_space = store::namespace_of(6, kSlabBytes);
  ASSERT_TRUE(kit.open()) << kit.why;
  for (const std::uint64_t second : {1U, 2U}) {  // the same bytes again, others
    HalfOnFlash store(*kit.store);
    Lender lent(kit.loop, store);
    NodeContext context = lent.context(kit.loop, store);
    auto keys = some_keys(kit, 2);
    const block::RecordId replaced = keys->id(0);
    for (std::size_t key = 0; key < 2; ++key) {
      put_native(kit, keys->id(key));
      store.on_flash.push_back(keys->id(key));
    }
    Pins connection_pins(std::uint64_t{1} << 30, context.pinned);
    auto request = six_layers(kit, kSlabBytes);
    request.stop_at_first_failure = false;
    const auto op = std::make_shared<GetOp>(context, connection_pins, request, std::move(keys), io::Callback{});
    op->advance();
    ASSERT_EQ(store.waiting.size(), 6U) << "a first layer, four behind it, and the last, of two records";
    for (std::size_t i = 0; i < store.waiting.size(); ++i) {
      if (i == 2) put_native(kit, replaced, second);
      kit.store->start_get(*store.waiting[i]);
    }
    store.waiting.clear();
    EXPECT_EQ(op->failed(), second == 1 ? 0U : 1U);
    std::size_t slabs = 0;
    while (!op->finished()) {
      ASSERT_TRUE(op->ready());
      net::Outgoing message = op->next();
      slabs += message.body.size();
      message.on_done();
    }
    EXPECT_EQ(slabs, second == 1 ? 12U : 6U);
  }
}

// A client reads what it keeps when all of it is there, so the depot reads all of it: more than the window of what is
// on its way to others.
TEST(GetOp, WhatIsKeptDoesNotHoldUpWhatIsStillToBeRead) {
  constexpr std::uint32_t kSlabBytes = 1 << 20;
  constexpr std::size_t kKeys = 12;  // of 6 MiB; the window is 64 MiB
  store::StoreKit kit;
  kit.options.flash_bytes = 0;
  kit.options.pool_bytes = std::uint64_t{192} << 20;
  kit.name_space = store::namespace_of(6, kSlabBytes);
  ASSERT_TRUE(kit.open()) << kit.why;
  HalfOnFlash store(*kit.store);
  store.answers = true;
  Lender lent(kit.loop, store);
  NodeContext context = lent.context(kit.loop, store);
  auto keys = some_keys(kit, kKeys);
  for (std::size_t key = 0; key < kKeys; ++key) {
    put_native(kit, keys->id(key));
    store.on_flash.push_back(keys->id(key));
  }
  for (const bool keep : {true, false}) {
    Pins connection_pins(std::uint64_t{1} << 30, context.pinned);
    const auto op = std::make_shared<GetOp>(context, connection_pins, six_layers(kit, kSlabBytes, keep),
                                            some_keys(kit, kKeys), io::Callback{});
    std::vector<net::Outgoing> views;  // nobody gives one back
    for (op->advance(); op->ready(); op->advance()) views.push_back(op->next_view(views.size() + 1));
    EXPECT_FALSE(op->streams());
    EXPECT_EQ(op->finished(), keep) << "what is only lent comes back soon: it is waited for";
    for (net::Outgoing& view : views) view.on_done();
    op->abort();
  }
}

}  // namespace
}  // namespace kvd::node
