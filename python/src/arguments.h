// From Python arguments to the client's plain values and back: numbers, buffers, errors. All with the GIL held.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // every file that converts strings must see the same caster

#include "kvdepot/client.h"

namespace kvd::python {

namespace nb = nanobind;

// Raises kvdepot.KvdepotError with `.code` and the error's words.
[[noreturn]] void raise(const Error& error);
[[noreturn]] void raise(Code code, const std::string& text);
[[noreturn]] void raise_invalid(const char* what);

template <class T>
T take(Result<T> result) {
  if (!result) raise(result.error());
  return std::move(*result);
}
inline void take(const Status& status) {
  if (!status) raise(status.error());
}

// Offsets: a contiguous one-dimensional buffer of 64-bit integers (copied at memory speed) or any sequence of ints.
std::vector<std::uint64_t> offsets_of(nb::handle values);
// A sequence of small ints, as (0, 1).
std::vector<std::uint16_t> numbers_of(nb::handle values);
// A sequence of (offset, stride, count, length).
std::vector<Run> runs_of(nb::handle values);
// The groups of a namespace: a list of dicts with the fields of GroupSchema.
std::vector<GroupSchema> groups_of(nb::handle values);
AckLevel ack_of(std::string_view name);
Deadline deadline_of(std::int64_t total_ms, std::int64_t progress_ms);
KeyList keys_of(const nb::bytes& keys, std::int64_t key_bytes, bool native);
// An int within the range of T. Raises KvdepotError.
std::uint16_t u16_of(std::int64_t value, const char* what);
std::uint32_t u32_of(std::int64_t value, const char* what);

// The exception type; made when the module is imported.
void set_error_type(nb::handle type);

}  // namespace kvd::python
