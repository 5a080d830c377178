#include "net/share_lines.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace kvd::net {
namespace {

struct Waiter {
  Waiter(char n, const void* share) : name(n) { place.set_share(share); }
  const char name;
  ShareLines<Waiter>::Place place{*this};
};

class ShareLinesTest : public testing::Test {
 protected:
  Waiter& add(char name, const void* share) { return *waiters_.emplace_back(std::make_unique<Waiter>(name, share)); }
  // Whoever's turn it is, so many times; each enters again at once where it is to.
  std::string take(int turns, bool again = true) {
    std::string order;
    for (int i = 0; i < turns && !lines_.empty(); ++i) {
      Waiter& waiter = lines_.front();
      lines_.take(waiter.place);
      order += waiter.name;
      if (again) lines_.enter(waiter.place);
    }
    return order;
  }
  void enter(const std::string& names) {
    for (const char name : names)
      for (const auto& waiter : waiters_)
        if (waiter->name == name) lines_.enter(waiter->place);
  }

  const int one_ = 1, two_ = 2, three_ = 3;
  ShareLines<Waiter> lines_;
  std::vector<std::unique_ptr<Waiter>> waiters_;
};

TEST_F(ShareLinesTest, SharesComeByTurnsHoweverManyWaitInEach) {
  for (const char name : {'a', 'b', 'c'}) add(name, &one_);
  add('x', &two_);
  add('p', &three_);
  enter("abcxp");
  EXPECT_EQ(lines_.size(), 5U);
  EXPECT_EQ(take(12), "axpbxpcxpaxp");
  EXPECT_EQ(take(6, false), "bxpca") << "all have gone";
  EXPECT_TRUE(lines_.empty());
}

// As of a connection whose bytes are being sent elsewhere meanwhile.
TEST_F(ShareLinesTest, WhoComesBackFromItsTurnHasLostNone) {
  for (const char name : {'a', 'b', 'c'}) add(name, &one_);
  add('x', &two_);
  enter("abcx");
  EXPECT_EQ(take(2, false), "ax");
  enter("a");
  EXPECT_EQ(take(1, false), "b") << "nobody else waits";
  enter("xb");
  EXPECT_EQ(take(1, false), "x") << "the other share had a turn since";
  EXPECT_EQ(take(1, false), "c");
  enter("xc");
  EXPECT_EQ(take(5), "xaxbx");
}

TEST_F(ShareLinesTest, WhoWasNeverThereComesBehindWhoWaits) {
  add('a', &one_);
  add('b', &one_);
  add('x', &two_);
  enter("ab");
  EXPECT_EQ(take(3), "aba");
  enter("x");
  EXPECT_EQ(take(4), "bxax");
}

TEST_F(ShareLinesTest, WhoLeavesOrEndsHoldsUpNobody) {
  add('a', &one_);
  add('b', &one_);
  Waiter& x = add('x', &two_);
  enter("abx");
  EXPECT_TRUE(x.place.waits());
  x.place.leave();
  x.place.leave();
  EXPECT_FALSE(x.place.waits());
  EXPECT_EQ(take(1), "a");
  waiters_.erase(waiters_.begin() + 1);  // b
  EXPECT_EQ(lines_.size(), 1U);
  enter("x");
  EXPECT_EQ(take(4), "xaxa");
}

TEST_F(ShareLinesTest, AShareHoldsFromTheNextTimeOn) {
  for (const char name : {'a', 'b'}) add(name, &one_);
  Waiter& x = add('x', &two_);
  enter("abx");
  x.place.set_share(&one_);
  EXPECT_EQ(take(6), "axbaxb") << "x as the other share's once, and then behind a";
}

TEST_F(ShareLinesTest, APlaceMayWaitInOtherLinesLater) {
  ShareLines<Waiter> behind;
  Waiter& a = add('a', &one_);
  Waiter& x = add('x', &two_);
  enter("ax");
  a.place.leave();
  behind.enter(a.place);
  EXPECT_EQ(behind.size(), 1U);
  EXPECT_EQ(lines_.size(), 1U);
  EXPECT_EQ(&lines_.front(), &x);
  EXPECT_EQ(&behind.front(), &a);
  behind.take(a.place);
  lines_.enter(a.place);
  EXPECT_EQ(take(2), "xa");
}

}  // namespace
}  // namespace kvd::net
