#include "store/flash_health.h"

#include <fmt/format.h>

namespace kvd::store {

FlashHealth::FlashHealth(io::Loop& loop, Log& log, io::Disk& disk)
    : loop_(loop),
      log_(log),
      disk_(disk),
      watchdog_(loop, [this] { check_stall(); }),
      overdue_(loop, [this] { check_overdue(); }),
      announce_(loop, [this] {
        if (off_) off_();
      }) {}

Time FlashHealth::submitted(io::DiskOp::Kind kind) {
  if (!on_) return kNever;
  if (!watchdog_.armed()) {
    completions_seen_ = completions_;
    watchdog_.arm(watchdog_due_ = after(loop_.now(), kStallMax));
  }
  if (kind == io::DiskOp::Kind::kRead) return kNever;
  const Time expected = after(loop_.now(), kind == io::DiskOp::Kind::kWrite ? kStallMax : kSyncStallMax);
  expected_.insert(expected);
  if (!overdue_.armed() || expected < overdue_due_) watch_until(expected);
  return expected;
}

void FlashHealth::completed(Time expected, bool ok) {
  ++completions_;
  if (const auto at = expected_.find(expected); at != expected_.end()) expected_.erase(at);
  if (expected_.empty()) overdue_.disarm();
  if (ok || !on_) return;
  const Time now = loop_.now();
  if (now >= window_end_) {
    window_end_ = after(now, kErrorWindow);
    errors_ = 0;
  }
  if (++errors_ >= kErrorsMax) turn_off("too many errors");
}

// Armed only while something is in flight, so an idle store has no timer.
void FlashHealth::check_stall() {
  if (disk_.in_flight() == 0) return;
  if (completions_ == completions_seen_ && !late(watchdog_due_)) return turn_off("the device completes nothing");
  completions_seen_ = completions_;
  watchdog_.arm(watchdog_due_ = after(loop_.now(), kStallMax));
}

// Reads may go on while a flush hangs, and everything that is to be written waits for it then.
void FlashHealth::check_overdue() {
  if (expected_.empty()) return;
  if (late(overdue_due_)) return watch_until(after(loop_.now(), kStallMax));
  if (loop_.now() >= *expected_.begin()) return turn_off("a write, flush or discard does not complete");
  watch_until(*expected_.begin());
}

void FlashHealth::watch_until(Time when) { overdue_.arm(overdue_due_ = when); }

void FlashHealth::turn_off(const char* why) {
  if (!on_) return;
  on_ = false;
  watchdog_.disarm();
  overdue_.disarm();
  log_.error(fmt::format("store: flash tier turned off until the next start: {} ({} errors)", why, errors_));
  announce_.arm(loop_.now());
}

}  // namespace kvd::store
