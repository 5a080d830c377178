#include "store/flash_health.h"

#include <fmt/format.h>

namespace kvd::store {

FlashHealth::FlashHealth(io::Loop& loop, Log& log, io::Disk& disk)
    : loop_(loop), log_(log), disk_(disk), watchdog_(loop, [this] { check_stall(); }), announce_(loop, [this] {
        if (off_) off_();
      }) {}

void FlashHealth::submitted() {
  if (!on_ || watchdog_.armed()) return;
  completions_seen_ = completions_;
  watchdog_.arm(due_ = after(loop_.now(), kStallMax));
}

void FlashHealth::completed(bool ok) {
  ++completions_;
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
  if (completions_ == completions_seen_ && !late(due_)) return turn_off("the device completes nothing");
  completions_seen_ = completions_;
  watchdog_.arm(due_ = after(loop_.now(), kStallMax));
}

bool FlashHealth::late(Time due) const { return loop_.now() - due > kLateMax; }

void FlashHealth::turn_off(const char* why) {
  if (!on_) return;
  on_ = false;
  watchdog_.disarm();
  log_.error(fmt::format("store: flash tier turned off until the next start: {} ({} errors)", why, errors_));
  announce_.arm(loop_.now());
}

}  // namespace kvd::store
