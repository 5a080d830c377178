// ReadWatch: whether a device reads as fast as a lookup promises. It says why not: reads take too long, for seconds on
// end, or do not come back while other operations do. Who asks for a read ends by its own deadline; but what is found
// on a device that answers behind all deadlines is worth nothing, and every lookup would promise it again.
//
// Judged by how long the device takes, and not by gets that miss their deadline: how short that is clients choose. One
// for a device, part of its FlashHealth; no timer, nothing is allocated.
#pragma once

#include <cstdint>

#include "base/time.h"
#include "store/list.h"

namespace kvd::store {

class ReadWatch {
 public:
  // A read is slow from here on: twenty times what an engine waits without a byte (progress_ms of the connector, 100).
  // Twice what a healthy device needs under load: 32 reads (Loader::kOpsMax) of 4 MiB take 0.9 s on one of 150 MB/s.
  static constexpr Duration kSlow = std::chrono::seconds(2);
  // Not before what the device had been given with it could have been moved at this rate: larger slabs, and writes. Of
  // an 8B model's KV, 128 KiB a token, that is 380 tokens a second: any GPU computes more.
  static constexpr std::uint64_t kSlowestBytesPerS = 50'000'000;
  // How often judge() is to be called while reads are under way, and what counts once.
  static constexpr Duration kEvery = std::chrono::seconds(1);
  // Of the last minute: seconds in which no fewer reads were slow than were not, and twice as many as others. A read
  // counts once, so a pause of the device (garbage collection: a second or two) makes one or two such seconds, and a
  // bad sector, on which a drive may try for half a minute, makes one.
  static constexpr int kSlowSecondsMin = 8;
  static constexpr unsigned kWindowSeconds = 60;
  // Beyond kSlow: no read completes for as long as FlashHealth gives all operations and a write; others do, but one is
  // not answered when the kernel gives up a command itself.
  static constexpr Duration kNoneMax = std::chrono::seconds(10);
  static constexpr Duration kOneMax = std::chrono::seconds(30);

  // A read that is under way: who submits it keeps this until it completes.
  struct Read {
    Time slow_at{};
    bool counted = false;
    ListLink<Read> link;
  };

  // `bytes`: of all that the device has, this read included.
  void submitted(Read& read, Time now, std::uint64_t bytes);
  void completed(Read& read, Time now);
  [[nodiscard]] bool idle() const noexcept { return reads_.empty(); }
  // Why the device should go off: static text; null: no reason. `slow_too`: also where reads only take long.
  [[nodiscard]] const char* judge(Time now, bool slow_too);
  // What was seen so far proves nothing: the process has slept, or the device was off.
  void forget(Time now);

 private:
  List<Read, &Read::link> reads_;                       // under way, the oldest first
  std::uint32_t slow_ = 0, fast_ = 0;                   // since it was judged last
  std::uint64_t slow_seconds_ = 0, other_seconds_ = 0;  // of those before: the last one is bit 0
  Time judged_{}, completed_{};                         // when last
};

}  // namespace kvd::store
