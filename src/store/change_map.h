// ChangeMap: tells a start behind a kill which segment headers it has to read. An orderly end leaves a table of uses
// (UseTable); so that there is one behind a kill, too, a table is also written while the store serves, and beside it a
// map of the segments whose headers may have changed since: their bits are durable before such a header is written. A
// start believes the table for all others and reads the headers of these (docs/formats/flash-log.md).
//
// When many bits are set a new table is written and then, behind its flush, a map that begins anew. The map on flash
// never loses a bit that the table on flash needs: until the new table is durable bits are only added, and the map
// that follows it keeps what was on its way when the table was made and what came since. A map counts for its own table
// and for the next one, so it is right between the two writes; with any other table neither is believed.
//
// A table that cannot be written is tried again later and later: until then bits are added, and the next start reads
// more headers. Where the map cannot be written the table is made void, and the opening goes on without both: the next
// start reads all headers. So a place of the medium that is worn out does not cost the tier.
//
// One for a device; its loop. After the start it allocates nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/result.h"
#include "store/aligned_buffer.h"
#include "store/flash.h"
#include "store/sync_queue.h"
#include "store/use_table.h"

namespace kvd::store {

class ChangeMap {
 public:
  using Done = std::move_only_function<void(Status)>;

  // Bits that make a new table worth its writing: as many headers as a start reads in some 50 ms from a drive that
  // gives 10,000 a second, or a few of a small store. A table of 15,000 segments has 240 KB, which is written once for
  // 128 GiB.
  static constexpr std::uint32_t kChangedMax = 512;
  static constexpr std::uint32_t kChangedMin = 4;
  // After a table that could not be written, twice as long after each more: far fewer errors than FlashHealth bears.
  static constexpr Duration kPauseFirst = std::chrono::minutes(1), kPauseMax = std::chrono::hours(1);
  static constexpr std::size_t kWaitingReserved = 16;  // marks at once, for which memory is taken at start

  // `on`: StoreOptions::list_uses.
  ChangeMap(Flash& flash, FlashDevice& device, SyncQueue& syncs, bool on);

  // Before a header of `segment` is written: `done` comes, also from inside, when the map on flash says so, or there is
  // no table that could be believed; with an error when it cannot be written, and the header must not be. Again for
  // each header.
  void mark(std::uint32_t segment, Done done);
  // The header that was marked last is durable, and Segment says what it does.
  void settled(std::uint32_t segment) noexcept;
  // Nothing of it is being written or flushed.
  [[nodiscard]] bool idle() const noexcept { return !map_runs_ && !table_runs_; }

 private:
  // kNew: nothing is written yet. kNone: there is no table, nor will there be one.
  enum class State : std::uint8_t { kNew, kOn, kNone };

  [[nodiscard]] bool possible() const noexcept;
  [[nodiscard]] bool much_changed() const noexcept;
  void go_on();
  void write_map();
  void map_written(Status status);
  void map_failed(const Status& why);
  void tell(const Status& status);
  void write_table();
  void void_table();
  void write_table_area(std::size_t bytes);
  void table_void(const Status& status);
  void go_without();
  void table_written(const Status& status);
  void begin_anew();

  Flash& flash_;
  FlashDevice& device_;
  SyncQueue& syncs_;
  State state_ = State::kNew;
  bool map_runs_ = false;
  bool table_runs_ = false;
  bool table_voids_ = false;   // what is being written there is zeros
  bool table_is_new_ = false;  // it is durable, and the map still counts from the one before
  bool map_follows_ = false;   // a map that counts from the table on flash is there, too
  bool map_due_ = false;       // one is to be written, also when nobody waits for it
  bool table_due_ = false;     // one may be written, from table_from_ on; tried again where it fails
  bool voiding_ = false;       // the map has failed: the table is made void as soon as nothing is being written there
  Time table_from_ = Time::min();
  Duration pause_{};          // after the table that has failed last
  std::uint64_t serial_ = 0;  // of the table that changed_ counts from
  SegmentBits unsettled_;     // marked, and the header may or may not be there
  SegmentBits changed_;       // what every map from now on says
  SegmentBits on_flash_;      // what the map on flash says, whichever of those that failed it is
  SegmentBits in_map_;        // of the map that is being written
  SegmentBits since_;  // what the map of the next table has to say: from when that is made until a map follows it
  std::vector<Done> waiting_;   // for a map that is to be written
  std::vector<Done> in_write_;  // for the one that is being written
  std::vector<Done> telling_;
  std::vector<UseEntry> uses_;  // of the table that is being made
  AlignedBuffer map_area_, table_area_;
  iovec map_buffer_{}, table_buffer_{};
  io::DiskOp map_op_, table_op_;
};

}  // namespace kvd::store
