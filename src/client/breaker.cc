#include "client/breaker.h"

namespace kvd::client {

bool Breaker::on_failure(Time now) noexcept {
  if (open_ || ++failures_ < failures_max_) return false;
  open_ = true;
  probe_failures_ = 0;
  probe_at_ = after(now, probe_period_);
  return true;
}

void Breaker::on_probe_success() noexcept {
  open_ = false;
  failures_ = 0;
  probe_failures_ = 0;
  probe_at_ = kNever;
}

std::uint32_t Breaker::on_probe_failure(Time now) noexcept {
  if (!open_) return 0;
  probe_at_ = after(now, probe_period_);
  return ++probe_failures_;
}

}  // namespace kvd::client
