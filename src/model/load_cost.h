// What loading KV from a depot costs in seconds, learnt from the loads that were done. Pure; one thread owns an object.
//
// Model: seconds = fixed + pool bytes * a + flash bytes * b. Flash bytes are those that were on flash when the depot
// was asked. A load that ran beside a computation ("contended") shares the CPU with it and tells less of the depot, so
// it counts less.
#pragma once

#include <cstdint>

namespace kvd::model {

class LoadCost {
 public:
  // Learns from a load of `pool_bytes` + `flash_bytes` that took `seconds`. Nothing is learnt from values <= 0.
  void observe(std::uint64_t pool_bytes, std::uint64_t flash_bytes, double seconds, bool contended) noexcept;

  [[nodiscard]] double seconds(std::uint64_t pool_bytes, std::uint64_t flash_bytes) const noexcept {
    return kFixedSeconds + pool_s_ * static_cast<double>(pool_bytes) +
           flash_byte_s() * static_cast<double>(flash_bytes);
  }
  // False as long as the rate of a tier that holds some of the bytes is an assumed one.
  [[nodiscard]] bool measured(std::uint64_t pool_bytes, std::uint64_t flash_bytes) const noexcept {
    return (pool_bytes == 0 || pool_measured_) && (flash_bytes == 0 || flash_measured_);
  }
  [[nodiscard]] double pool_bytes_per_s() const noexcept { return 1 / pool_s_; }
  [[nodiscard]] double flash_bytes_per_s() const noexcept { return 1 / flash_byte_s(); }

 private:
  // What comes from flash passes through the pool: it is never faster.
  [[nodiscard]] double flash_byte_s() const noexcept { return flash_s_ > pool_s_ ? flash_s_ : pool_s_; }

  static constexpr double kFixedSeconds = 0.0007;  // submission, one round trip, completion: measured on loopback
  // Assumed until measured: loopback TCP of one stream, and an NVMe drive read through it.
  static constexpr double kPoolBytesPerSecond = 1.5e9;
  static constexpr double kFlashBytesPerSecond = 0.8e9;

  double pool_s_ = 1 / kPoolBytesPerSecond;  // seconds a byte
  double flash_s_ = 1 / kFlashBytesPerSecond;
  bool pool_measured_ = false;
  bool flash_measured_ = false;
};

}  // namespace kvd::model
