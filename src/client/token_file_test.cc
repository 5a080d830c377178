#include "client/token_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include <gtest/gtest.h>

namespace kvd::client {
namespace {

class TokenFile : public testing::Test {
 protected:
  ~TokenFile() override { ::unlink(path.c_str()); }
  Result<std::string> read_back(const std::string& text, mode_t mode = S_IRUSR) const {
    std::ofstream(path) << text;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    auto token = read_token_file(path);
    EXPECT_EQ(::chmod(path.c_str(), S_IRUSR | S_IWUSR), 0);
    return token;
  }
  std::string path = testing::TempDir() + "kvd_token_" + std::to_string(::getpid());
};

TEST_F(TokenFile, HoldsOneWord) {
  EXPECT_EQ(read_back("kvd_abc\n").value(), "kvd_abc");
  EXPECT_EQ(read_back(" \n kvd_abc \r\n\n").value(), "kvd_abc");
  EXPECT_EQ(read_back(std::string(256, 'a')).value().size(), 256U);
  for (const std::string& bad : {std::string(), std::string(" \n"), std::string("two words"), std::string(257, 'a'),
                                 std::string("a\0b", 3), std::string("a\x80")}) {
    EXPECT_EQ(read_back(bad).error().code, Code::kInvalid) << bad;
  }
}

TEST_F(TokenFile, IsItsOwnersOnly) {
  for (const mode_t mode : {0640U, 0604U, 0660U, 0410U}) {
    EXPECT_EQ(read_back("kvd_abc", mode).error().code, Code::kInvalid) << mode;
  }
}

TEST_F(TokenFile, IsAPlainFile) {
  EXPECT_EQ(read_token_file(path + ".none").error().code, Code::kIo);
  EXPECT_EQ(read_token_file(testing::TempDir()).error().code, Code::kInvalid);
  ASSERT_EQ(::mkfifo(path.c_str(), S_IRUSR | S_IWUSR), 0);
  EXPECT_EQ(read_token_file(path).error().code, Code::kInvalid) << "and does not wait for a writer";
}

}  // namespace
}  // namespace kvd::client
