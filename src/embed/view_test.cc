// Borrowed views as their users see them: the public API over a real node, store and pool.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "io/sanitizer.h"
#include "kvdepot/embed.h"

#if defined(__SANITIZE_THREAD__)
// Depots and clients that are to be killed are forked children with threads of their own.
extern "C" const char* __tsan_default_options();                                // NOLINT: the sanitizer's name
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }  // NOLINT
#endif

namespace kvd {
namespace {

using std::chrono::milliseconds;

constexpr Deadline kViewPatient{.total = std::chrono::seconds(30), .progress = {}};
constexpr std::uint16_t kViewLayers = 4;
constexpr std::uint32_t kViewSlab = 64 << 10;
constexpr std::size_t kRecord = std::size_t{kViewLayers} * kViewSlab;
constexpr std::size_t kKeysAtOnce = 16;

// A depot in this process, and another client of it as an engine beside it would be. Record n is made of its number.
class ViewTest : public testing::Test {
 protected:
  ViewTest() : memory_(kKeysAtOnce * kRecord) {
    char name[] = "/tmp/kvd-view-XXXXXX";
    dir_ = std::string(::mkdtemp(name)) + "/kv";
    owner_ = *open_any("file://" + dir_ + "?pool=64MiB&flash=0");
    region_ = *owner_->register_region(memory_.data(), memory_.size());
    ns_ = *owner_->open_namespace(space());
    attach();
  }
  ~ViewTest() override {
    client_.reset();
    owner_.reset();
    std::filesystem::remove_all(std::filesystem::path(dir_).parent_path());
  }
  void attach(bool shared_memory = true) {
    client_ = connect(shared_memory);
    client_ns_ = *client_->open_namespace(space());
  }
  [[nodiscard]] std::unique_ptr<Client> connect(bool shared_memory = true) const {
    return *open_any("file://" + dir_,
                     {.client = {.require_connection = true, .shared_memory = shared_memory}, .attach_only = true});
  }
  static Namespace space() {
    Namespace ns;
    ns.fingerprint = "weights";
    ns.groups.push_back(
        {.group = 0, .layers = kViewLayers, .slab_bytes = kViewSlab, .block_tokens = 16, .order = "LBHNC"});
    return ns;
  }
  static std::vector<std::byte> slab(std::size_t record, std::size_t layer) {
    std::vector<std::byte> bytes(kViewSlab);
    for (std::size_t i = 0; i < kViewSlab; ++i)
      bytes[i] = static_cast<std::byte>(record * 7 + layer * 31 + i * 131 + i / 4096);
    return bytes;
  }
  static std::vector<std::uint64_t> keys(std::size_t first, std::size_t count) {
    std::vector<std::uint64_t> numbers(count);
    for (std::size_t i = 0; i < count; ++i) numbers[i] = first + i;
    return numbers;
  }
  static KeyList list(const std::vector<std::uint64_t>& numbers) {
    return {.bytes = std::as_bytes(std::span(numbers)), .key_bytes = 8};
  }
  static Completion finish(Client& client, const Result<OpId>& op) {
    EXPECT_TRUE(op.has_value()) << op.error().what;
    const Completion done = *client.wait(*op, kWholeOp, std::chrono::seconds(60));
    client.release(*op);
    return done;
  }
  void put(std::size_t first, std::size_t count) {
    std::vector<std::uint64_t> layers, blocks;
    for (std::size_t l = 0; l < kViewLayers; ++l) layers.push_back(l * kViewSlab);
    for (std::size_t k = 0; k < count; ++k) {
      blocks.push_back(k * kRecord);
      for (std::size_t l = 0; l < kViewLayers; ++l)
        std::ranges::copy(slab(first + k, l),
                          memory_.begin() + static_cast<std::ptrdiff_t>(k * kRecord + l * kViewSlab));
    }
    const auto numbers = keys(first, count);
    const Placement place{.region = region_, .layer_offset = layers, .block_offset = blocks};
    const Completion done =
        finish(*owner_, owner_->multiput({.ns = ns_, .keys = list(numbers), .src = place, .deadline = kViewPatient}));
    ASSERT_TRUE(done.code == Code::kOk && done.failed_keys == 0) << done.why;
  }
  // Fills the pool three times over.
  void evict_all() {
    for (std::size_t first = 1000; first < 1768; first += kKeysAtOnce) put(first, kKeysAtOnce);
  }
  static std::unique_ptr<View> borrow(Client& client, NamespaceId ns, std::size_t first, std::size_t count,
                                      milliseconds hold = std::chrono::minutes(1)) {
    const auto numbers = keys(first, count);
    const auto op = client.borrow({.ns = ns, .keys = list(numbers), .hold = hold, .deadline = kViewPatient});
    EXPECT_TRUE(op.has_value());
    EXPECT_EQ(client.wait(*op, kWholeOp, std::chrono::seconds(60))->failed_keys, 0U);
    auto view = client.take_view(*op);
    EXPECT_TRUE(view.has_value());
    client.release(*op);
    return view ? std::move(*view) : nullptr;
  }
  std::unique_ptr<View> borrow(std::size_t first, std::size_t count, milliseconds hold = std::chrono::minutes(1)) {
    return borrow(*client_, client_ns_, first, count, hold);
  }
  static bool shows(const View& view, std::size_t first, std::size_t count) {
    for (std::size_t k = 0; k < count; ++k) {
      for (std::uint16_t l = 0; l < kViewLayers; ++l) {
        if (!std::ranges::equal(view.slab(k, l), slab(first + k, l))) return false;
      }
    }
    return true;
  }
  // A number of the depot's statistics.
  [[nodiscard]] std::uint64_t stat(const std::string& name) const {
    const std::string json = *owner_->depot_stats(std::chrono::seconds(10));
    const std::size_t at = json.find('"' + name + "\":");
    EXPECT_NE(at, std::string::npos) << name;
    return std::stoull(json.substr(at + name.size() + 3));
  }
  [[nodiscard]] bool becomes(const std::string& name, std::uint64_t value) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (stat(name) != value) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }

