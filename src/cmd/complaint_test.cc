#include "cmd/complaint.h"

#include <gtest/gtest.h>

namespace kvd::cmd {
namespace {

TEST(Complaint, IsOneLineWhateverIsQuotedInIt) {
  EXPECT_EQ(in_one_line("--config: there is no setting 'a\nb\x1b[2J\x7f'"),
            R"(--config: there is no setting 'a\nb\x1b[2J\x7f')");
  EXPECT_EQ(in_one_line("größer"), "größer");
}

}  // namespace
}  // namespace kvd::cmd
