#include "store/flash_health.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error_text.h"

namespace kvd::store {

FlashHealth::FlashHealth(io::Loop& loop, Log& log, io::Disk& disk, std::string name)
    : loop_(loop),
      log_(log),
      disk_(disk),
      name_(std::move(name)),
      probe_(loop, disk),
      probe_at_(loop, [this] { probe(); }),
      watchdog_(loop, [this] { check_stall(); }),
      overdue_(loop, [this] { check_overdue(); }),
      judge_(loop, [this] { judge_reads(); }),
      announce_(loop, [this] {
        if (off_) off_();
      }) {}

void FlashHealth::submitted(Operation& operation, io::DiskOp::Kind kind, std::uint64_t bytes) {
  ++under_way_;
  operation.expected = kNever;
  operation.bytes = bytes;
  bytes_under_way_ += bytes;
  if (!on_) return;
  const Time now = loop_.now();
  if (!watchdog_.armed()) {
    completions_seen_ = completions_;
    watchdog_.arm(watchdog_due_ = after(now, kStallMax));
  }
  if (kind == io::DiskOp::Kind::kRead) {
    reads_.submitted(operation.read, now, bytes_under_way_);
    if (!judge_.armed()) judge_.arm(judge_due_ = after(now, ReadWatch::kEvery));
    return;
  }
  operation.expected = after(now, kind == io::DiskOp::Kind::kWrite ? kStallMax : kSyncStallMax);
  expected_.insert(operation.expected);
  if (!overdue_.armed() || operation.expected < overdue_due_) watch_until(operation.expected);
}

void FlashHealth::completed(Operation& operation, bool ok) {
  ++completions_;
  --under_way_;
  bytes_under_way_ -= operation.bytes;
  reads_.completed(operation.read, loop_.now());
  if (const auto at = expected_.find(operation.expected); at != expected_.end()) expected_.erase(at);
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

// Before recovery has ended the device could not come back: reads that only take long do not turn it off then.
void FlashHealth::judge_reads() {
  const Time now = loop_.now();
  if (late(judge_due_)) {
    reads_.forget(now);
  } else if (const char* why = reads_.judge(now, may_probe_); why != nullptr) {
    return turn_off(why);
  }
  if (!reads_.idle()) judge_.arm(judge_due_ = after(now, ReadWatch::kEvery));
}

void FlashHealth::watch_until(Time when) { overdue_.arm(overdue_due_ = when); }

void FlashHealth::turn_off(const char* why) {
  if (!on_) return;
  on_ = false;
  watchdog_.disarm();
  overdue_.disarm();
  judge_.disarm();
  why_ = why;
  off_at_ = loop_.now();
  const bool again = back_at_ != Time::min() && off_at_ < after(back_at_, kProbation);
  pause_ = again ? std::min<Duration>(2 * pause_, kProbeMax) : kProbeFirst;
  told_waiting_ = false;
  if (may_probe_) probe_at_.arm_in(pause_);
  log_.error(fmt::format("store: {} turned off{}: {} ({} errors)", name_, may_probe_ ? "" : " until the next start",
                         why, errors_));
  announce_.arm(loop_.now());
}

// ---- Back ----

void FlashHealth::may_probe(bool may) noexcept {
  may_probe_ = may && on_;
  if (may_probe_) return;
  probe_at_.disarm();
  probe_.stop();
}

// What a probe would find out while the device still has something could be undone by that.
void FlashHealth::probe() {
  if (under_way_ > 0 || disk_.in_flight() > 0 || probe_.busy()) {
    if (!std::exchange(told_waiting_, true))
      log_.warn(fmt::format("store: the {} stays off until the device has answered {} operations", name_,
                            std::max<std::uint64_t>(under_way_, disk_.in_flight())));
    return probe_at_.arm_in(kProbeFirst);
  }
  probe_.start([this](const Status& how) { probed(how); });
}

void FlashHealth::probed(const Status& how) {
  // Those that were refused meanwhile have to be told first: nobody who is on again may hear of them.
  if (how && disk_.in_flight() == 0 && under_way_ == 0) return come_back();
  pause_ = std::min<Duration>(2 * pause_, kProbeMax);
  probe_at_.arm_in(pause_);
  if (!how)
    log_.warn(fmt::format("store: the {} stays off: {}; next try in {} s", name_, error_text(how.error()),
                          std::chrono::duration_cast<std::chrono::seconds>(pause_).count()));
}

void FlashHealth::come_back() {
  on_ = true;
  back_at_ = loop_.now();
  errors_ = 0;
  window_end_ = Time::min();
  reads_.forget(back_at_);
  log_.warn(fmt::format("store: the {} is on again after {} s ({})", name_,
                        std::chrono::duration_cast<std::chrono::seconds>(back_at_ - off_at_).count(), why_));
  if (back_) back_();
}

}  // namespace kvd::store
