// MessageMemory: a bound on what connections hold of messages that have not come in whole (keys and other fields, not
// payload), over all of them. Beyond it the one is ended whose message passed 64 KiB first: whole ones come in within
// milliseconds, so that is who takes long over them. Who holds 64 KiB or less is not counted. What a whole one came
// with counts until its payload is in, or, of a Redis command, until it was run. Owned by the node, which outlives its
// connections; belongs to its loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>

#include "base/metric.h"
#include "base/result.h"

namespace kvd::net {

// Why a connection was ended by it.
inline constexpr Error kTooMuchUnfinished{Code::kNoSpace, 0, "unfinished messages of all clients take too much memory"};

class MessageMemory {
 public:
  static constexpr std::size_t kFreeBytes = std::size_t{64} << 10;

  class User {
   public:
    // `end` is called when it holds too much, behind which it is taken to hold nothing. It must not destroy the user.
    User(MessageMemory& memory, std::function<void()> end) : memory_(memory), end_(std::move(end)) {}
    ~User() { release(); }
    User(const User&) = delete;
    User& operator=(const User&) = delete;

    // It holds so many bytes now; `message` is another number for each message. False: this one has to end, as no older
    // one is left; others have been ended from here.
    [[nodiscard]] bool hold(std::size_t bytes, std::uint64_t message);
    void release() noexcept;

   private:
    friend class MessageMemory;
    MessageMemory& memory_;
    const std::function<void()> end_;
    std::size_t bytes_ = 0;
    std::uint64_t message_ = 0;
    std::list<User*>::iterator place_;  // while it holds something
  };

  // `ended` counts who was.
  explicit MessageMemory(std::size_t bytes_max, Counter* ended = nullptr) : bytes_max_(bytes_max), ended_(ended) {}
  MessageMemory(const MessageMemory&) = delete;
  MessageMemory& operator=(const MessageMemory&) = delete;
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  const std::size_t bytes_max_;
  Counter* const ended_;
  std::size_t bytes_ = 0;
  std::list<User*> users_;  // in the order in which their messages began
};

}  // namespace kvd::net
