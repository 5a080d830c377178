// SegmentReport: one segment of a store as it lies on flash: its header, what its footer or its frames list, and what
// is wrong with them. Read through a StoreReader; plain values. read_segment() may run on any thread.
//
// Footers and frames are found by the code that recovery uses (store/segment_scan.h). Nothing here judges payload.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "store/format.h"
#include "store/store_reader.h"

namespace kvd::store {

// Something worth telling. Damage: bytes are not what was written; a note: what a crash leaves, or another version.
struct Finding {
  static constexpr std::uint32_t kWholeStore = UINT32_MAX;
  bool damage = false;
  std::uint32_t segment = kWholeStore;
  std::string what;
  std::string device = {};                 // its directory or file, where the store has several
  [[nodiscard]] std::string line() const;  // "damage: /data/kv: segment 3: header is damaged"
};

enum class SegmentKind : std::uint8_t {
  kFree,      // no header: never used, or of a store that was here before
  kSealed,    // with a footer
  kUnsealed,  // without one: being written, or left by a crash; what its frames tell
  kRefused,   // uses a feature of a newer version: its records are not served
  kLost,      // its header is damaged: nothing in it can be served
  kMissing,   // cannot be read, or the file ends before it
};
const char* kind_name(SegmentKind kind) noexcept;

struct SegmentReport {
  std::uint32_t segment = 0;
  SegmentKind kind = SegmentKind::kFree;
  SegmentHeader header;               // of all but free, lost and missing ones
  std::vector<std::uint32_t> recent;  // segments by their last use, when this one was begun
  Footer footer;                      // of unsealed ones: what the frames tell, without usage
  std::vector<Finding> findings;
  [[nodiscard]] bool holds_records() const noexcept {
    return kind == SegmentKind::kSealed || kind == SegmentKind::kUnsealed || kind == SegmentKind::kRefused;
  }
};

// Never fails: what cannot be read is a finding. `frames`: walk the frames of a sealed segment, too, though its footer
// lists what they hold; reads a descriptor area per frame.
SegmentReport read_segment(const StoreReader& reader, std::uint32_t segment, bool frames);

}  // namespace kvd::store
