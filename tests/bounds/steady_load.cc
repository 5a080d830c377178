#include "bounds/steady_load.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "block/checksum.h"
#include "store/testing/store_kit.h"

namespace kvd::bounds {
namespace {

struct Stamp {
  std::uint64_t number = 0;
  std::uint32_t layers = 0, layer = 0;
  friend bool operator==(const Stamp&, const Stamp&) = default;
};

void foreign_key(std::uint64_t number, MutableBytes key) { store::fill_slab(key, number, 0, 0); }

}  // namespace

SteadyLoad::SteadyLoad(io::Loop& loop, store::Store& store, std::uint64_t records, std::uint64_t seed)
    : loop_(loop), store_(store), records_(records), random_(seed) {
  kinds_[0] = {.ns = 0, .layers = 4, .slab_bytes = 64 << 10, .foreign = false, .next = 0};
  kinds_[1] = {.ns = 0, .layers = 1, .slab_bytes = 20'000, .foreign = true, .next = 0};
  for (Kind& kind : kinds_) {
    // Names longer than a string holds without memory of its own.
    const auto ns = store_.open_namespace(
        store::namespace_of(kind.layers, kind.slab_bytes, "a fingerprint of " + std::to_string(kind.slab_bytes)));
    KVD_CHECK(ns);
    kind.ns = *ns;
  }
  source_.resize(kinds_[0].slab_bytes);
  store::fill_slab(source_, 7, 0, 0);
  checksums_.reserve(kinds_[0].layers);
  ids_.resize(kMatched);
  tiers_.resize(kMatched);
  for (Slot& slot : slots_) slot.load = this;
}

SteadyLoad::~SteadyLoad() { finish(); }

void SteadyLoad::step() {
  ++steps_;
  for (int i = 0; i < 3; ++i) put(some_kind());
  for (Slot& slot : slots_)
    if (!slot.busy) start(slot);
  if (steps_ % 8 == 0) match();
  if (steps_ % 4 == 0) promote_and_lease();
  loop_.run_once(Millis(1));
}

void SteadyLoad::finish() {
  while (puts_waiting_ > 0 || gets_waiting_ > 0) loop_.run_once(Millis(10));
}

void SteadyLoad::put(Kind& kind) {
  if (puts_waiting_ >= kPutsWaiting) return;
  const std::uint64_t number = kind.next++ % records_;  // again and again, as the first are given up meanwhile
  std::array<std::byte, kForeignBytes> foreign;
  foreign_key(number, foreign);
  auto put = store_.begin_put(kind.ns, store::id_of(number), kind.foreign ? Bytes(foreign) : Bytes());
  if (!put) ++figures_.refused;
  if (!put || !*put) return;
  checksums_.clear();
  for (std::uint16_t layer = 0; layer < kind.layers; ++layer) {
    const MutableBytes slab = put->slab(layer);
    std::memcpy(slab.data(), source_.data(), slab.size());
    save(slab.data(), Stamp{number, kind.layers, layer});
    checksums_.push_back(block::slab_checksum(put->seed(), layer, slab));
  }
  const std::uint64_t dice = random_.below(64);
  const AckLevel level = dice == 0 ? AckLevel::kSynced : dice < 40 ? AckLevel::kWritten : AckLevel::kPooled;
  ++puts_waiting_;
  store_.complete_put(std::move(*put), checksums_, level, [this](const Status& status) {
    --puts_waiting_;
    status ? ++figures_.puts : ++figures_.failed;
  });
}

// Mostly one of the last quarter of what was put, so that the pool has a share of them; else any.
std::uint64_t SteadyLoad::some_number(const Kind& kind) {
  const std::uint64_t put = std::max<std::uint64_t>(1, std::min(kind.next, records_));
  const std::uint64_t back = random_.below(random_.below(2) == 0 ? put / 16 + 1 : put);
  return (kind.next + records_ - 1 - back) % records_;
}

void SteadyLoad::start(Slot& slot) {
  const Kind& kind = some_kind();
  slot.kind = &kind;
  slot.number = some_number(kind);
  slot.busy = true;
  foreign_key(slot.number, slot.foreign);
  store::Get& get = slot.get;
  get.ns = kind.ns;
  get.id = store::id_of(slot.number);
  get.foreign = kind.foreign ? Bytes(slot.foreign) : Bytes();
  get.layer_first = static_cast<std::uint16_t>(random_.below(kind.layers));
  get.layer_count = random_.below(2) == 0 ? 1 : 0;
  if (random_.below(2) == 0) get.layer_first = get.layer_count = 0;
  get.passing = random_.below(8) == 0;
  get.deadline = random_.below(4) == 0 ? after(loop_.now(), Millis(random_.below(20))) : kNever;
  ++gets_waiting_;
  get.on_done = [&slot](const Result<store::RecordView>& view) { slot.load->got(slot, view); };
  store_.start_get(get);
}

void SteadyLoad::got(Slot& slot, const Result<store::RecordView>& view) {
  slot.busy = false;
  --gets_waiting_;
  ++figures_.gets;
  if (!view) {
    ++figures_.misses;
    return;
  }
  for (std::uint32_t i = 0; i < view->checksums.size(); ++i) {
    const Stamp wanted{slot.number, slot.kind->layers, slot.get.layer_first + i};
    if (load<Stamp>(view->first_slab + std::size_t{i} * view->slab_stride) != wanted) ++figures_.wrong;
  }
}

void SteadyLoad::match() {
  const Kind& kind = some_kind();
  for (auto& id : ids_) id = store::id_of(some_number(kind));
  store_.lookup_all(kind.ns, ids_, tiers_);
  figures_.matched +=
      static_cast<std::uint64_t>(std::ranges::count_if(tiers_, [](Tier t) { return t != Tier::kNone; }));
}

void SteadyLoad::promote_and_lease() {
  const Kind& kind = some_kind();
  for (int i = 0; i < 4; ++i) store_.promote(kind.ns, store::id_of(some_number(kind)));
  store_.unpin_lease(store_.pin_for_lease(kind.ns, store::id_of(some_number(kind)), UINT64_MAX).pin);
}

}  // namespace kvd::bounds
