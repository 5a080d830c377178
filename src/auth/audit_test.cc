#include "auth/audit.h"

#include <gtest/gtest.h>

namespace kvd::auth {
namespace {

using std::chrono::seconds;

TEST(Audit, TellsOncePerPeerAndPeriodAndCountsTheRest) {
  Audit audit(seconds(10));
  const Time start{};
  EXPECT_EQ(audit.refused("10.0.0.1", "unknown token", start), "refused 10.0.0.1: unknown token");
  EXPECT_EQ(audit.refused("10.0.0.1", "unknown token", start + seconds(9)), std::nullopt);
  EXPECT_EQ(audit.refused("10.0.0.1", "no token", start + seconds(9)), std::nullopt);
  EXPECT_EQ(audit.refused("10.0.0.2", "no token", start + seconds(9)), "refused 10.0.0.2: no token");
  EXPECT_EQ(audit.refused("10.0.0.1", "expired token", start + seconds(10)),
            "refused 10.0.0.1: expired token (and 2 attempts since its last line)");
  EXPECT_EQ(audit.refused("10.0.0.1", "no token", start + seconds(20)), "refused 10.0.0.1: no token");
}

TEST(Audit, PeersBeyondTheBoundShareALine) {
  Audit audit(seconds(10), 2);
  const Time start{};
  EXPECT_TRUE(audit.refused("a", "x", start));
  EXPECT_TRUE(audit.refused("b", "x", start));
  EXPECT_EQ(audit.refused("c", "x", start), "refused c and others: x");
  EXPECT_EQ(audit.refused("d", "x", start), std::nullopt);
  EXPECT_EQ(audit.refused("e", "x", start + seconds(10)), "refused e: x") << "peers of the past make room";
}

}  // namespace
}  // namespace kvd::auth
