// Result<T>: the one error vocabulary of kvdepot, public and internal.
//
// A function that can fail returns Result<T>; nothing throws across a room or across this API. Codes are named by
// what the caller does next, not by where the failure happened. A cache miss is not an error: operations report
// misses as data (a bitmap of failed keys, a prefix length).
//
// Values copy; an Error never owns memory (`what` is a string with static storage duration), so errors are safe to
// keep, to copy between threads and to create on the data path.
#pragma once

#include <cstdint>
#include <expected>
#include <string_view>

namespace kvd {

// What went wrong, named by the caller's reaction.
enum class Code : std::uint8_t {
  kOk = 0,           // never inside an Error; used on the wire and in completions
  kInvalid = 1,      // the request can never succeed: fix the caller
  kNotFound = 2,     // no such object (a namespace handle, a lease, a file); a cache miss is not an error
  kNoSpace = 3,      // a configured bound or the disk is exhausted; more room is needed
  kBusy = 4,         // a queue is full right now: do without, or try later
  kTimeout = 5,      // the operation's deadline passed
  kUnavailable = 6,  // the peer or device is away; the client reconnects by itself
  kStale = 7,        // written by another version, epoch or owner: reopen or upgrade
  kCorrupt = 8,      // bytes failed verification and were dropped
  kIo = 9,           // the operating system reported an error, see `sys_errno`
  kCancelled = 10,   // cancelled by the caller
};

// The code's name in lower case, e.g. "not_found". Static storage.
std::string_view code_name(Code code) noexcept;

// An error: a code, the errno behind it (0 = none) and a sentence fragment that says what was being done.
struct Error {
  Code code = Code::kInvalid;
  int sys_errno = 0;
  const char* what = "";  // static storage duration, no trailing full stop

  friend bool operator==(const Error& a, const Error& b) noexcept {
    return a.code == b.code && a.sys_errno == b.sys_errno;
  }
};

template <class T>
class [[nodiscard]] Result : public std::expected<T, Error> {
 public:
  using std::expected<T, Error>::expected;
};
using Status = Result<void>;

// Builds the error branch of any Result<T>: `return fail(Code::kBusy, "too many operations in flight");`
inline std::unexpected<Error> fail(Code code, const char* what, int sys_errno = 0) noexcept {
  return std::unexpected<Error>(Error{code, sys_errno, what});
}
inline std::unexpected<Error> fail(const Error& error) noexcept { return std::unexpected<Error>(error); }

}  // namespace kvd
