// The address of an embedded depot, "file:///DIR?pool=1GiB&flash=10GiB", taken apart. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvd::embed {

struct Directory {
  std::string path;                                     // absolute
  std::uint64_t pool_bytes = std::uint64_t{1} << 30;    // DRAM tier; as `kvdepot serve`
  std::uint64_t flash_bytes = std::uint64_t{10} << 30;  // flash tier; as `kvdepot serve`; 0 = DRAM only
  bool flash_given = false;                             // flash_bytes is not the default
  [[nodiscard]] std::string socket_path() const { return path + "/kvdepot.sock"; }
};

// kInvalid says what is wrong: a relative path, an unknown or repeated parameter, not a size, a path so long that its
// socket has no name.
Result<Directory> parse_directory(std::string_view address);

}  // namespace kvd::embed
