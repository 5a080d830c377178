#include "kvdepot/result.h"

namespace kvd {

std::string_view code_name(Code code) noexcept {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kInvalid: return "invalid";
    case Code::kNotFound: return "not_found";
    case Code::kNoSpace: return "no_space";
    case Code::kBusy: return "busy";
    case Code::kTimeout: return "timeout";
    case Code::kUnavailable: return "unavailable";
    case Code::kStale: return "stale";
    case Code::kCorrupt: return "corrupt";
    case Code::kIo: return "io";
    case Code::kCancelled: return "cancelled";
  }
  return "unknown";
}

}  // namespace kvd
