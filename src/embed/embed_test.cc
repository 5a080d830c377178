// An embedded depot as its users see it: the public API over a real node and store.
#include "kvdepot/embed.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <span>
#include <system_error>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace kvd {
namespace {

constexpr Deadline kPatient{.total = std::chrono::seconds(30), .progress = {}};
constexpr std::uint16_t kLayers = 3;
constexpr std::uint32_t kSlab = 8192;
constexpr std::size_t kKeys = 5;

class EmbedTest : public testing::Test {
 protected:
  EmbedTest() : memory_(kKeys * kLayers * kSlab) {
    char name[] = "/tmp/kvd-embed-XXXXXX";
    dir_ = std::string(::mkdtemp(name)) + "/kv";
    for (std::size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(i * 131 + i / 4096);
    for (std::size_t l = 0; l < kLayers; ++l) layers_.push_back(l * kKeys * kSlab);
    for (std::size_t k = 0; k < kKeys; ++k) blocks_.push_back(k * kSlab);
    for (std::size_t i = 0; i < kKeys * 8; ++i) keys_.push_back(static_cast<std::byte>(i));
  }
  ~EmbedTest() override { std::filesystem::remove_all(std::filesystem::path(dir_).parent_path()); }

  [[nodiscard]] std::string address() const { return "file://" + dir_ + "?pool=64MiB&flash=256MiB"; }

  // One client's handles; every client has its own.
  struct Handles {
    NamespaceId ns;
    RegionId region;
  };
  Handles prepare(Client& client) {
    Namespace ns;
    ns.fingerprint = "weights";
    ns.groups.push_back({.group = 0, .layers = kLayers, .slab_bytes = kSlab, .block_tokens = 16, .order = "LBHNC"});
    return {.ns = *client.open_namespace(ns), .region = *client.register_region(memory_.data(), memory_.size())};
  }
  [[nodiscard]] Placement place(RegionId region) const {
    return {.region = region, .layer_offset = layers_, .block_offset = blocks_};
  }
  Completion finish(Client& client, const Result<OpId>& op) {
    EXPECT_TRUE(op.has_value()) << op.error().what;
    const Completion done = *client.wait(*op, kWholeOp, std::chrono::seconds(60));
    client.release(*op);
    return done;
  }
  Completion put(Client& client, const Handles& handles, AckLevel ack) {
    return finish(client, client.multiput({.ns = handles.ns,
                                           .keys = {.bytes = keys_, .key_bytes = 8},
                                           .src = place(handles.region),
                                           .ack = ack,
                                           .deadline = kPatient}));
  }
  Completion get(Client& client, const Handles& handles) {
    std::ranges::fill(memory_, std::byte{});
    return finish(client, client.multiget({.ns = handles.ns,
                                           .keys = {.bytes = keys_, .key_bytes = 8},
                                           .dest = place(handles.region),
                                           .deadline = kPatient}));
  }

  std::string dir_;
  std::vector<std::byte> memory_;
  std::vector<std::uint64_t> layers_, blocks_;
  std::vector<std::byte> keys_;
};

TEST_F(EmbedTest, StoresAndLoadsInThisProcess) {
  const auto client = open_any(address());
  ASSERT_TRUE(client.has_value()) << client.error().what;
  const Handles handles = prepare(**client);
  const std::vector<std::byte> original = memory_;
  EXPECT_EQ(put(**client, handles, AckLevel::kPooled).code, Code::kOk);
  const Completion done = get(**client, handles);
  EXPECT_EQ(done.code, Code::kOk);
  EXPECT_EQ(done.failed_keys, 0U);
  EXPECT_TRUE(memory_ == original);
  EXPECT_EQ((*client)->stats().bytes_shared, memory_.size()) << "copied from the depot's memory";
}

TEST_F(EmbedTest, BytesComeThroughTheSocketWhereMemoryIsNotWanted) {
  const auto client = open_any(address(), {.client = {.shared_memory = false}});
  ASSERT_TRUE(client.has_value()) << client.error().what;
  const Handles handles = prepare(**client);
  const std::vector<std::byte> original = memory_;
  EXPECT_EQ(put(**client, handles, AckLevel::kPooled).code, Code::kOk);
  EXPECT_EQ(get(**client, handles).failed_keys, 0U);
  EXPECT_TRUE(memory_ == original);
  EXPECT_EQ((*client)->stats().bytes_shared, 0U);
  EXPECT_EQ((*client)->stats().bytes_loaded, memory_.size());
}

// Gets and puts that overlap in time, over memory that is lent and taken back all the while; with a pool so small that
// records are evicted meanwhile.
TEST_F(EmbedTest, ManyThreadsReadWhileThePoolIsReused) {
  const auto client = open_any(address());
  ASSERT_TRUE(client.has_value()) << client.error().what;
  constexpr std::size_t kThreads = 4;
  constexpr std::uint32_t kBig = 200'000;
  constexpr std::size_t kRounds = 60;
  Namespace ns;
  ns.fingerprint = "big";
  ns.groups.push_back({.group = 0, .layers = 2, .slab_bytes = kBig, .block_tokens = 16, .order = "LBHNC"});
  const NamespaceId id = *(*client)->open_namespace(ns);
  std::atomic<std::size_t> wrong{0};
  std::atomic<std::size_t> right{0};
  const auto work = [&](std::size_t thread) {
    std::vector<std::byte> bytes(2 * kBig);
    const RegionId region = *(*client)->register_region(bytes.data(), bytes.size());
    const std::array<std::uint64_t, 2> layers{0, kBig};
    const std::array<std::uint64_t, 1> blocks{0};
    const Placement placement{.region = region, .layer_offset = layers, .block_offset = blocks};
    for (std::size_t round = 0; round < kRounds; ++round) {
      const std::uint64_t number = round * kThreads + thread;
      const auto key = std::as_bytes(std::span(&number, 1));
      const KeyList keys{.bytes = key, .key_bytes = 8};
      const auto fill = static_cast<std::byte>(number * 7 + 1);
      std::ranges::fill(bytes, fill);
      finish(**client, (*client)->multiput({.ns = id, .keys = keys, .src = placement, .deadline = kPatient}));
      std::ranges::fill(bytes, std::byte{});
      const Completion got =
          finish(**client, (*client)->multiget({.ns = id, .keys = keys, .dest = placement, .deadline = kPatient}));
      if (got.code != Code::kOk || got.failed_keys > 0) continue;  // a miss is legal
      ++(std::ranges::all_of(bytes, [fill](std::byte b) { return b == fill; }) ? right : wrong);
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < kThreads; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0U);
  EXPECT_GT(right.load(), kThreads * kRounds / 2);
  EXPECT_GT((*client)->stats().bytes_shared, 0U);
  EXPECT_EQ((*client)->stats().corrupt_slabs, 0U) << "what is read stays in place until it is given back";
}

TEST_F(EmbedTest, WhatWasStoredIsThereWhenTheDirectoryIsOpenedAgain) {
  const std::vector<std::byte> original = memory_;
  {
    const auto client = open_any(address());
    ASSERT_TRUE(client.has_value()) << client.error().what;
    EXPECT_EQ(put(**client, prepare(**client), AckLevel::kPooled).code, Code::kOk);
  }
  const auto client = open_any(address());
  ASSERT_TRUE(client.has_value()) << client.error().what;
  EXPECT_EQ(get(**client, prepare(**client)).failed_keys, 0U);
  EXPECT_TRUE(memory_ == original);
}

TEST_F(EmbedTest, WithoutASizeTheStoreThatIsThereIsOpenedAsItIs) {
  const std::vector<std::byte> original = memory_;
  {
    const auto client = open_any(address());
    ASSERT_TRUE(client.has_value()) << client.error().what;
    EXPECT_EQ(put(**client, prepare(**client), AckLevel::kPooled).code, Code::kOk);
  }
  const auto bytes = std::filesystem::file_size(dir_ + "/flash.kvd");
  const auto client = open_any("file://" + dir_ + "?pool=64MiB");
  ASSERT_TRUE(client.has_value()) << client.error().what;
  EXPECT_EQ(get(**client, prepare(**client)).failed_keys, 0U);
  EXPECT_TRUE(memory_ == original);
  EXPECT_EQ(std::filesystem::file_size(dir_ + "/flash.kvd"), bytes);
}

// Turns over a bit of the first slab with these bytes in the pool of an embedded depot of this process: through its own
// mapping, the only way there is.
bool flip_in_pool(std::span<const std::byte> slab) {
  const int memory = ::open("/proc/self/mem", O_RDWR | O_CLOEXEC);
  std::ifstream maps("/proc/self/maps");
  bool flipped = false;
  for (std::string line; !flipped && std::getline(maps, line);) {
    if (line.find("memfd:kvdepot-pool") == std::string::npos || line.find(" rw-s ") == std::string::npos) continue;
    const auto end = static_cast<off_t>(std::stoull(line.substr(line.find('-') + 1), nullptr, 16));
    std::vector<std::byte> page(slab.size());
    for (auto at = static_cast<off_t>(std::stoull(line, nullptr, 16)); at < end && !flipped; at += 4096) {
      if (::pread(memory, page.data(), page.size(), at) != static_cast<ssize_t>(page.size())) break;
      if (!std::ranges::equal(page, slab)) continue;
      page[5] ^= std::byte{1};
      flipped = ::pwrite(memory, &page[5], 1, at + 5) == 1;
    }
  }
  ::close(memory);
  return flipped;
}

TEST_F(EmbedTest, ARecordThatWentBadInThePoolIsStoredAnew) {
  const auto client = open_any("file://" + dir_ + "?pool=64MiB&flash=0");
  ASSERT_TRUE(client.has_value()) << client.error().what;
  const Handles handles = prepare(**client);
  const std::vector<std::byte> original = memory_;
  EXPECT_EQ(put(**client, handles, AckLevel::kPooled).failed_keys, 0U);
  ASSERT_TRUE(flip_in_pool(std::span(original).subspan(kSlab, kSlab)));  // layer 0 of key 1
  EXPECT_EQ(get(**client, handles).failed_keys, kKeys - 1) << "the rest of the prefix is useless";
  EXPECT_EQ(get(**client, handles).failed_keys, kKeys - 1) << "it is gone";
  EXPECT_EQ((*client)->stats().corrupt_slabs, 1U) << "and not given out again";
  memory_ = original;
  EXPECT_EQ(put(**client, handles, AckLevel::kPooled).failed_keys, 0U);
  EXPECT_EQ(get(**client, handles).failed_keys, 0U);
  EXPECT_TRUE(memory_ == original);
}

TEST_F(EmbedTest, ARecordThatWentBadInThePoolIsReadFromFlash) {
  const auto client = open_any(address());
  ASSERT_TRUE(client.has_value()) << client.error().what;
  const Handles handles = prepare(**client);
  const std::vector<std::byte> original = memory_;
  EXPECT_EQ(put(**client, handles, AckLevel::kWritten).failed_keys, 0U);
  ASSERT_TRUE(flip_in_pool(std::span(original).subspan(kSlab, kSlab)));
  EXPECT_EQ(get(**client, handles).failed_keys, kKeys - 1);
  EXPECT_EQ(get(**client, handles).failed_keys, 0U);
  EXPECT_TRUE(memory_ == original);
}

TEST_F(EmbedTest, AnotherClientAttachesToTheOwner) {
  const auto owner = open_any(address());
  ASSERT_TRUE(owner.has_value()) << owner.error().what;
  EXPECT_EQ(put(**owner, prepare(**owner), AckLevel::kPooled).code, Code::kOk);
  const auto guest = open_any(address(), {.client = {.require_connection = true}, .attach_only = true});
  ASSERT_TRUE(guest.has_value()) << guest.error().what;
  EXPECT_EQ(get(**guest, prepare(**guest)).failed_keys, 0U);
}

TEST_F(EmbedTest, ASecondOwnerIsRefusedAndToldWhatToDo) {
  const auto owner = open_any(address());
  ASSERT_TRUE(owner.has_value()) << owner.error().what;
  const auto second = open_any(address());
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, Code::kBusy);
  EXPECT_NE(std::string_view(second.error().what).find("kvdepot serve"), std::string_view::npos);
  EXPECT_EQ(put(**owner, prepare(**owner), AckLevel::kPooled).code, Code::kOk) << "the owner is undisturbed";
}

// A child that never calls exec has copies of all descriptors.
TEST_F(EmbedTest, AForkedChildDoesNotKeepTheDirectory) {
  pid_t child = -1;
  {
    const auto owner = open_any(address());
    ASSERT_TRUE(owner.has_value()) << owner.error().what;
    child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) ::pause();
    }
    EXPECT_EQ(put(**owner, prepare(**owner), AckLevel::kPooled).code, Code::kOk) << "the owner is undisturbed";
  }
  const auto again = open_any(address());
  EXPECT_TRUE(again.has_value()) << again.error().what;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(EmbedTest, OfTwoThatOpenAtOnceOneOwnsTheDirectory) {
  for (int round = 0; round < 5; ++round) {
    std::array<Result<std::unique_ptr<Client>>, 2> clients{fail(Code::kOk, ""), fail(Code::kOk, "")};
    {
      std::barrier start(2);
      const auto open = [&](std::size_t i) {
        start.arrive_and_wait();
        clients[i] = open_any(address());
      };
      const std::jthread first(open, 0);
      const std::jthread second(open, 1);
    }
    ASSERT_NE(clients[0].has_value(), clients[1].has_value()) << "round " << round;
    const auto& [owner, other] = clients[0] ? std::tie(clients[0], clients[1]) : std::tie(clients[1], clients[0]);
    EXPECT_EQ(other.error().code, Code::kBusy) << other.error().what;
    EXPECT_EQ(put(**owner, prepare(**owner), AckLevel::kPooled).code, Code::kOk);
  }
}

TEST_F(EmbedTest, DirectoryAndSocketArePrivate) {
  const auto client = open_any(address());
  ASSERT_TRUE(client.has_value()) << client.error().what;
  struct stat status{};
  ASSERT_EQ(::stat(dir_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
  ASSERT_EQ(::stat((dir_ + "/kvdepot.sock").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
}

TEST_F(EmbedTest, WithoutAnOwnerAnAttachedClientWaitsForOne) {
  const auto early = open_any(address(), {.client = {}, .attach_only = true});
  ASSERT_TRUE(early.has_value());
  EXPECT_FALSE((*early)->stats().connected);
  EXPECT_FALSE(std::filesystem::exists(dir_)) << "only an owner makes the directory";
}

TEST_F(EmbedTest, BadAddressesAreRefused) {
  for (const std::string& bad : {std::string("file://relative"), "file://" + dir_ + "?pool=many",
                                 "file://" + dir_ + "?size=1GiB", std::string("http://host")}) {
    const auto client = open_any(bad);
    ASSERT_FALSE(client.has_value()) << bad;
    EXPECT_EQ(client.error().code, Code::kInvalid) << bad;
  }
}

// One line with the path, what is wrong and what to do, as the server says it.
TEST_F(EmbedTest, TellsWhyItCannotOpen) {
  const auto reason = [](const std::string& depot, Code code) {
    std::string why;
    const auto client = open_any(depot, {}, &why);
    EXPECT_FALSE(client.has_value()) << depot;
    if (!client) {
      EXPECT_EQ(client.error().code, code) << depot;
    }
    return why;
  };
  const auto has = [](const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; };
  std::string why = reason("file:///nonexistent/parent/dir", Code::kIo);
  EXPECT_TRUE(has(why, "/nonexistent/parent/dir: cannot be created") && has(why, "parent")) << why;
  why = reason("file://" + dir_ + "?pool=1MiB", Code::kInvalid);
  EXPECT_TRUE(has(why, "64 MiB")) << why;
  why = reason("file://" + dir_ + "?pool=64MiB&flash=1MiB", Code::kInvalid);
  EXPECT_TRUE(has(why, "too small") && has(why, "are needed")) << why;
  why = reason("file://" + dir_ + "?size=1GiB", Code::kInvalid);
  EXPECT_TRUE(has(why, "pool=SIZE")) << why;
  std::filesystem::remove_all(dir_);
  std::filesystem::create_directory(dir_);
  std::ofstream(dir_ + "/thesis.tex") << "do not lose me";
  why = reason(address(), Code::kInvalid);
  EXPECT_TRUE(has(why, "thesis.tex") && has(why, "empty directory")) << why;
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), std::filesystem::directory_iterator()), 1)
      << "nothing is written there";
  std::ofstream(dir_ + "/devices.kvd") << "a list";
  why = reason(address(), Code::kInvalid);
  EXPECT_TRUE(has(why, dir_ + ": is a store of several devices: run `kvdepot serve")) << why;
}

TEST_F(EmbedTest, WarningsOfTheDepotAreHeard) {
  std::mutex mutex;
  std::vector<std::string> lines;
  OpenOptions options;
  options.on_warning = [&](std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line);
  };
  const auto client = open_any(address(), options);
  ASSERT_TRUE(client.has_value()) << client.error().what;
  const int stranger = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::ranges::copy(dir_ + "/kvdepot.sock", name.sun_path);
  ASSERT_EQ(::connect(stranger, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  ASSERT_EQ(::write(stranger, "hello there", 11), 11);  // another protocol: its connection is closed, with a warning
  char answer[16];
  while (::read(stranger, answer, sizeof answer) > 0) {
  }
  ::close(stranger);
  const auto heard = [&] {
    const std::lock_guard lock(mutex);
    return std::ranges::any_of(lines, [](const std::string& line) { return line.find("protocol") != line.npos; });
  };
  for (int i = 0; i < 500 && !heard(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(heard());
}

}  // namespace
}  // namespace kvd