  std::string dir_;
  std::vector<std::byte> memory_;
  std::unique_ptr<Client> owner_, client_;
  RegionId region_;
  NamespaceId ns_ = 0, client_ns_ = 0;
};

TEST_F(ViewTest, ShowsWhatWasPutWithoutACopy) {
  put(0, 4);
  auto view = borrow(0, 4);
  EXPECT_TRUE(shows(*view, 0, 4));
  EXPECT_TRUE(view->borrowed());
  EXPECT_EQ(client_->stats().bytes_borrowed, 4 * kRecord);
  EXPECT_EQ(client_->stats().bytes_shared, 0U);
  EXPECT_GE(stat("kept_bytes"), 4 * kRecord);
  EXPECT_EQ(stat("kept_keys"), 4U);
  view.reset();
  EXPECT_TRUE(becomes("kept_bytes", 0));
  EXPECT_TRUE(becomes("kept_keys", 0));
  EXPECT_TRUE(becomes("pool_bytes_pinned", 0));
}

TEST_F(ViewTest, CannotBeWrittenTo) {
  put(0, 1);
  const int zeros = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
  for (const bool shared : {true, false}) {
    attach(shared);
    const auto view = borrow(0, 1);
    EXPECT_EQ(view->borrowed(), shared);
    // The kernel writes for us: where we may not, it says so and does not end us.
    const ssize_t written = ::read(zeros, const_cast<std::byte*>(view->slab(0, 0).data()), 16);
    EXPECT_EQ(written, shared ? -1 : 16);
    EXPECT_EQ(shows(*view, 0, 1), shared);
  }
  ::close(zeros);
}

TEST_F(ViewTest, ShowsItsOwnBytesWhenTheRecordIsRemovedAndTheOthersAreEvicted) {
  put(0, 4);
  auto view = borrow(0, 4);
  const auto numbers = keys(0, 2);
  const std::uint16_t zero = 0;
  EXPECT_EQ(finish(*owner_, owner_->remove(ns_, {&zero, 1}, {&zero, 1}, list(numbers), kViewPatient)).removed, 2U);
  evict_all();
  EXPECT_TRUE(shows(*view, 0, 4));
  EXPECT_TRUE(view->borrowed());
  view.reset();
  EXPECT_TRUE(becomes("kept_bytes", 0));
}

TEST_F(ViewTest, WhenItsTimeIsOverTheDepotHasItsMemoryBackAndTheViewItsBytes) {
  put(0, 4);
  const auto view = borrow(0, 4, milliseconds(100));
  const auto other = borrow(2, 2);  // of some of the same records, in the same mapping
  EXPECT_TRUE(becomes("kept_bytes", 2 * (kRecord + 4096)));
  EXPECT_FALSE(view->borrowed());
  EXPECT_EQ(client_->stats().views_copied, 1U);
  const auto numbers = keys(0, 2);
  const std::uint16_t zero = 0;
  EXPECT_EQ(finish(*owner_, owner_->remove(ns_, {&zero, 1}, {&zero, 1}, list(numbers), kViewPatient)).removed, 2U);
  evict_all();
  EXPECT_TRUE(shows(*view, 0, 4));
  EXPECT_TRUE(shows(*other, 2, 2));
  EXPECT_TRUE(other->borrowed());
  const auto later = borrow(1752, 16);  // reads the pool, and not what the view has in its place
  EXPECT_TRUE(shows(*later, 1752, 16));
  EXPECT_EQ(client_->stats().corrupt_slabs, 0U);
}

TEST_F(ViewTest, OutlastsItsClient) {
  put(0, 4);
  auto view = borrow(0, 4);
  client_.reset();
  ASSERT_TRUE(becomes("leavers", 1));
  evict_all();
  EXPECT_TRUE(shows(*view, 0, 4));
  EXPECT_GE(stat("kept_bytes"), 4 * kRecord);
  view.reset();
  EXPECT_TRUE(becomes("leavers", 0));
  EXPECT_TRUE(becomes("kept_bytes", 0));
}

TEST_F(ViewTest, OutlastsItsDepot) {
  put(0, 4);
  const auto view = borrow(0, 4);
  owner_.reset();
  EXPECT_TRUE(shows(*view, 0, 4));
}

// The kernel takes the memory when the last mapping of it goes, not when the depot does.
TEST_F(ViewTest, OutlastsADepotThatIsKilled) {
  const std::string other = dir_ + "-of-another";
  std::array<int, 2> told{};
  ASSERT_EQ(::pipe(told.data()), 0);
  const pid_t depot = ::fork();
  if (depot == 0) {
    static_cast<void>(client_.release());  // the parent's
    static_cast<void>(owner_.release());
    owner_ = *open_any("file://" + other + "?pool=64MiB&flash=0");
    region_ = *owner_->register_region(memory_.data(), memory_.size());
    ns_ = *owner_->open_namespace(space());
    put(0, 4);
    if (::write(told[1], "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char word = 0;
  ASSERT_EQ(::read(told[0], &word, 1), 1);
  const auto reader = *open_any("file://" + other, {.client = {.require_connection = true}, .attach_only = true});
  const NamespaceId ns = *reader->open_namespace(space());
  const auto view = borrow(*reader, ns, 0, 4);
  const auto brief = borrow(*reader, ns, 1, 2, milliseconds(500));
  EXPECT_TRUE(view->borrowed() && brief->borrowed());
  ::kill(depot, SIGKILL);
  ::waitpid(depot, nullptr, 0);
  EXPECT_TRUE(shows(*view, 0, 4) && shows(*brief, 1, 2));
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (brief->borrowed() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_FALSE(brief->borrowed());
  EXPECT_TRUE(shows(*view, 0, 4) && shows(*brief, 1, 2));
  for (const int end : told) ::close(end);
}

TEST_F(ViewTest, AClientThatIsKilledGivesBackItsViews) {
  put(0, 4);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto mine = connect();
    const auto view = borrow(*mine, *mine->open_namespace(space()), 0, 4);
    for (;;) ::pause();
  }
  EXPECT_TRUE(becomes("view_bytes", 4 * kRecord));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(becomes("kept_bytes", 0));
  EXPECT_TRUE(becomes("leavers", 0));
}

TEST_F(ViewTest, AForkedChildNeitherKeepsNorGivesBackItsParentsViews) {
  put(0, 4);
  auto view = borrow(0, 4);
  const pid_t child = ::fork();
  if (child == 0) {
    view.reset();
    for (;;) ::pause();
  }
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_GE(stat("kept_bytes"), 4 * kRecord);
  EXPECT_TRUE(shows(*view, 0, 4));
  client_.reset();
  view.reset();
  EXPECT_TRUE(becomes("kept_bytes", 0)) << "the child has no keeper";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

// 64 MiB: a connection may keep 6 MB, and the node 12.
TEST_F(ViewTest, BeyondWhatMayBeKeptItIsACopy) {
  for (std::size_t first = 0; first < 64; first += 16) put(first, 16);
  const auto many = borrow(0, 16);
  EXPECT_TRUE(many->borrowed());
  const auto more = borrow(16, 16);
  EXPECT_FALSE(more->borrowed());
  EXPECT_TRUE(shows(*many, 0, 16) && shows(*more, 16, 16));
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::unique_ptr<View>> views;
  std::size_t borrowed = 0;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(connect());
    views.push_back(borrow(*clients.back(), *clients.back()->open_namespace(space()), 0, 16));
    EXPECT_TRUE(shows(*views.back(), 0, 16));
    borrowed += views.back()->borrowed() ? 1 : 0;
  }
  EXPECT_LT(borrowed, 4U);
  EXPECT_LE(stat("kept_bytes"), 12U << 20);
}

TEST_F(ViewTest, WithoutSharedMemoryItIsACopy) {
  put(0, 4);
  attach(false);
  const auto view = borrow(0, 4);
  EXPECT_FALSE(view->borrowed());
  EXPECT_TRUE(shows(*view, 0, 4));
  client_.reset();
  EXPECT_TRUE(shows(*view, 0, 4));
}

TEST_F(ViewTest, ViewsOfManyThreadsShowTheirBytesWhileThePoolIsReusedAndTimesRunOut) {
  put(0, 8);
  std::vector<std::jthread> threads;
  std::atomic<std::size_t> wrong{0}, looks{0};
  for (std::size_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::unique_ptr<View> former;
      for (int round = 0; round < 40; ++round) {
        const std::size_t first = t * 2;
        const auto numbers = keys(first, 2);
        const auto op = client_->borrow(
            {.ns = client_ns_, .keys = list(numbers), .hold = milliseconds(1 + round % 7), .deadline = kViewPatient});
        if (!op) continue;
        const auto done = client_->wait(*op, kWholeOp, std::chrono::seconds(60));
        auto view = client_->take_view(*op);
        client_->release(*op);
        if (!view || done->failed_keys > 0) continue;  // evicted
        std::this_thread::sleep_for(milliseconds(round % 5));
        if (!shows(**view, first, 2)) ++wrong;
        ++looks;
        if (former != nullptr && !shows(*former, first, 2)) ++wrong;
        former = std::move(*view);
      }
    });
  }
  for (std::size_t first = 2000; first < 2400; first += kKeysAtOnce) {
    put(first, kKeysAtOnce);
    put(0, 8);  // what was evicted of them
  }
  threads.clear();
  EXPECT_GT(looks.load(), 0U);
  EXPECT_GT(client_->stats().views_copied, 0U);
  EXPECT_EQ(wrong.load(), 0U);
  EXPECT_EQ(client_->stats().corrupt_slabs, 0U);
  client_.reset();
  EXPECT_TRUE(becomes("kept_bytes", 0));
}

TEST_F(ViewTest, BadRequestsAreRefused) {
  const auto numbers = keys(0, 1);
  const auto code = [&](const BorrowRequest& request) {
    const auto op = client_->borrow(request);
    return op ? Code::kOk : op.error().code;
  };
  EXPECT_EQ(code({.ns = 99, .keys = list(numbers)}), Code::kInvalid);
  EXPECT_EQ(code({.ns = client_ns_, .keys = list(numbers), .hold = milliseconds(0)}), Code::kInvalid);
  EXPECT_EQ(code({.ns = client_ns_, .keys = list(numbers), .hold = kHoldMax + milliseconds(1)}), Code::kInvalid);
  EXPECT_EQ(code({.ns = client_ns_, .layer_first = kViewLayers, .keys = list(numbers)}), Code::kInvalid);
  EXPECT_EQ(client_->take_view(4711).error().code, Code::kNotFound);
}

}  // namespace
}  // namespace kvd
