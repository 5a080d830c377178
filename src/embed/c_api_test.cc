// The C API's refusals and its small conversions; examples/store_and_load.c is its use.
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "kvdepot/kvdepot.h"

namespace {

TEST(CApi, RefusesWhatIsMissing) {
  kvd_error error{};
  kvd_client* client = nullptr;
  EXPECT_EQ(kvd_open(nullptr, nullptr, &client, &error), KVD_INVALID);
  EXPECT_EQ(kvd_open("tcp://127.0.0.1:1", nullptr, nullptr, nullptr), KVD_INVALID);
  EXPECT_EQ(kvd_register(nullptr, nullptr, 0, nullptr, &error), KVD_INVALID);
  EXPECT_EQ(kvd_wait(nullptr, 1, 0, 0, nullptr, nullptr), KVD_INVALID);
  EXPECT_EQ(kvd_poll(nullptr, nullptr, 5), 0U);
  EXPECT_EQ(kvd_event_fd(nullptr), -1);
  EXPECT_EQ(kvd_open_breaker(nullptr, nullptr), KVD_INVALID);
  EXPECT_EQ(kvd_reconnect(nullptr, 1, nullptr), KVD_INVALID);
  EXPECT_EQ(kvd_borrow(nullptr, 1, 0, 0, 0, 0, {nullptr, 0, 8, 0}, 1, 1000, 1, {0, 0}, nullptr, nullptr), KVD_INVALID);
  EXPECT_EQ(kvd_take_view(nullptr, 1, nullptr, nullptr), KVD_INVALID);
  std::size_t bytes = 1;
  EXPECT_EQ(kvd_view_slab(nullptr, 0, 0, &bytes), nullptr);
  EXPECT_EQ(bytes, 0U);
  EXPECT_EQ(kvd_view_verify(nullptr, 0, 0), 0);
  EXPECT_EQ(kvd_view_borrowed(nullptr), 0);
  kvd_view_close(nullptr);
  kvd_release(nullptr, 1);
  kvd_close(nullptr);
}

TEST(CApi, AViewShowsWhatWasPutAndOutlastsItsClient) {
  char name[] = "/tmp/kvd-capi-XXXXXX";
  const std::string dir = ::mkdtemp(name);
  kvd_client* client = nullptr;
  ASSERT_EQ(kvd_open(("file://" + dir + "/kv?pool=64MiB&flash=0").c_str(), nullptr, &client, nullptr), KVD_OK);
  const kvd_group group{0, 1, 4096, 2, 16, "LBHNC", KVD_HIT_ALL, 0};
  std::uint32_t ns = 0;
  ASSERT_EQ(kvd_open_namespace(client, "t", "view", 4, &group, 1, &ns, nullptr), KVD_OK);
  std::string memory(4096, 'k');
  std::uint32_t region = 0;
  ASSERT_EQ(kvd_register(client, memory.data(), memory.size(), &region, nullptr), KVD_OK);
  const kvd_keys keys{"12345678", 8, 8, 0};
  const std::uint64_t zero = 0;
  const kvd_placement place{region, &zero, 1, &zero, 1, nullptr, 0};
  kvd_completion done{};
  kvd_op op = 0;
  ASSERT_EQ(kvd_multiput(client, ns, 0, 0, keys, &place, KVD_POOLED, 1, {20000, 0}, &op, nullptr), KVD_OK);
  ASSERT_EQ(kvd_wait(client, op, KVD_WHOLE_OP, 30000, &done, nullptr), KVD_OK);
  kvd_release(client, op);
  ASSERT_EQ(kvd_borrow(client, ns, 0, 0, 0, 0, keys, 1, 60000, 1, {20000, 0}, &op, nullptr), KVD_OK);
  ASSERT_EQ(kvd_wait(client, op, KVD_WHOLE_OP, 30000, &done, nullptr), KVD_OK);
  kvd_view* view = nullptr;
  ASSERT_EQ(kvd_take_view(client, op, &view, nullptr), KVD_OK);
  kvd_view* twice = nullptr;
  EXPECT_EQ(kvd_take_view(client, op, &twice, nullptr), KVD_NOT_FOUND);
  kvd_release(client, op);
  EXPECT_EQ(kvd_view_borrowed(view), 1);
  kvd_close(client);
  std::size_t bytes = 0;
  const void* const slab = kvd_view_slab(view, 0, 0, &bytes);
  ASSERT_TRUE(slab != nullptr && bytes == memory.size());
  EXPECT_EQ(std::memcmp(slab, memory.data(), bytes), 0);
  EXPECT_EQ(kvd_view_slab(view, 0, 1, nullptr), nullptr);
  EXPECT_EQ(kvd_view_verify(view, 0, 0), 1);
  EXPECT_EQ(kvd_view_verify(view, 0, 1), 0);
  kvd_view_close(view);
  std::filesystem::remove_all(dir);
}

TEST(CApi, TellsWhatWentWrong) {
  kvd_error error{};
  kvd_client* client = nullptr;
  EXPECT_EQ(kvd_open("gopher://nowhere", nullptr, &client, &error), KVD_INVALID);
  EXPECT_EQ(error.code, KVD_INVALID);
  EXPECT_NE(std::string(error.what), "");
  EXPECT_EQ(client, nullptr);
  kvd_options options = KVD_OPTIONS_INIT;
  EXPECT_EQ(kvd_open("file:///nonexistent/parent/dir", nullptr, &client, &error), KVD_IO);
  EXPECT_NE(std::string(error.what).find("/nonexistent/parent/dir: cannot be created"), std::string::npos);
  options.require_connection = 1;
  options.connect_timeout_ms = 20;
  EXPECT_EQ(kvd_open("tcp://127.0.0.1:1", &options, &client, &error), KVD_UNAVAILABLE);
  EXPECT_STREQ(kvd_code_name(error.code), "unavailable");
}

TEST(CApi, ReportsOperationsOfAnEmbeddedDepot) {
  char name[] = "/tmp/kvd-capi-XXXXXX";
  const std::string dir = ::mkdtemp(name);
  kvd_error error{};
  kvd_client* client = nullptr;
  ASSERT_EQ(kvd_open(("file://" + dir + "/kv?pool=64MiB&flash=0").c_str(), nullptr, &client, &error), KVD_OK)
      << error.what;
  const kvd_group group{0, 1, 4096, 2, 16, "LBHNC", KVD_HIT_ALL, 0};
  std::uint32_t ns = 0;
  EXPECT_EQ(kvd_open_namespace(client, "t", "f", 1, nullptr, 0, &ns, &error), KVD_INVALID);
  ASSERT_EQ(kvd_open_namespace(client, "t", "f", 1, &group, 1, &ns, &error), KVD_OK);
  const std::uint16_t zero = 0;
  const kvd_keys keys{"12345678", 8, 8, 0};
  kvd_op op = 0;
  EXPECT_EQ(kvd_match(client, ns, nullptr, 0, &zero, 1, keys, 0, 1, {20000, 0}, &op, &error), KVD_INVALID);
  ASSERT_EQ(kvd_match(client, ns, &zero, 1, &zero, 1, keys, 0, 1, {20000, 0}, &op, &error), KVD_OK);
  kvd_completion done{};
  ASSERT_EQ(kvd_wait(client, op, KVD_WHOLE_OP, 30000, &done, &error), KVD_OK);
  EXPECT_EQ(done.code, KVD_OK);
  EXPECT_EQ(done.prefix_blocks, 0U);
  EXPECT_STREQ(done.why, "");
  const std::uint64_t took = done.took_ns;
  EXPECT_GT(took, 0U);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ASSERT_EQ(kvd_wait(client, op, KVD_WHOLE_OP, 30000, &done, &error), KVD_OK);
  EXPECT_EQ(done.took_ns, took) << "whenever it is looked at";
  EXPECT_EQ(kvd_wait(client, op + 1, KVD_WHOLE_OP, 0, &done, &error), KVD_NOT_FOUND);
  std::array<kvd_completion, 100> polled;
  std::size_t taken = 0;  // waiting and polling are independent: one may know a moment sooner
  for (int i = 0; i < 5000 && taken == 0; ++i) {
    taken = kvd_poll(client, polled.data(), polled.size());
    if (taken == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(taken, 1U);
  kvd_release(client, op);
  const kvd_group large{0,  5,       4 << 20,     2,
                        16, "LBHNC", KVD_HIT_ALL, 0};  // records of 20 MiB do not fit in 1/4 of the pool
  ASSERT_EQ(kvd_open_namespace(client, "t", "large", 5, &large, 1, &ns, &error), KVD_OK);
  ASSERT_EQ(kvd_match(client, ns, &zero, 1, &zero, 1, keys, 0, 1, {20000, 0}, &op, &error), KVD_OK);
  ASSERT_EQ(kvd_wait(client, op, KVD_WHOLE_OP, 30000, &done, &error), KVD_OK);
  EXPECT_EQ(done.code, KVD_INVALID);
  EXPECT_NE(std::string(done.why).find("quarter of the pool"), std::string::npos) << done.why;
  kvd_release(client, op);
  std::array<char, 4> small;
  EXPECT_EQ(kvd_depot_stats(client, 20000, small.data(), small.size(), &error), KVD_NO_SPACE);
  std::array<char, 65536> text;
  EXPECT_EQ(kvd_depot_stats(client, 20000, text.data(), text.size(), &error), KVD_OK) << error.what;
  EXPECT_EQ(kvd_close_namespace(client, ns, &error), KVD_OK);
  EXPECT_EQ(kvd_close_namespace(client, ns, &error), KVD_NOT_FOUND);
  EXPECT_EQ(kvd_match(client, ns, &zero, 1, &zero, 1, keys, 0, 1, {20000, 0}, &op, &error), KVD_INVALID);
  ASSERT_EQ(kvd_open_namespace(client, "t", "f", 1, &group, 1, &ns, &error), KVD_OK);
  ASSERT_EQ(kvd_reconnect(client, 1000, &error), KVD_OK) << error.what;
  ASSERT_EQ(kvd_open_breaker(client, &error), KVD_OK) << error.what;
  EXPECT_EQ(kvd_match(client, ns, &zero, 1, &zero, 1, keys, 0, 1, {20000, 0}, &op, &error), KVD_UNAVAILABLE);
  kvd_close(client);
  std::filesystem::remove_all(dir);
}

}  // namespace
