#include "depot_arm.h"

#include <algorithm>
#include <deque>
#include <random>

#include "kvdepot/client.h"

namespace kvd::bench {
namespace {

constexpr std::size_t kSlabBytesMax = std::size_t{64} << 10;
constexpr Deadline kDeadline{.total = std::chrono::seconds(20), .progress = std::chrono::seconds(5)};
constexpr std::uint16_t kZero = 0;  // shard and group

template <class T>
T must(Result<T> result) {
  if (!result) throw Error(result.error().what);
  return std::move(*result);
}

class DepotArm : public Arm {
 public:
  DepotArm(const std::string& address, bool shared_memory, const std::string& ca)
      : client_(must(Client::open(address, {.connect_timeout = std::chrono::seconds(5),
                                            .require_connection = true,
                                            .shared_memory = shared_memory,
                                            .name = "bench net",
                                            .tls_ca = ca}))),
        random_(std::random_device{}()) {}

  void use(Records& records) override {
    records_ = &records;
    forget();
    const std::size_t slab = std::min(records.bytes(), kSlabBytesMax);
    const std::size_t layers = records.bytes() / slab;
    if (layers * slab != records.bytes()) throw Error("a record must be whole slabs");
    Namespace ns;
    ns.fingerprint = "bench net " + std::to_string(random_());
    ns.groups.push_back({.layers = static_cast<std::uint16_t>(layers),
                         .slab_bytes = static_cast<std::uint32_t>(slab),
                         .block_tokens = 16});
    ns_ = must(client_->open_namespace(ns));
    const std::size_t bytes = records.bytes() * records.count();
    source_ = must(client_->register_region(records.source(0).data(), bytes));
    target_ = must(client_->register_region(records.target(0).data(), bytes));
    for (std::size_t l = 0; l < layers; ++l) layer_offset_.push_back(l * slab);
    for (std::size_t i = 0; i < records.count(); ++i) block_offset_.push_back(i * records.bytes());
    keys_.resize(records.count());
  }

  void send(What what, const Request& request) override {
    if (what == What::kPut) {
      for (std::uint32_t i = request.first; i < request.first + request.count; ++i) keys_[i] = {random_(), random_()};
    }
    const KeyList keys = keys_of(request);
    const Placement place{.region = what == What::kPut ? source_ : target_,
                          .layer_offset = layer_offset_,
                          .block_offset = std::span(block_offset_).subspan(request.first, request.count)};
    if (what == What::kPut) {
      running_.push_back(must(client_->multiput({.ns = ns_, .keys = keys, .src = place, .deadline = kDeadline})));
    } else {
      running_.push_back(must(client_->multiget({.ns = ns_, .keys = keys, .dest = place, .deadline = kDeadline})));
    }
  }

  void finish(What, const Request&) override {
    const OpId op = running_.front();
    running_.pop_front();
    collect(op);
  }

  void match(std::uint32_t first, std::uint32_t count) override {
    if (std::uint64_t{first} + count > keys_.size()) throw Error("more keys than records");
    const KeyList keys{
        .bytes = std::as_bytes(std::span(keys_).subspan(first, count)), .key_bytes = sizeof(Key), .native = true};
    const OpId op = must(client_->match_prefix(
        {.ns = ns_, .shards = {&kZero, 1}, .groups = {&kZero, 1}, .keys = keys, .deadline = kDeadline}));
    if (collect(op).prefix_blocks != count) throw Error("a lookup did not find all records");
  }

 protected:
  [[nodiscard]] KeyList keys_of(const Request& request) const {
    return {.bytes = std::as_bytes(std::span(keys_).subspan(request.first, request.count)),
            .key_bytes = sizeof(Key),
            .native = true};
  }
  [[nodiscard]] std::size_t layers() const noexcept { return layer_offset_.size(); }
  Completion wait_for(OpId op) {
    const Completion done = must(client_->wait(op, kWholeOp, std::chrono::seconds(30)));
    if (done.code != Code::kOk) throw Error(std::string("an operation failed: ") + done.why);
    if (done.failed_keys > 0) throw Error("records are missing or damaged: is the pool large enough?");
    return done;
  }

  Records* records_ = nullptr;
  std::unique_ptr<Client> client_;
  NamespaceId ns_ = 0;
  std::deque<OpId> running_;

 private:
  Completion collect(OpId op) {
    const Completion done = wait_for(op);
    client_->release(op);
    return done;
  }
  // What the last records were registered as.
  void forget() {
    if (ns_ == 0) return;
    static_cast<void>(client_->unregister_region(source_));
    static_cast<void>(client_->unregister_region(target_));
    static_cast<void>(client_->close_namespace(ns_));
    layer_offset_.clear();
    block_offset_.clear();
  }

  std::mt19937_64 random_;
  RegionId source_{}, target_{};
  std::vector<Key> keys_;
  std::vector<std::uint64_t> layer_offset_, block_offset_;
};

class BorrowArm final : public DepotArm {
 public:
  explicit BorrowArm(const std::string& address) : DepotArm(address, true, {}) {}

  void send(What what, const Request& request) override {
    if (what == What::kPut) return DepotArm::send(what, request);
    running_.push_back(
        must(client_->borrow({.ns = ns_, .keys = keys_of(request), .verify = false, .deadline = kDeadline})));
  }

  // Verifies all of it, and that it is this record and lies in the depot's memory.
  void finish(What what, const Request& request) override {
    if (what == What::kPut) return DepotArm::finish(what, request);
    const OpId op = running_.front();
    running_.pop_front();
    wait_for(op);
    const auto view = must(client_->take_view(op));
    client_->release(op);
    if (!view->borrowed()) throw Error("records were copied: is the pool large enough?");
    for (std::uint32_t i = 0; i < request.count; ++i) {
      for (std::uint16_t layer = 0; layer < layers(); ++layer)
        if (!view->verify(i, layer)) throw Error("a view is damaged");
      const auto slab = view->slab(i, 0);
      const auto put = records_->source(request.first + i);
      if (!std::ranges::equal(slab.first(kLooked), put.first(kLooked))) throw Error("a view shows another record");
    }
  }

  [[nodiscard]] bool fills_targets() const noexcept override { return false; }

 private:
  static constexpr std::size_t kLooked = 16;  // bytes of each record
};

}  // namespace

std::unique_ptr<Arm> open_borrower(const std::string& address) { return std::make_unique<BorrowArm>(address); }

std::unique_ptr<Arm> open_depot(const std::string& address, bool shared_memory, const std::string& ca) {
  return std::make_unique<DepotArm>(address, shared_memory, ca);
}

}  // namespace kvd::bench
