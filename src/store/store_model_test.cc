// Random operations on a store and on a model of it, on a simulated machine that is restarted, killed, cut off from
// power and given failing reads and writes. The model knows which versions of each record may be seen:
//   while running        the last version put and not removed, or a miss
//   after a crash        any version whose removal was not durable yet, or a miss
//   never                a version whose removal was durable, or bytes that nobody put; with quotas, one that is older
//                        than what was acknowledged as `synced`
// Runs without faults and without eviction allow no miss of what was acknowledged at the level that the crash asks for.
#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

struct Plan {
  bool faults = false;  // reads and writes fail, reads deliver wrong bits
  bool lies = false;    // writes report success and are lost or damaged: then removals may be undone, bytes never wrong
  bool eviction = false;  // more records than flash holds
  bool quotas = false;    // of the tenant, which come and go; some records are replaced by their puts
  std::uint64_t records = 40;
};

class ModelRun {
 public:
  ModelRun(std::uint64_t seed, const Plan& plan) : random_(seed), plan_(plan), kit_(seed), records_(plan.records) {
    kit_.versions_max = 60;
    kit_.wrong = &wrong_;
    kit_.options.list_uses = seed % 2 == 1;
    kit_.options.demote_idle = Millis(5);
    kit_.options.demote_after = Millis(50);
    // Each crash closes a segment early, so room for all of them lets no record be evicted.
    if (!plan.eviction) kit_.options.flash_bytes = (4 << 20) + 60 * kit_.options.segment_bytes;
    if (random_.chance(1, 3)) kit_.options.index_records_max = plan.eviction ? 30 : 4 * plan.records;
    must_open();
  }

  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      step();
      ASSERT_EQ(wrong_, 0u) << "bytes that nobody put, at step " << i;
      // After a power loss a footer may have survived without its payload.
      ASSERT_TRUE(plan_.faults || power_lost_ || kit_.stats().corrupt.value() == 0) << "at step " << i;
    }
    restart();
    for (std::uint64_t n = 0; n < records_.size(); ++n) check_get(n, 0, 0);
  }

 private:
  struct Record {
    std::uint64_t version = 0;         // last put (0 = none or removed)
    std::uint64_t next = 1;            // next version to put
    std::set<std::uint64_t> possible;  // versions that may be seen after a crash
    std::set<std::uint64_t> kept;      // that were put since it was removed last
    AckLevel acked = AckLevel::kPooled;
    bool known = true;  // `version` is what a get must give; false after a crash until it is seen
  };

  void step() {
    const std::uint64_t n = random_.below(records_.size());
    if (plan_.quotas && random_.chance(1, 10)) change_quota();
    switch (random_.below(20)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
      case 5: return put(n);
      case 6:
      case 7:
      case 8:
      case 9: return check_get(n, 0, 0);
      case 10:
      case 11: {
        const auto first = static_cast<std::uint16_t>(random_.below(4));
        return check_get(n, first, static_cast<std::uint16_t>(1 + random_.below(4u - first)));
      }
      case 12:
      case 13: return remove(n);
      case 14: return crowd();
      case 15: return kit_.loop.run_for(Millis(static_cast<std::int64_t>(random_.below(80))));
      case 16: kit_.store->promote(kit_.ns, id_of(n)); return;
      case 17: return fault();
      case 18: return random_.chance(1, 3) ? crash() : void();
      default: return random_.chance(1, 5) ? restart() : void();
    }
  }

  void change_quota() {
    constexpr std::uint64_t kRecord = 36 << 10;
    SpaceQuota quota;
    if (random_.chance(3, 4)) quota.flash_bytes = kRecord + random_.below(20 * kRecord);
    if (random_.chance(1, 4)) quota.pool_bytes = random_.below(20 * kRecord);
    kit_.store->set_quotas(std::vector<TenantQuota>{{kit_.name_space.tenant, quota}});
  }

  // Of every third record each put takes the place of the one before, where there are quotas.
  [[nodiscard]] bool replaced(std::uint64_t n) const { return plan_.quotas && n % 3 == 0; }

  void replace(std::uint64_t n) {
    Record& record = records_[n];
    const auto level = static_cast<AckLevel>(random_.below(3));
    const std::uint64_t version = record.next, puts = kit_.stats().puts.value();
    const Status status = kit_.replace(n, version, level);
    if (kit_.stats().puts.value() == puts) {
      EXPECT_EQ(status.error().code, Code::kBusy);
      return;
    }
    // Also where it is in the pool only, as it is larger than the quota of flash: what it replaces is gone then.
    ASSERT_TRUE(status || status.error().code == Code::kBusy) << code_name(status.error().code);
    ASSERT_LE(record.next, kit_.versions_max);
    record = {version, version + 1, std::move(record.possible), std::move(record.kept), AckLevel::kPooled, true};
    record.possible.insert(version);
    record.kept.insert(version);
    if (status && level == AckLevel::kSynced) acknowledged_synced(record);
  }

  // From here on this one is found or nothing, wherever older ones lie that its tenant has given up.
  static void acknowledged_synced(Record& record) { record.possible = record.kept = {record.version}; }

  void put(std::uint64_t n) {
    if (replaced(n)) return replace(n);
    Record& record = records_[n];
    const bool present = kit_.lookup(n) != Tier::kNone;
    const auto level = static_cast<AckLevel>(random_.below(3));
    const std::uint64_t version = present ? 0 : record.next;
    const Status status = kit_.put(n, version == 0 ? 1 : version, level);
    if (!present && (status || status.error().code == Code::kIo)) {
      ASSERT_LE(record.next, kit_.versions_max);
      record = {version, record.next + 1, std::move(record.possible), std::move(record.kept), AckLevel::kPooled, true};
      record.possible.insert(version);
      record.kept.insert(version);
    }
    if (!status) {
      ASSERT_TRUE(status.error().code == Code::kBusy || (plan_.faults && status.error().code == Code::kIo) ||
                  status.error().code == Code::kNotFound)
          << code_name(status.error().code);
      return;
    }
    if (present && !record.known) return;
    record.acked = std::max(record.acked, level);
    if (plan_.quotas && level == AckLevel::kSynced && record.known) acknowledged_synced(record);
    // Tombstones are written before records, so what was removed before this put is durably so, as this put is.
    if (!present && level == AckLevel::kSynced) removals_durable();
  }

  void removals_durable() {
    for (Record& record : records_) {
      if (!record.known) continue;
      // What a tenant has given up lies where it was, and nobody has removed it.
      if (plan_.quotas) {
        record.possible = record.kept;
        continue;
      }
      record.possible.clear();
      if (record.version != 0) record.possible.insert(record.version);
    }
  }

  void remove(std::uint64_t n) {
    kit_.remove(n);
    records_[n].version = 0;
    records_[n].kept.clear();
    records_[n].acked = AckLevel::kPooled;
    records_[n].known = true;
    EXPECT_EQ(kit_.lookup(n), Tier::kNone);
  }

  void check_get(std::uint64_t n, std::uint16_t first, std::uint16_t count) {
    Record& record = records_[n];
    const std::uint64_t got = kit_.get(n, first, count);
    if (got == 0) {
      const bool lossless = !plan_.faults && !plan_.eviction && record.known && record.version != 0;
      const bool busy = kit_.why_missed == Code::kBusy;
      EXPECT_TRUE(!lossless || busy) << "record " << n << " version " << record.version << " is lost";
      return;
    }
    if (plan_.lies) return;  // get() has seen that these are the bytes of some put of this record
    if (record.known) {
      EXPECT_EQ(got, record.version) << "record " << n;
      return;
    }
    EXPECT_TRUE(record.possible.contains(got)) << "record " << n << " came back as version " << got;
    record.version = got;
    record.kept.insert(got);
    record.known = true;
  }

  // Many gets at once, some with deadlines, some cancelled; none may see anything wrong or stay unanswered.
  void crowd() {
    struct Op {
      Get get;
      std::vector<std::byte> foreign;
      int answers = 0;
    };
    std::vector<std::unique_ptr<Op>> ops;
    for (int i = 0; i < 12; ++i) {
      const std::uint64_t n = random_.below(records_.size());
      auto op = std::make_unique<Op>();
      op->foreign = foreign_of(n);
      op->get.ns = kit_.ns;
      op->get.id = id_of(n);
      op->get.foreign = op->foreign;
      op->get.layer_first = static_cast<std::uint16_t>(random_.below(4));
      if (random_.chance(1, 3))
        op->get.deadline = after(kit_.loop.now(), std::chrono::microseconds(random_.below(300)));
      op->get.on_done = [this, op = op.get(), n](Result<RecordView> view) {
        ++op->answers;
        if (!view || !records_[n].known || plan_.lies) return;
        for (std::uint16_t l = 0; l < op->get.layer_count; ++l)
          EXPECT_TRUE(slab_is({view->first_slab + std::size_t{l} * view->slab_stride, 5'000}, n, records_[n].version,
                              op->get.layer_first + l));
      };
      kit_.store->start_get(op->get);
      ops.push_back(std::move(op));
    }
    for (auto& op : ops)
      if (random_.chance(1, 4)) kit_.store->cancel(op->get);
    kit_.loop.run_for(Millis(20));
    for (auto& op : ops) EXPECT_EQ(op->answers, 1);
  }

  void fault() {
    if (!plan_.faults) return;
    constexpr io::SimFault kOfReads[] = {io::SimFault::kError, io::SimFault::kFlipBit};
    constexpr io::SimFault kOfWrites[] = {io::SimFault::kError, io::SimFault::kLose, io::SimFault::kFlipBit};
    const bool read = random_.chance(1, 2);
    kit_.drive().inject(read ? io::DiskOp::Kind::kRead : io::DiskOp::Kind::kWrite, 1 + random_.below(6),
                        read ? kOfReads[random_.below(2)] : kOfWrites[random_.below(plan_.lies ? 3 : 1)]);
  }

  void crash() {
    const bool power = random_.chance(1, 2);
    const std::uint64_t seed = random_.next();
    power_lost_ = power_lost_ || power;
    if (power) {
      kit_.lose_power(seed, static_cast<std::uint32_t>(random_.below(101)));
    } else {
      kit_.kill(seed);
    }
    must_open();
    const AckLevel needed = power ? AckLevel::kSynced : AckLevel::kWritten;
    for (Record& record : records_) {
      const bool safe = record.version != 0 && record.acked >= needed && !plan_.faults && !plan_.eviction;
      if (safe) continue;
      record.known = record.known && record.possible.empty();
      record.version = 0;
      record.acked = AckLevel::kPooled;
    }
  }

  void restart() {
    kit_.close();
    must_open();
    for (Record& record : records_) {
      // Everything was written and flushed, unless writes failed.
      if (plan_.faults) {
        record.known = record.known && record.possible.empty();
      } else if (record.known && record.version == 0) {
        record.possible.clear();
      }
    }
  }

  void must_open() {
    Status opened = kit_.open();
    // A superblock that cannot be written is an error; a fault that was set before the crash comes once.
    for (int i = 0; plan_.faults && !opened && i < 10; ++i) opened = kit_.open();
    ASSERT_TRUE(opened) << kit_.why;
  }

  Random random_;
  Plan plan_;
  StoreKit kit_;
  std::vector<Record> records_;
  std::uint64_t wrong_ = 0;
  bool power_lost_ = false;
};

class StoreModel : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(StoreModel, KeepsWhatItAcknowledgedWithoutFaults) { ModelRun(GetParam(), {}).run(400); }
TEST_P(StoreModel, StaysRightWhileItEvicts) {
  ModelRun(GetParam() + 1'000, {.eviction = true, .records = 90}).run(600);
}
TEST_P(StoreModel, StaysRightWhileItsTenantHasQuotas) {
  ModelRun(GetParam() + 4'000, {.eviction = true, .quotas = true, .records = 60}).run(600);
}
TEST_P(StoreModel, StaysRightWithAFailingDisk) { ModelRun(GetParam() + 2'000, {.faults = true}).run(400); }
TEST_P(StoreModel, NeverGivesWrongBytesWithALyingDisk) {
  ModelRun(GetParam() + 3'000, {.faults = true, .lies = true}).run(400);
}

INSTANTIATE_TEST_SUITE_P(Seeds, StoreModel, ::testing::Range<std::uint64_t>(1, 41));

}  // namespace
}  // namespace kvd::store
