#include "cmd/complaint.h"

#include <gtest/gtest.h>

namespace kvd::cmd {
namespace {

TEST(Complaint, IsOneLineWhateverIsQuotedInIt) {
  EXPECT_EQ(in_one_line("--config: there is no setting 'a\nb\x1b[2J\x7f'"),
            R"(--config: there is no setting 'a\nb\x1b[2J\x7f')");
  EXPECT_EQ(in_one_line("größer"), "größer");
  EXPECT_EQ(in_one_line("a\xc2\x9b"
                        "2J\xc2\xa0"),
            "a\\x9b2J\xc2\xa0");
}

}  // namespace
}  // namespace kvd::cmd
