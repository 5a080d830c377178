#include "cmd/top_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/sizes.h"
#include "cmd/top_devices.h"
#include "cmd/top_tenants.h"

namespace kvd::cmd {
namespace {

constexpr std::array kRequests{"match", "get", "put"};
constexpr std::string_view kTierOff = "kvdepot_store_tier_off";

// What records were asked for and where they were; shares are of all that were asked for.
struct Hits {
  double pool = 0, flash = 0, missed = 0;
  [[nodiscard]] double asked() const noexcept { return pool + flash + missed; }
};

Hits hits_since(const Interval& interval) {
  return {interval.gained("kvdepot_store_pool_hits_total"), interval.gained("kvdepot_store_flash_hits_total"),
          interval.gained("kvdepot_store_misses_total")};
}

std::string show_share(double part, double all) { return all > 0 ? fmt::format("{:.1f} %", 100 * part / all) : "-"; }

std::string show_rate(double bytes_per_s) {
  if (bytes_per_s >= 1e9) return fmt::format("{:.2f} GB/s", bytes_per_s * 1e-9);
  if (bytes_per_s >= 1e6) return fmt::format("{:.1f} MB/s", bytes_per_s * 1e-6);
  return fmt::format("{:.1f} kB/s", bytes_per_s * 1e-3);
}

// Of a figure that may be anything.
std::uint64_t whole(double figure) { return static_cast<std::uint64_t>(std::clamp(figure, 0.0, 1e18)); }

std::string show_bytes(double bytes) { return show_size(whole(bytes)); }

// The bound of a bucket.
std::string show_latency(double seconds) {
  if (seconds <= 0) return "-";
  if (std::isinf(seconds)) return "> 16 s";
  if (seconds < 1e-3) return fmt::format("< {:.0f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("< {:.3g} ms", seconds * 1e3);
  return fmt::format("< {:.3g} s", seconds);
}

std::string show_uptime(double seconds) {
  const std::uint64_t s = whole(seconds);
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  if (s < 86'400) return fmt::format("{} h {} min", s / 3600, s / 60 % 60);
  return fmt::format("{} d {} h", s / 86'400, s / 3600 % 24);
}

std::string prefix_share(const Interval& interval) {
  return show_share(interval.gained("kvdepot_match_blocks_hit_total"), interval.gained("kvdepot_match_blocks_total"));
}

std::string hit_lines(const Interval& interval) {
  const Interval since_start({}, interval.now(), 0);
  const Hits recent = hits_since(interval), all = hits_since(since_start);
  return fmt::format("hits      {} of records asked for: pool {}, flash {}; since the start {}\n",
                     show_share(recent.pool + recent.flash, recent.asked()), show_share(recent.pool, recent.asked()),
                     show_share(recent.flash, recent.asked()), show_share(all.pool + all.flash, all.asked())) +
         fmt::format("prefixes  {} of blocks looked up; since the start {}\n", prefix_share(interval),
                     prefix_share(since_start));
}

std::string request_lines(const Interval& interval) {
  std::string out = fmt::format("{:<8}{:>10}{:>12}{:>12}\n", "", "per s", "p50", "p99");
  for (const char* const name : kRequests) {
    const std::string histogram = fmt::format("kvdepot_{}_seconds", name);
    out +=
        fmt::format("{:<8}{:>10.1f}{:>12}{:>12}\n", name, interval.rate(fmt::format("kvdepot_requests_{}_total", name)),
                    show_latency(interval.quantile(histogram, 0.5)), show_latency(interval.quantile(histogram, 0.99)));
  }
  return out;
}

std::string off_line(const MetricsSample& now, double off_s) {
  if (now.value(kTierOff) <= 0) return {};
  const std::string time = off_s > 0 ? fmt::format(" for at least {}", show_uptime(off_s)) : "";
  return fmt::format("          OFF{}: the device fails, what is put stays in memory only\n", time);
}

std::string tier_lines(const Interval& interval, double off_s) {
  const MetricsSample& now = interval.now();
  return fmt::format("pool      {} in use, {} pinned, {} not on flash yet; {:.0f} records\n",
                     show_bytes(now.value("kvdepot_store_pool_bytes_used")),
                     show_bytes(now.value("kvdepot_store_pool_bytes_pinned")),
                     show_bytes(now.value("kvdepot_store_dirty_bytes")), now.value("kvdepot_store_pool_records")) +
         fmt::format("flash     {} read, {} written; {:.0f} records, {:.0f} segments free, {:.1f} given up per s\n",
                     show_rate(interval.rate("kvdepot_store_flash_bytes_read_total")),
                     show_rate(interval.rate("kvdepot_store_flash_bytes_written_total")),
                     now.value("kvdepot_store_flash_records"), now.value("kvdepot_store_segments_free"),
                     interval.rate("kvdepot_store_segments_evicted_total")) +
         off_line(now, off_s);
}

std::string traffic_lines(const Interval& interval) {
  const MetricsSample& now = interval.now();
  return fmt::format("network   {} sent, {} received; {} lent in shared memory\n",
                     show_rate(interval.rate("kvdepot_net_bytes_out_total")),
                     show_rate(interval.rate("kvdepot_net_bytes_in_total")),
                     show_rate(interval.rate("kvdepot_bytes_lent_total"))) +
         fmt::format("queue     {:.0f} gets and puts of {:.0f} keys, {:.0f} leases, {:.0f} views; {:.0f} connections\n",
                     now.value("kvdepot_ops"), now.value("kvdepot_op_keys"), now.value("kvdepot_leases"),
                     now.value("kvdepot_views"), now.value("kvdepot_connections"));
}

std::string trouble_lines(const Interval& interval) {
  const MetricsSample& now = interval.now();
  return fmt::format("refused   {:.1f} busy and {:.1f} timeouts per s\n", interval.rate("kvdepot_answered_busy_total"),
                     interval.rate("kvdepot_timeouts_total")) +
         fmt::format(
             "damage    {:.0f} records dropped, {:.0f} slabs that came damaged, {:.0f} I/O errors since the start\n",
             now.value("kvdepot_store_corrupt_total"), now.value("kvdepot_put_corrupt_total"),
             now.value("kvdepot_store_io_errors_total"));
}

std::string state_text(const MetricsSample& now) {
  if (now.value("kvdepot_ready") > 0) return "serving";
  if (now.value("kvdepot_store_recovering") <= 0) return "not serving (starting or draining)";
  return fmt::format("recovering ({:.0f} %), serving what is known", now.value("kvdepot_store_recovery_percent"));
}

}  // namespace

Interval::Interval(const MetricsSample& before, const MetricsSample& now, double apart_s) : now_(now) {
  const double began = before.value("kvdepot_uptime_seconds"), ends = now.value("kvdepot_uptime_seconds");
  constexpr double kClocksAgree = 0.99;
  if (ends - began >= kClocksAgree * apart_s) before_ = before;
  seconds_ = ends - before_.value("kvdepot_uptime_seconds");
}

double Interval::gained(std::string_view counter) const {
  return std::max(now_.value(counter) - before_.value(counter), 0.0);
}

double Interval::rate(std::string_view counter) const { return seconds_ > 0 ? gained(counter) / seconds_ : 0; }

double Interval::quantile(std::string_view histogram, double q) const {
  return cmd::quantile(before_.buckets(histogram), now_.buckets(histogram), q);
}

double flash_off_s(const Interval& interval, double before) {
  const bool stayed = interval.before().value(kTierOff) > 0 && interval.now().value(kTierOff) > 0 &&
                      interval.gained("kvdepot_store_tier_outages_total") == 0;
  return stayed ? before + interval.seconds() : 0;
}

std::string top_text(const Interval& interval, std::string_view address, double off_s) {
  const MetricsSample& now = interval.now();
  return fmt::format("kvdepot {} at {}: {}, up {}; the last {:.1f} s\n\n", now.label("kvdepot_build_info", "version"),
                     address, state_text(now), show_uptime(now.value("kvdepot_uptime_seconds")), interval.seconds()) +
         hit_lines(interval) + "\n" + request_lines(interval) + "\n" + tier_lines(interval, off_s) +
         traffic_lines(interval) + trouble_lines(interval) + device_lines(interval) + tenant_lines(interval);
}

std::string top_json(const Interval& interval, double off_s) {
  const MetricsSample& now = interval.now();
  const auto share = [](double part, double all) {
    return all > 0 ? nlohmann::json(part / all) : nlohmann::json(nullptr);
  };
  const auto bound = [&](const std::string& histogram, double q) {
    const double seconds = interval.quantile(histogram, q);
    return seconds > 0 && std::isfinite(seconds) ? nlohmann::json(seconds) : nlohmann::json(nullptr);
  };
  const Hits hits = hits_since(interval);
  nlohmann::json out{{"version", now.label("kvdepot_build_info", "version")},
                     {"ready", now.value("kvdepot_ready") > 0},
                     {"uptime_s", now.value("kvdepot_uptime_seconds")},
                     {"seconds", interval.seconds()},
                     {"flash_off_s", now.value(kTierOff) > 0 ? nlohmann::json(off_s) : nlohmann::json(nullptr)},
                     {"hit_share", share(hits.pool + hits.flash, hits.asked())},
                     {"pool_hit_share", share(hits.pool, hits.asked())},
                     {"flash_hit_share", share(hits.flash, hits.asked())},
                     {"prefix_hit_share", share(interval.gained("kvdepot_match_blocks_hit_total"),
                                                interval.gained("kvdepot_match_blocks_total"))}};
  for (const char* const name : kRequests) {
    const std::string histogram = fmt::format("kvdepot_{}_seconds", name);
    out["requests"][name] = {{"per_s", interval.rate(fmt::format("kvdepot_requests_{}_total", name))},
                             {"p50_s", bound(histogram, 0.5)},
                             {"p99_s", bound(histogram, 0.99)}};
  }
  for (const auto& [key, counter] : {std::pair{"sent_bytes", "kvdepot_net_bytes_out_total"},
                                     {"received_bytes", "kvdepot_net_bytes_in_total"},
                                     {"lent_bytes", "kvdepot_bytes_lent_total"},
                                     {"flash_read_bytes", "kvdepot_store_flash_bytes_read_total"},
                                     {"flash_written_bytes", "kvdepot_store_flash_bytes_written_total"},
                                     {"segments_evicted", "kvdepot_store_segments_evicted_total"},
                                     {"busy", "kvdepot_answered_busy_total"},
                                     {"timeouts", "kvdepot_timeouts_total"}})
    out["per_s"][key] = interval.rate(counter);
  for (const auto& [key, gauge] : {std::pair{"pool_bytes", "kvdepot_store_pool_bytes_used"},
                                   {"pool_pinned_bytes", "kvdepot_store_pool_bytes_pinned"},
                                   {"pool_records", "kvdepot_store_pool_records"},
                                   {"dirty_bytes", "kvdepot_store_dirty_bytes"},
                                   {"flash_records", "kvdepot_store_flash_records"},
                                   {"segments_free", "kvdepot_store_segments_free"},
                                   {"flash_off", "kvdepot_store_tier_off"},
                                   {"ops", "kvdepot_ops"},
                                   {"op_keys", "kvdepot_op_keys"},
                                   {"leases", "kvdepot_leases"},
                                   {"views", "kvdepot_views"},
                                   {"connections", "kvdepot_connections"},
                                   {"corrupt", "kvdepot_store_corrupt_total"},
                                   {"put_corrupt", "kvdepot_put_corrupt_total"},
                                   {"io_errors", "kvdepot_store_io_errors_total"}})
    out["now"][key] = now.value(gauge);
  out["devices"] = devices_json(interval);
  out["tenants"] = tenants_json(interval);
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace kvd::cmd
