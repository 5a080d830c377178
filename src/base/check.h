// KVD_CHECK: our own bugs. On in every build; prints where and what to stderr and aborts, because a store that goes
// on after a broken invariant could return wrong bytes. Never used for bad input, peers or devices: those are Errors.
#pragma once

namespace kvd {
// Prints "kvdepot: check failed: <expr> at <file>:<line>" to stderr and aborts. Async-signal-safe.
[[noreturn]] void check_failed(const char* expr, const char* file, int line) noexcept;
}  // namespace kvd

#define KVD_CHECK(expr) \
  (__builtin_expect(static_cast<bool>(expr), 1) ? void(0) : ::kvd::check_failed(#expr, __FILE__, __LINE__))
