#include "cmd/top_tenants.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/sizes.h"

namespace kvd::cmd {
namespace {

constexpr std::size_t kNameShown = 22;  // characters
constexpr double kExact = 1e18;         // figures beyond it are none of a depot's

// The figures of one tenant.
class Tenant {
 public:
  Tenant(const Interval& interval, const std::string& label) : interval_(&interval), label_(label) {}

  [[nodiscard]] const std::string& label() const noexcept { return label_; }
  [[nodiscard]] double now(std::string_view figure) const { return interval_->now().value(series(figure)); }
  [[nodiscard]] std::optional<double> quota(std::string_view figure) const {
    const std::string name = series(figure);
    if (!interval_->now().contains(name)) return std::nullopt;
    return interval_->now().value(name);
  }
  [[nodiscard]] double rate(std::string_view counter) const { return interval_->rate(series(counter)); }
  // Of the records that it asked for; nothing where it asked for none.
  [[nodiscard]] std::optional<double> hit_share() const {
    const double got = interval_->gained(series("records_got_total"));
    const double asked = got + interval_->gained(series("records_missed_total"));
    return asked > 0 ? std::optional(got / asked) : std::nullopt;
  }
  [[nodiscard]] double moved() const { return rate("bytes_sent_total") + rate("bytes_received_total"); }

 private:
  [[nodiscard]] std::string series(std::string_view figure) const {
    return fmt::format("kvdepot_tenant_{}{{tenant=\"{}\"}}", figure, label_);
  }
  const Interval* interval_;  // outlives this
  std::string label_;
};

std::vector<Tenant> tenants_of(const Interval& interval) {
  std::set<std::string> labels;
  for (const char* const metric : {"kvdepot_tenant_pool_bytes", "kvdepot_tenant_requests_total"})
    for (std::string& label : interval.now().labels(metric, "tenant")) labels.insert(std::move(label));
  std::vector<Tenant> tenants;
  for (const std::string& label : labels) tenants.emplace_back(interval, label);
  return tenants;
}

// What is not ours goes to a terminal in a form that does nothing there.
std::string show_name(std::string_view label) {
  std::string name(label.substr(0, kNameShown));
  std::ranges::replace_if(name, [](char c) { return c <= ' ' || c > '~'; }, '?');
  if (label.size() > kNameShown) name.back() = '>';
  return name;
}

std::string bytes_or_dash(std::optional<double> bytes) {
  return bytes ? show_size(static_cast<std::uint64_t>(std::clamp(*bytes, 0.0, kExact))) : "-";
}

std::string line_of(const Tenant& tenant) {
  const std::optional<double> hits = tenant.hit_share();
  return fmt::format("{:<22}{:>10}{:>10}{:>10}{:>10}{:>8}{:>9.1f}{:>9.1f}{:>6.0f}{:>6.0f}\n", show_name(tenant.label()),
                     bytes_or_dash(tenant.now("pool_bytes")), bytes_or_dash(tenant.quota("pool_quota_bytes")),
                     bytes_or_dash(tenant.now("flash_bytes")), bytes_or_dash(tenant.quota("flash_quota_bytes")),
                     hits ? fmt::format("{:.1f} %", *hits * 100) : "-", tenant.rate("bytes_sent_total") * 1e-6,
                     tenant.rate("bytes_received_total") * 1e-6, tenant.now("requests_in_flight"),
                     tenant.now("connections"));
}

nlohmann::json or_null(std::optional<double> figure) { return figure ? nlohmann::json(*figure) : nlohmann::json(); }

}  // namespace

std::string tenant_lines(const Interval& interval) {
  std::vector<Tenant> tenants = tenants_of(interval);
  if (tenants.empty() || (tenants.size() == 1 && tenants[0].label() == "default")) return {};
  std::ranges::sort(tenants, {}, [](const Tenant& tenant) {
    return std::tuple(-tenant.moved(), -tenant.now("pool_bytes") - tenant.now("flash_bytes"), tenant.label());
  });
  std::string out = fmt::format("\n{:<22}{:>10}{:>10}{:>10}{:>10}{:>8}{:>9}{:>9}{:>6}{:>6}\n", "tenant", "pool", "of",
                                "flash", "of", "hits", "out MB/s", "in MB/s", "req", "conn");
  const std::size_t shown = std::min(tenants.size(), kTenantsShown);
  for (std::size_t i = 0; i < shown; ++i) out += line_of(tenants[i]);
  if (shown < tenants.size()) out += fmt::format("and {} more: see --json\n", tenants.size() - shown);
  return out;
}

nlohmann::json tenants_json(const Interval& interval) {
  nlohmann::json out = nlohmann::json::object();
  for (const Tenant& tenant : tenants_of(interval)) {
    out[tenant.label()] = {{"pool_bytes", tenant.now("pool_bytes")},
                           {"pool_quota_bytes", or_null(tenant.quota("pool_quota_bytes"))},
                           {"flash_bytes", tenant.now("flash_bytes")},
                           {"flash_quota_bytes", or_null(tenant.quota("flash_quota_bytes"))},
                           {"hit_share", or_null(tenant.hit_share())},
                           {"sent_bytes_per_s", tenant.rate("bytes_sent_total")},
                           {"received_bytes_per_s", tenant.rate("bytes_received_total")},
                           {"requests_per_s", tenant.rate("requests_total")},
                           {"refused_per_s", tenant.rate("refused_total")},
                           {"requests_in_flight", tenant.now("requests_in_flight")},
                           {"connections", tenant.now("connections")},
                           {"namespaces", tenant.now("namespaces")}};
  }
  return out;
}

}  // namespace kvd::cmd
