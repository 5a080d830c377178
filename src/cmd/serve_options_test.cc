#include "cmd/serve_options.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace kvd::cmd {
namespace {

std::string complaint(const Settings& settings) {
  const auto options = make_options(settings);
  return options ? "" : options.error();
}

TEST(ServeOptions, FillInWhatIsNotSaid) {
  const auto options = make_options({{"dir", {"/data"}}});
  ASSERT_TRUE(options.has_value());
  EXPECT_EQ(options->node.store.pool_bytes, std::uint64_t{1} << 30);
  EXPECT_EQ(options->node.store.flash_bytes, std::uint64_t{10} << 30);
  EXPECT_FALSE(options->node.store.flash_bytes_given);  // a store that is there keeps its size
  EXPECT_EQ(options->node.listen, std::vector<std::string>{"tcp://127.0.0.1:7070"});
  EXPECT_EQ(options->node.http, "127.0.0.1:7071");
  EXPECT_EQ(options->node.store.demote_after, std::chrono::seconds(30));
  EXPECT_EQ(options->node.store.segment_bytes, 0U);  // the store chooses by the size of the log
  EXPECT_EQ(options->node.store.eviction, policy::Eviction::kLru);
  EXPECT_EQ(options->node.store.scrub_bytes_per_s, std::uint64_t{16} << 20);
  EXPECT_EQ(options->node.store.drive_writes_per_day, 0);
  EXPECT_TRUE(options->node.store.verify);
  EXPECT_TRUE(options->node.shared_memory);
}

TEST(ServeOptions, TakeWhatIsSaid) {
  const auto options = make_options({{"dir", {"/data"}},          {"pool", {"8GiB"}},
                                     {"flash", {"200GiB"}},       {"listen", {"127.0.0.1:0", "unix:///run/x"}},
                                     {"http", {"off"}},           {"segment", {"16MiB"}},
                                     {"demote-after", {"250ms"}}, {"shape-read", {"50MB"}},
                                     {"eviction", {"fifo"}},      {"scrub", {"0"}},
                                     {"dwpd", {"1.5"}},           {"resp", {"127.0.0.1:6379", "unix:///run/r"}},
                                     {"resp-ack", {"written"}},   {"verify", {"off"}},
                                     {"shared-memory", {"off"}},  {"spin", {"20us"}},
                                     {"cores", {"64"}},           {"put-arena", {"1MiB"}},
                                     {"put-arenas", {"3MiB"}},    {"connections-max", {"12000"}},
                                     {"log-level", {"debug"}}});
  ASSERT_TRUE(options.has_value());
  EXPECT_EQ(options->node.limits.connections_max, 12'000U);
  EXPECT_EQ(options->node.store.pool_bytes, std::uint64_t{8} << 30);
  EXPECT_EQ(options->node.store.flash_bytes, std::uint64_t{200} << 30);
  EXPECT_TRUE(options->node.store.flash_bytes_given);
  EXPECT_EQ(options->node.listen, (std::vector<std::string>{"tcp://127.0.0.1:0", "unix:///run/x"}));
  EXPECT_TRUE(options->node.http.empty());
  EXPECT_EQ(options->node.store.demote_after, Millis(250));
  EXPECT_EQ(options->node.shape_read_bytes_per_s, 50'000'000U);
  EXPECT_EQ(options->node.store.segment_bytes, std::uint64_t{16} << 20);
  EXPECT_EQ(options->node.store.eviction, policy::Eviction::kFifo);
  EXPECT_EQ(options->node.store.scrub_bytes_per_s, 0U);
  EXPECT_EQ(options->node.store.drive_writes_per_day, 1.5);
  EXPECT_FALSE(options->node.store.verify);
  EXPECT_FALSE(options->node.shared_memory);
  EXPECT_EQ(options->node.spin, std::chrono::microseconds(20));
  EXPECT_EQ(options->node.cores, 64U);
  EXPECT_EQ(options->node.limits.arena_bytes, 1U << 20);
  EXPECT_EQ(options->node.limits.arena_bytes_all_max, 3U << 20);
  EXPECT_EQ(options->node.resp, (std::vector<std::string>{"tcp://127.0.0.1:6379", "unix:///run/r"}));
  EXPECT_EQ(options->node.resp_ack, AckLevel::kWritten);
  EXPECT_EQ(options->log_level, Level::kDebug);
}

TEST(ServeOptions, SpinningIsBounded) {
  EXPECT_EQ(complaint({{"flash", {"0"}}, {"spin", {"0"}}}), "");
  EXPECT_NE(complaint({{"flash", {"0"}}, {"spin", {"11ms"}}}).find("--spin"), std::string::npos);
}

TEST(ServeOptions, CoresAreFromOneTo64) {
  EXPECT_EQ(make_options({{"flash", {"0"}}})->node.cores, 1U);
  for (const char* const wrong : {"0", "65", "-1", "2x", "all"})
    EXPECT_NE(complaint({{"flash", {"0"}}, {"cores", {wrong}}}).find("--cores"), std::string::npos) << wrong;
}

TEST(ServeOptions, ArenasAreBounded) {
  EXPECT_EQ(complaint({{"flash", {"0"}}, {"put-arena", {"0"}}}), "");
  EXPECT_EQ(complaint({{"flash", {"0"}}, {"put-arena", {"64MiB"}}}), "");
  EXPECT_NE(complaint({{"flash", {"0"}}, {"put-arena", {"63KiB"}}}).find("--put-arena"), std::string::npos);
  EXPECT_NE(complaint({{"flash", {"0"}}, {"put-arena", {"1025MiB"}}}).find("--put-arena"), std::string::npos);
}

TEST(ServeOptions, MemoryOnlyNeedsNoDirectory) {
  EXPECT_EQ(complaint({{"flash", {"0"}}}), "");
  EXPECT_NE(complaint({}).find("--dir: is missing"), std::string::npos);
}

TEST(ServeOptions, ComplaintsNameTheFlagAndTheValue) {
  EXPECT_EQ(complaint({{"dir", {"/d"}}, {"pool", {"8 apples"}}}).find("--pool: '8 apples' is not a size"), 0U);
  EXPECT_EQ(complaint({{"dir", {"/d"}}, {"demote-after", {"soon"}}}).find("--demote-after: 'soon' is "), 0U);
  EXPECT_EQ(complaint({{"dir", {"/d"}}, {"eviction", {"lfu"}}}), "--eviction: 'lfu' is not lru or fifo");
  for (const char* const bad : {"", "many", "0", "-1", "1000001"}) {
    EXPECT_NE(complaint({{"dir", {"/d"}}, {"connections-max", {bad}}}).find("is not a number from 1 to 1000000"),
              std::string::npos)
        << bad;
  }
  for (const char* const bad : {"", "much", "1x", "-1", "1001", "nan", "inf"})
    EXPECT_EQ(complaint({{"dir", {"/d"}}, {"dwpd", {bad}}}).find("--dwpd: '" + std::string(bad) + "' is not a number"),
              0U);
  for (const auto& [name, value] :
       {std::pair{"segment", "64MiB"}, {"eviction", "fifo"}, {"scrub", "1MiB"}, {"demote-after", "1s"}})
    EXPECT_NE(complaint({{"flash", {"0"}}, {name, {value}}}).find("is for flash"), std::string::npos) << name;
  EXPECT_EQ(complaint({{"flash", {"0"}}, {"dwpd", {"1"}}}).find("--dwpd: bounds what is written to flash"), 0U);
  EXPECT_EQ(complaint({{"dir", {"/d"}}, {"resp-ack", {"soon"}}}),
            "--resp-ack: 'soon' is not pooled, written or synced");
  EXPECT_EQ(complaint({{"flash", {"0"}}, {"resp-ack", {"written"}}}).find("--resp-ack: asks for flash"), 0U);
  EXPECT_EQ(complaint({{"dir", {"/d"}}, {"verify", {"maybe"}}}), "--verify: 'maybe' is not on or off");
  EXPECT_EQ(complaint({{"dir", {"/d"}}, {"log-level", {"loud"}}}).find("--log-level: 'loud' is "), 0U);
  EXPECT_EQ(complaint({{"dir", {"/d", "/e"}}}), "--dir: takes one value: name more drives with --device DIR");
}

TEST(ServeOptions, DevicesHaveTheirSizeOrThatOfFlash) {
  const auto options = make_options({{"dir", {"/a"}}, {"flash", {"2GiB"}}, {"device", {"/b", "/c=3GiB", "/d=e=4GiB"}}});
  ASSERT_TRUE(options.has_value()) << options.error();
  const store::StoreOptions& store = options->node.store;
  ASSERT_EQ(store.devices.size(), 3U);
  EXPECT_EQ(store.devices[0].dir, "/b");
  EXPECT_EQ(store.devices[0].flash_bytes, std::uint64_t{2} << 30);
  EXPECT_FALSE(store.devices[0].flash_bytes_given);  // one that is there keeps its size
  EXPECT_EQ(store.devices[1].dir, "/c");
  EXPECT_EQ(store.devices[1].flash_bytes, std::uint64_t{3} << 30);
  EXPECT_TRUE(store.devices[1].flash_bytes_given);
  EXPECT_EQ(store.devices[2].dir, "/d=e");
  EXPECT_EQ(store.devices[2].flash_bytes, std::uint64_t{4} << 30);
  EXPECT_FALSE(store.forget_missing);
}

TEST(ServeOptions, TheDirectoryMayHaveTheListAlone) {
  const auto options = make_options({{"dir", {"/a"}},
                                     {"flash", {"0"}},
                                     {"device", {"/b", "/c"}},
                                     {"forget-missing", {"on"}},
                                     {"dwpd", {"1"}},
                                     {"resp-ack", {"synced"}}});
  ASSERT_TRUE(options.has_value()) << options.error();
  EXPECT_EQ(options->node.store.flash_bytes, 0U);
  EXPECT_EQ(options->node.store.devices[1].flash_bytes, std::uint64_t{10} << 30);
  EXPECT_TRUE(options->node.store.forget_missing);
}

TEST(ServeOptions, ComplainOfDevicesThatCannotBe) {
  const auto says = [](const std::vector<std::string>& devices, const char* flash = "1GiB") {
    return complaint({{"dir", {"/a"}}, {"flash", {flash}}, {"device", devices}});
  };
  EXPECT_EQ(says({"/b=20Gb1"}).find("--device: '20Gb1' is not a size"), 0U);
  EXPECT_EQ(says({"/b="}).find("--device: '' is not a size"), 0U);
  EXPECT_EQ(says({"=1GiB"}).find("--device: '=1GiB' names no directory"), 0U);
  EXPECT_EQ(says({""}).find("--device: '' names no directory"), 0U);
  EXPECT_EQ(says({"/b=0"}).find("--device: /b of no size can hold nothing"), 0U);
  EXPECT_EQ(says({"/b", "/c/../b/"}).find("--device: /c/../b/ is given twice"), 0U);
  EXPECT_EQ(says({"/a/"}).find("--device: /a/ is --dir itself"), 0U);
  EXPECT_EQ(says({"/a"}, "0").find("--device: /a is --dir itself"), 0U);
  std::vector<std::string> many;
  for (int i = 0; i < 15; ++i) many.push_back(fmt::format("/m/{}", i));
  EXPECT_EQ(says(many), "");
  many.emplace_back("/m/15");
  EXPECT_EQ(says(many), "--device: a store has at most 16 devices, these are 17 with --dir");
  EXPECT_EQ(says(many, "0"), "");
  EXPECT_EQ(complaint({{"device", {"/b"}}}).find("--dir: is missing: name the directory that keeps the list"), 0U);
  EXPECT_EQ(complaint({{"flash", {"0"}}, {"forget-missing", {"on"}}}).find("--forget-missing: is for devices"), 0U);
}

class ConfigTest : public testing::Test {
 protected:
  ConfigTest() {
    std::string pattern = testing::TempDir() + "kvd_config_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ + "/kvdepot.toml";
  }
  ~ConfigTest() override { std::filesystem::remove_all(folder_); }
  OrComplaint<Settings> read(const std::string& text) {
    std::ofstream(path_) << text;
    return read_config(path_);
  }
  std::string folder_, path_;
};

TEST_F(ConfigTest, ReadsTextsNumbersAndLists) {
  const auto settings =
      read("dir = '/data'\npool = \"8GiB\"\nflash = 1073741824\nlisten = ['127.0.0.1:1', 'unix:///x']\n");
  ASSERT_TRUE(settings.has_value());
  EXPECT_EQ(settings->at("dir"), std::vector<std::string>{"/data"});
  EXPECT_EQ(settings->at("flash"), std::vector<std::string>{"1073741824"});
  EXPECT_EQ(settings->at("listen").size(), 2U);
}

TEST_F(ConfigTest, ReadsTheListOfDevicesAndForgetsNothingForGood) {
  const auto settings = read("dir = '/data'\ndevice = ['/b', '/c=2TB']\n");
  ASSERT_TRUE(settings.has_value());
  EXPECT_EQ(settings->at("device"), (std::vector<std::string>{"/b", "/c=2TB"}));
  EXPECT_NE(read("dir = '/data'\nforget-missing = 'on'\n").error().find("line 2: forget-missing is for one start"),
            std::string::npos);
}

TEST_F(ConfigTest, ComplainsWithTheLine) {
  EXPECT_NE(read("dir = '/data'\npool = \n").error().find("line 2"), std::string::npos);
  EXPECT_NE(read("dir = '/data'\n\npoool = 1\n").error().find("line 3: there is no setting 'poool'"),
            std::string::npos);
  EXPECT_NE(read("dir = true\n").error().find("'dir' must be a text or a number"), std::string::npos);
  EXPECT_NE(read("listen = []\n").error().find("'listen' must be"), std::string::npos);
  EXPECT_NE(read_config(folder_ + "/none.toml").error().find("cannot read"), std::string::npos);
}

}  // namespace
}  // namespace kvd::cmd
