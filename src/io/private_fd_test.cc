// What a forked child keeps of its parent's descriptors.
#include "io/private_fd.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <array>

#include <gtest/gtest.h>

namespace kvd::io {
namespace {

// A child that does nothing, for as long as this lives.
class Child {
 public:
  Child() : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) ::pause();
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  [[nodiscard]] bool ok() const noexcept { return pid_ > 0; }

 private:
  pid_t pid_;
};

std::array<UniqueFd, 2> make_pipe() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Whether nobody has the other end of a pipe any more; waits for at most 10 s.
bool hung_up(const UniqueFd& reader) {
  pollfd wait{.fd = reader.get(), .events = 0, .revents = 0};
  return ::poll(&wait, 1, 10'000) == 1 && (wait.revents & POLLHUP) != 0;
}

TEST(PrivateFd, AForkedChildClosesItsCopy) {
  auto [reader, writer] = make_pipe();
  PrivateFd first{std::move(writer)};
  PrivateFd moved;
  moved = std::move(first);
  const Child child;
  ASSERT_TRUE(child.ok());
  EXPECT_TRUE(moved.ok());
  EXPECT_FALSE(first.ok());  // NOLINT(bugprone-use-after-move): that is what is asked
  EXPECT_EQ(::write(moved.get(), "x", 1), 1) << "the parent keeps its own";
  moved.reset();
  EXPECT_TRUE(hung_up(reader));
}

TEST(PrivateFd, OthersStayWhenOneGoes) {
  std::array<std::array<UniqueFd, 2>, 3> pipes{make_pipe(), make_pipe(), make_pipe()};
  std::array<PrivateFd, 3> fds;
  for (std::size_t i = 0; i < 3; ++i) fds[i] = PrivateFd(std::move(pipes[i][1]));
  fds[1].reset();
  EXPECT_TRUE(hung_up(pipes[1][0]));
  const Child child;
  ASSERT_TRUE(child.ok());
  for (const std::size_t i : {0U, 2U}) {
    EXPECT_TRUE(fds[i].ok());
    fds[i].reset();
    EXPECT_TRUE(hung_up(pipes[i][0]));
  }
}

TEST(PrivateFd, InTheChildItHoldsNothing) {
  auto [reader, writer] = make_pipe();
  const PrivateFd fd{std::move(writer)};
  const pid_t child = ::fork();
  if (child == 0) ::_exit(fd.ok() ? 1 : 0);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace kvd::io
