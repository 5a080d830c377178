#include "net/window.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include <gtest/gtest.h>

#include "base/random.h"
#include "net/shared_memory.h"

namespace kvd::net {
namespace {

constexpr std::uint64_t kBytes = std::uint64_t{64} << 10;

std::unique_ptr<Window> make_window() { return *Window::create(kBytes); }

std::unique_ptr<SharedMemory> see(const Window& window) {
  return *SharedMemory::map(io::PrivateFd(io::UniqueFd(::dup(window.fd()))), window.size());
}

TEST(WindowTest, ItsClientSeesWhatIsWrittenWhereItIsSaidToBe) {
  const auto window = make_window();
  const auto seen = see(*window);
  const auto first = window->take(1000);
  const auto second = window->take(3000);
  std::memset(first->bytes.data(), 1, 1000);
  std::memset(second->bytes.data(), 2, 3000);
  EXPECT_EQ(seen->bytes()[first->offset + 999], std::byte{1});
  EXPECT_EQ(seen->bytes()[second->offset], std::byte{2});
  EXPECT_EQ(seen->bytes()[second->offset + 2999], std::byte{2});
}

TEST(WindowTest, AllOfItIsFreeOnceEverythingWasGivenBack) {
  for (const std::uint64_t bytes : {kBytes, kBytes + 1, kBytes + 63}) {
    const auto window = *Window::create(bytes);
    for (std::uint64_t i = 1; i < 100; ++i) {
      const auto first = window->take(i * 37), second = window->take(i * 100);
      ASSERT_TRUE(first && second);
      window->give_back(second->id);
      EXPECT_FALSE(window->take(bytes));
      window->give_back(first->id);
      const auto all = window->take(bytes);
      ASSERT_TRUE(all);
      EXPECT_EQ(all->offset, 0U);
      EXPECT_EQ(all->bytes.size(), bytes);
      window->give_back(all->id);
    }
  }
}

TEST(WindowTest, WhatIsGivenBackLateKeepsThoseBehindItWaiting) {
  const auto window = make_window();
  const auto first = window->take(kBytes / 2);
  const auto second = window->take(kBytes / 2);
  EXPECT_FALSE(window->take(1));
  window->give_back(second->id);
  EXPECT_FALSE(window->take(1));
  window->give_back(first->id);
  EXPECT_TRUE(window->take(kBytes));
  EXPECT_FALSE(make_window()->take(kBytes + 1));
}

// Against a model: stretches that are taken never lie over each other, and all of it comes back.
TEST(WindowTest, StretchesNeverLieOverEachOther) {
  Random random(1);
  const auto window = make_window();
  std::map<std::uint64_t, Window::Stretch> taken;
  std::uint64_t refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (random.below(2) == 0 || taken.empty()) {
      const auto stretch = window->take(1 + random.below(kBytes / 4));
      if (!stretch) {
        ++refused;
        continue;
      }
      for (const auto& [id, other] : taken) {
        ASSERT_TRUE(stretch->offset + stretch->bytes.size() <= other.offset ||
                    other.offset + other.bytes.size() <= stretch->offset);
      }
      ASSERT_LE(stretch->offset + stretch->bytes.size(), kBytes);
      ASSERT_TRUE(taken.emplace(stretch->id, *stretch).second);
    } else {
      auto at = taken.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(random.below(std::min<std::size_t>(taken.size(), 3))));
      window->give_back(at->first);
      taken.erase(at);
    }
  }
  EXPECT_GT(refused, 0U);
  for (const auto& [id, stretch] : taken) window->give_back(id);
  EXPECT_TRUE(window->take(kBytes));
}

TEST(WindowTest, ItsMemoryGoesWithItThoughTheClientKeepsTheFile) {
  auto window = make_window();
  const io::UniqueFd kept(::dup(window->fd()));
  std::memset(window->take(kBytes)->bytes.data(), 1, kBytes);
  struct stat status{};
  ASSERT_EQ(::fstat(kept.get(), &status), 0);
  EXPECT_GE(status.st_blocks * 512, static_cast<std::int64_t>(kBytes));
  window.reset();
  ASSERT_EQ(::fstat(kept.get(), &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
}

TEST(WindowTest, NobodyChangesItsSize) {
  const auto window = make_window();
  EXPECT_NE(::ftruncate(window->fd(), 0), 0);
  EXPECT_NE(::ftruncate(window->fd(), 2 * kBytes), 0);
}

}  // namespace
}  // namespace kvd::net
