// What is wrong with a file that a person wrote or recorded: a trace, a catalogue, a configuration. A Result carries
// static text only; whoever has to repair a file needs its name, the line and what was expected there, so readers of
// such files return FromInput<T>. Values; any thread.
#pragma once

#include <cstddef>
#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvd {

// One complaint about one place.
struct InputFault {
  std::string file;      // as the user named it
  std::size_t line = 0;  // from 1; 0 = the file as a whole
  std::string text;      // what was found and what was expected; no full stop at the end

  // "trace.jsonl:7: text", or "trace.jsonl: text" for the file as a whole.
  [[nodiscard]] std::string str() const;
};

// A value, or the first fault of the file it was read from.
template <class T>
using FromInput = std::expected<T, InputFault>;

// Those of `known` that were probably meant by `given`, nearest first, at most `count_max`. Letter case, "-", "_", "."
// and "/" don't count; a name that contains the other is near; otherwise at most a third of the letters may differ.
[[nodiscard]] std::vector<std::string> nearest_names(std::string_view given, std::span<const std::string> known,
                                                     std::size_t count_max = 3);

}  // namespace kvd
