#include "node/budget.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "node/pins.h"

namespace kvd::node {
namespace {

TEST(Budget, SharesGiveThemselvesBack) {
  Gauge used;
  Budget budget(100, &used);
  {
    Budget::Share a = budget.take(60);
    EXPECT_TRUE(a);
    EXPECT_FALSE(budget.take(41));
    Budget::Share b = budget.take(40);
    EXPECT_TRUE(b);
    EXPECT_EQ(used.value(), 100U);
    a = std::move(b);  // gives a's 60 back
    EXPECT_EQ(used.value(), 40U);
  }
  EXPECT_EQ(used.value(), 0U);
}

TEST(Budget, OneShareLargerThanAllIsGivenWhenNothingElseIs) {
  Budget budget(100);
  Budget::Share huge = budget.take(UINT64_MAX);
  EXPECT_TRUE(huge);
  EXPECT_FALSE(budget.take(1));
  huge.release();
  Budget::Share small = budget.take(1);
  EXPECT_FALSE(budget.take(UINT64_MAX));
}

TEST(Budget, WhoWantsEverythingLeavesOthersTheirs) {
  Budget budget(640);
  EXPECT_TRUE(budget.is_fair(0, 10'000)) << "nobody else is there";
  Budget::Share first = budget.take(480);
  EXPECT_TRUE(budget.is_fair(480, 32));
  EXPECT_FALSE(budget.is_fair(480, 33)) << "four times what is left for all others";
  EXPECT_TRUE(budget.is_fair(0, 80));
  EXPECT_FALSE(budget.is_fair(0, 81)) << "an eighth is for small ones";
  Budget::Share second = budget.take(80);
  EXPECT_FALSE(budget.is_fair(0, 11));
  EXPECT_TRUE(budget.is_fair(0, 10));
  EXPECT_TRUE(budget.is_fair(10, 62));
  EXPECT_TRUE(budget.is_fair(10, 46, 20)) << "of what is left, 20 are for who holds nothing";
  EXPECT_FALSE(budget.is_fair(10, 47, 20));
  EXPECT_FALSE(budget.is_fair(10, 10, 71));
  EXPECT_FALSE(budget.is_fair(10, 63));
  EXPECT_FALSE(budget.is_fair(10, 81)) << "there is no room";
  int told = 0;
  budget.on_room = [&] { ++told; };
  second.release();
  EXPECT_EQ(told, 1) << "who was refused is told";
}

TEST(Budget, TellsOnceWhenSomebodyWasRefused) {
  Budget budget(100);
  int told = 0;
  budget.on_room = [&] { ++told; };
  Budget::Share a = budget.take(50);
  Budget::Share b = budget.take(50);
  EXPECT_FALSE(budget.take(1));
  EXPECT_FALSE(budget.take(1));
  a.release();
  b.release();
  EXPECT_EQ(told, 1);
}

TEST(Pins, TheLastIsForThoseWhoHaveTakenAsMuch) {
  Budget node(1600);
  Pins pins(800, node);
  EXPECT_TRUE(pins.may_take(800)) << "nobody else is there";
  Budget::Share others = node.take(1480);
  EXPECT_TRUE(pins.may_take(20));
  EXPECT_FALSE(pins.may_take(21)) << "a sixteenth is for those who read";
  std::uint64_t taken = 20;
  pins.taken = [&taken] { return taken; };
  EXPECT_FALSE(pins.may_take(21));
  taken = 21;
  EXPECT_TRUE(pins.may_take(21));
  EXPECT_FALSE(pins.may_take(26)) << "nor much at a time";
  const Budget::Share own = pins.take(10), of_node = node.take(10);
  taken = 1000;
  EXPECT_FALSE(pins.may_take(21)) << "who holds some leaves it to those who hold nothing";
  int told = 0;
  node.on_room = [&told] { ++told; };
  EXPECT_FALSE(pins.may_take(791)) << "of its own there is less";
  taken = 0;
  EXPECT_FALSE(pins.may_take(21));
  others.release();
  EXPECT_EQ(told, 1) << "who was refused is told";
}

// As a client of this host does, whose last view comes back with its next request.
TEST(Pins, WhoHoldsLittleIsAsWhoHoldsNothing) {
  Budget node(1600);
  Pins pins(800, node);
  const Budget::Share others = node.take(1510);
  const Budget::Share own = pins.take(3), of_node = node.take(3);
  pins.taken = [] { return 6; };
  EXPECT_TRUE(pins.may_take(3)) << "a 256th with it";
  EXPECT_FALSE(pins.may_take(4));
  pins.taken = [] { return 5; };
  EXPECT_FALSE(pins.may_take(3)) << "beyond what its client has taken";
}

// Readers who want everything, beside one that comes.
class CrowdTest : public testing::TestWithParam<std::size_t> {
 protected:
  static constexpr std::uint64_t kGetBytes = 1024;

  struct Reader {
    explicit Reader(Budget& node) : pins(node.bytes_max() / 2, node) {
      pins.taken = [] { return UINT64_MAX; };
    }
    Pins pins;
    std::deque<Budget::Share> of_pins, of_node;
  };

  void add_readers(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) readers_.push_back(std::make_unique<Reader>(node_));
  }
  void fill(Reader& reader) {
    while (reader.pins.may_take(kGetBytes)) {
      reader.of_pins.push_back(reader.pins.take(kGetBytes));
      reader.of_node.push_back(node_.take(kGetBytes));
    }
  }
  // The oldest of its GETs has ended.
  static void end_one(Reader& reader) {
    if (reader.of_pins.empty()) return;
    reader.of_pins.pop_front();
    reader.of_node.pop_front();
  }
  // One GET of each ends, and it asks for what it gets.
  void go_round() {
    for (const auto& reader : readers_) {
      end_one(*reader);
      fill(*reader);
    }
  }

  Budget node_{1024 * kGetBytes};
  std::vector<std::unique_ptr<Reader>> readers_;
};

TEST_P(CrowdTest, WhoComesHasItsTurnBesideReadersWhoWantEverything) {
  add_readers(GetParam());
  for (int i = 0; i < 2000; ++i) go_round();
  EXPECT_GE(node_.used(), node_.bytes_max() / 2);
  Pins newcomer(node_.bytes_max() / 2, node_);
  bool had = newcomer.may_take(kGetBytes);
  for (std::size_t i = 0; i < 1000 && !had; ++i) {
    Reader& reader = *readers_[i % readers_.size()];
    end_one(reader);
    had = newcomer.may_take(kGetBytes);  // told first: it waits for longest
    fill(reader);
  }
  EXPECT_TRUE(had) << node_.used() << " of " << node_.bytes_max();
}

INSTANTIATE_TEST_SUITE_P(Readers, CrowdTest, testing::Values(1, 2, 4, 8, 64, 100));

}  // namespace
}  // namespace kvd::node
