#include "cmd/credentials_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "cmd/text_file.h"

namespace kvd::cmd {
namespace {

class CredentialsFile : public testing::Test {
 protected:
  CredentialsFile() { std::filesystem::create_directory(dir); }
  ~CredentialsFile() override { std::filesystem::remove_all(dir); }
  // What run_token() prints.
  static std::string printed(const TokenFlags& flags, int status = 0) {
    testing::internal::CaptureStdout();
    EXPECT_EQ(run_token(flags), status);
    std::fflush(stdout);
    return testing::internal::GetCapturedStdout();
  }
  std::string complaint(const std::string& text, mode_t mode = 0600) const {
    std::ofstream(path) << text;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    const auto loaded = load_authority(path);
    return loaded ? "none" : loaded.error();
  }
  const std::string dir = testing::TempDir() + "kvd_credentials_" + std::to_string(::getpid());
  const std::string path = dir + "/credentials";
};

TEST_F(CredentialsFile, KnowsTheTokensThatTheVerbMakes) {
  const std::string out = dir + "/engine.token";
  std::ofstream(path) << printed({.out = out, .tenant = "search", .rights = "read", .name = {}, .expires = {}});
  const auto authority = load_authority(path);
  ASSERT_TRUE(authority.has_value()) << authority.error();
  std::string token = read_text(out).value();
  ASSERT_EQ(token.back(), '\n');
  token.pop_back();
  const auto identity = (*authority)->identify(as_bytes(token), 0);
  ASSERT_TRUE(identity.has_value());
  EXPECT_EQ((*identity)->tenant, "search");
  EXPECT_EQ((*identity)->credential, "engine.token");
  struct stat status{};
  ASSERT_EQ(::stat(out.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_EQ(read_text(path).value().find(token), std::string::npos) << "only its digest is there";
}

TEST_F(CredentialsFile, TheVerbTakesNothingThatTheFileWouldNotTake) {
  const TokenFlags good{.out = dir + "/t", .tenant = "a", .rights = "read", .name = "n", .expires = "2027-01-01"};
  printed(good);
  printed(good, 2);  // the file is there
  for (const auto& change : std::vector<std::function<void(TokenFlags&)>>{
           [](TokenFlags& f) { f.tenant = "a b"; }, [](TokenFlags& f) { f.rights = "all"; },
           [](TokenFlags& f) { f.name = "#"; }, [](TokenFlags& f) { f.expires = "soon"; },
           [](TokenFlags& f) { f.out += "/nowhere/t"; }}) {
    TokenFlags bad = good;
    bad.out = dir + "/u";
    change(bad);
    EXPECT_EQ(printed(bad, 2), "");
    EXPECT_FALSE(std::filesystem::exists(dir + "/u"));
  }
}

TEST_F(CredentialsFile, SaysWhatIsWrongWithIt) {
  EXPECT_EQ(complaint("subject s tenant=t rights=read"), "none");
  EXPECT_EQ(complaint("tokn"), path + ":1: 'tokn' is not tenant, token, subject or certificate");
  EXPECT_EQ(complaint("subject s tenant=t rights=read", 0620),
            path + ": others than its owner can write to it: chmod 600");
  EXPECT_EQ(complaint("tenant t requests=3\nsubject s tenant=t rights=read"), "none");
  EXPECT_EQ(complaint("tenant t pool=1GiB flash=1GiB\nsubject s tenant=t rights=read"), "none");
  EXPECT_EQ(load_authority(dir).error(), dir + " is not a plain file");
  EXPECT_EQ(load_authority(dir + "/none").error(), dir + "/none cannot be read: No such file or directory");
}

}  // namespace
}  // namespace kvd::cmd
