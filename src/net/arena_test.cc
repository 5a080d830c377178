#include "net/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include <gtest/gtest.h>

namespace kvd::net {
namespace {

constexpr std::uint64_t kArenaBytes = std::uint64_t{1} << 20;

// The depot's and a client's, of the same memory.
struct Sides {
  std::unique_ptr<Arena> depot, client;
};

Sides make_sides() {
  Sides sides;
  sides.depot = *Arena::create(kArenaBytes);
  sides.client = *Arena::map(io::PrivateFd(io::UniqueFd(::dup(sides.depot->fd()))), kArenaBytes);
  return sides;
}

TEST(Arena, ShowsTheDepotWhatTheClientWrites) {
  Sides sides = make_sides();
  EXPECT_EQ(sides.depot->size(), kArenaBytes);
  sides.client->writable()[kArenaBytes - 1] = std::byte{7};
  EXPECT_EQ(sides.depot->bytes()[kArenaBytes - 1], std::byte{7});
  EXPECT_EQ(sides.depot->bytes()[0], std::byte{0});
  sides.client.reset();
  EXPECT_EQ(sides.depot->bytes()[kArenaBytes - 1], std::byte{7}) << "the memory lasts as long as the depot's side";
}

TEST(Arena, TheMemoryGoesWithTheDepotsSide) {
  Sides sides = make_sides();
  const io::UniqueFd kept(::dup(sides.depot->fd()));
  std::ranges::fill(sides.client->writable(), std::byte{7});
  struct stat before{}, after{};
  ASSERT_EQ(::fstat(kept.get(), &before), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(before.st_blocks) * 512, kArenaBytes);
  sides.depot.reset();
  ASSERT_EQ(::fstat(kept.get(), &after), 0);
  EXPECT_EQ(after.st_blocks, 0) << "though its client holds mapping and file";
  EXPECT_EQ(sides.client->bytes()[0], std::byte{0});
}

TEST(Arena, KeepsItsSizeWhoeverHasTheFile) {
  const auto arena = *Arena::create(kArenaBytes);
  EXPECT_EQ(::ftruncate(arena->fd(), 0), -1);
  EXPECT_EQ(::ftruncate(arena->fd(), 2 * kArenaBytes), -1);
  EXPECT_EQ(::fcntl(arena->fd(), F_ADD_SEALS, F_SEAL_WRITE), -1) << "nor can a seal be added";
}

TEST(Arena, OfADepotIsTakenOnlyWhereNoAccessCanFault) {
  const auto code_of = [](io::PrivateFd file, std::uint64_t bytes) {
    const auto taken = Arena::map(std::move(file), bytes);
    return taken ? Code::kOk : taken.error().code;
  };
  const auto file_of = [](std::uint64_t bytes, int seals) {
    io::UniqueFd file(::memfd_create("arena-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
    EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
    return io::PrivateFd(std::move(file));
  };
  constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW;
  EXPECT_EQ(code_of(file_of(kArenaBytes, kSealed), kArenaBytes), Code::kOk);
  EXPECT_EQ(code_of(file_of(kArenaBytes, F_SEAL_GROW), kArenaBytes), Code::kInvalid) << "it could shrink";
  EXPECT_EQ(code_of(file_of(kArenaBytes, kSealed), 2 * kArenaBytes), Code::kInvalid) << "it has been cut";
  EXPECT_EQ(code_of(file_of(2 * kArenaBytes, kSealed), kArenaBytes), Code::kInvalid);
  EXPECT_EQ(code_of(file_of(4096, kSealed), 4096), Code::kInvalid) << "below what an arena has";
  EXPECT_EQ(code_of(file_of(2 * Arena::kBytesMax, kSealed), 2 * Arena::kBytesMax), Code::kInvalid);
  EXPECT_EQ(code_of({}, kArenaBytes), Code::kInvalid) << "no file came";
  io::UniqueFd zero(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(code_of(io::PrivateFd(std::move(zero)), kArenaBytes), Code::kInvalid);
}

TEST(Arena, AForkedChildDoesNotHaveIt) {
  const Sides sides = make_sides();
  unsigned char present = 0;
  auto* const place = const_cast<std::byte*>(sides.client->bytes().data());
  ASSERT_EQ(::mincore(place, 4096, &present), 0);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::mincore(place, 4096, &present) == -1 && errno == ENOMEM ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace kvd::net
