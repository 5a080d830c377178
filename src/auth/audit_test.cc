#include "auth/audit.h"

#include <gtest/gtest.h>

namespace kvd::auth {
namespace {

using std::chrono::seconds;

TEST(Audit, TellsOncePerPeerAndPeriodAndCountsTheRest) {
  Audit audit("refused", seconds(10));
  const Time start{};
  EXPECT_EQ(audit.line("10.0.0.1", "unknown token", start), "refused 10.0.0.1: unknown token");
  EXPECT_EQ(audit.line("10.0.0.1", "unknown token", start + seconds(9)), std::nullopt);
  EXPECT_EQ(audit.line("10.0.0.1", "no token", start + seconds(9)), std::nullopt);
  EXPECT_EQ(audit.line("10.0.0.2", "no token", start + seconds(9)), "refused 10.0.0.2: no token");
  EXPECT_EQ(audit.line("10.0.0.1", "expired token", start + seconds(10)),
            "refused 10.0.0.1: expired token (and 2 more since its last line)");
  EXPECT_EQ(audit.line("10.0.0.1", "no token", start + seconds(20)), "refused 10.0.0.1: no token");
}

TEST(Audit, LinesBeginWithWhatItIsAbout) {
  Audit audit("closed the connection of");
  EXPECT_EQ(audit.line("a", "x", Time{}), "closed the connection of a: x");
}

TEST(Audit, PeersBeyondTheBoundShareALine) {
  Audit audit("refused", seconds(10), 2);
  const Time start{};
  EXPECT_TRUE(audit.line("a", "x", start));
  EXPECT_TRUE(audit.line("b", "x", start));
  EXPECT_EQ(audit.line("c", "x", start), "refused c and others: x");
  EXPECT_EQ(audit.line("d", "x", start), std::nullopt);
  EXPECT_EQ(audit.line("e", "x", start + seconds(10)), "refused e: x") << "peers of the past make room";
}

}  // namespace
}  // namespace kvd::auth
