#include "node/metrics.h"

#include <array>
#include <limits>
#include <span>
#include <sstream>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include "auth/credentials.h"

namespace kvd::node {
namespace {

// One figure: its field's name, which also makes its Prometheus name, and what it says.
template <class Owner, class Metric>
struct Field {
  const char* name;
  Metric Owner::* field;
  const char* help;
};

using store::StoreStats;
constexpr std::array kStoreCounters{
    Field{"pool_hits", &StoreStats::pool_hits, "Gets of records served from the pool."},
    Field{"flash_hits", &StoreStats::flash_hits, "Gets of records served from flash."},
    Field{"misses", &StoreStats::misses, "Gets of records that are not here."},
    Field{"puts", &StoreStats::puts, "Records published."},
    Field{"puts_duplicate", &StoreStats::puts_duplicate, "Puts of records that were here already."},
    Field{"puts_replacing", &StoreStats::puts_replacing, "Puts that took the place of an older record."},
    Field{"puts_refused", &StoreStats::puts_refused, "Puts for which there was no room."},
    Field{"removes", &StoreStats::removes, "Records removed on request."},
    Field{"corrupt", &StoreStats::corrupt, "Records dropped because they failed verification."},
    Field{"io_errors", &StoreStats::io_errors, "Failed reads and writes of the device, those of recovery too."},
    Field{"busy", &StoreStats::busy, "Requests turned away because a queue was full."},
    Field{"bytes_put", &StoreStats::bytes_put, "Payload bytes of published records."},
    Field{"bytes_got", &StoreStats::bytes_got, "Payload bytes handed out."},
    Field{"flash_bytes_written", &StoreStats::flash_bytes_written,
          "Bytes written to flash, tables and footers included."},
    Field{"flash_bytes_read", &StoreStats::flash_bytes_read, "Bytes read from flash."},
    Field{"segments_evicted", &StoreStats::segments_evicted, "Flash segments given up to make room."},
    Field{"pool_evictions", &StoreStats::pool_evictions, "Records dropped from the pool to make room."},
    Field{"tombstones", &StoreStats::tombstones, "Removals written to flash."},
    Field{"scrubbed_bytes", &StoreStats::scrubbed_bytes,
          "Bytes read from flash to find damage before it is asked for."},
    Field{"scrub_passes", &StoreStats::scrub_passes, "Times that all of flash was read for that."},
    Field{"writes_dropped", &StoreStats::writes_dropped,
          "Records kept in memory only because the write budget was spent."},
    Field{"flash_bytes_discarded", &StoreStats::flash_bytes_discarded,
          "Bytes of given-up segments that a block device was told are not needed."},
    Field{"tier_outages", &StoreStats::tier_outages, "Times that the flash tier went off because the device fails."}};
constexpr std::array kStoreGauges{
    Field{"pool_bytes_used", &StoreStats::pool_bytes_used, "Bytes of the pool in use."},
    Field{"pool_bytes_pinned", &StoreStats::pool_bytes_pinned, "Bytes of the pool that may not be evicted now."},
    Field{"pool_records", &StoreStats::pool_records, "Records in the pool."},
    Field{"flash_records", &StoreStats::flash_records, "Records on flash."},
    Field{"flash_tombstones", &StoreStats::flash_tombstones,
          "Tombstones on flash, those that nothing needs any more, too."},
    Field{"segments_free", &StoreStats::segments_free, "Flash segments without data."},
    Field{"dirty_bytes", &StoreStats::dirty_bytes, "Bytes that are in the pool only and wait to be written."},
    Field{"dirty_records", &StoreStats::dirty_records, "Records that are in the pool only and wait to be written."},
    Field{"recovered_records", &StoreStats::recovered_records, "Records found on flash when the store was opened."},
    Field{"recovered_tombstones", &StoreStats::recovered_tombstones,
          "Tombstones that the opening kept in memory until its end."},
    Field{"recovered_dropped", &StoreStats::recovered_dropped, "Records dropped when the store was opened: damaged."},
    Field{"tier_off", &StoreStats::tier_off, "1 while the flash tier is off because the device fails."},
    Field{"recovery_ms", &StoreStats::recovery_ms, "Time that opening the store took, in milliseconds."},
    Field{"recovering", &StoreStats::recovering,
          "1 while the store reads what flash holds: it serves what is known, and takes no puts and removals."},
    Field{"recovery_percent", &StoreStats::recovery_percent, "How far that is: 99 when all is read, 100 at the end."},
    Field{"unfinished_puts", &StoreStats::unfinished_puts, "Records being put."}};
constexpr std::array kNodeCounters{
    Field{"connections_accepted", &NodeCounters::connections_accepted, "Client connections accepted."},
    Field{"connections_refused", &NodeCounters::connections_refused, "Client connections closed at once: too many."},
    Field{"connections_silent", &NodeCounters::connections_silent,
          "Client connections closed before they had said who they are: others wanted their place."},
    Field{"unauthorized", &NodeCounters::unauthorized, "Client connections refused for want of a good token."},
    Field{"forbidden", &NodeCounters::forbidden, "Requests that their client's token does not allow."},
    Field{"requests_match", &NodeCounters::requests_match, "MATCH requests."},
    Field{"requests_get", &NodeCounters::requests_get, "GET requests."},
    Field{"requests_put", &NodeCounters::requests_put, "PUT requests."},
    Field{"requests_remove", &NodeCounters::requests_remove, "REMOVE requests."},
    Field{"answered_busy", &NodeCounters::answered_busy, "Requests turned away because of a limit."},
    Field{"answered_invalid", &NodeCounters::answered_invalid, "Requests that could never succeed."},
    Field{"cancelled", &NodeCounters::cancelled, "Requests ended by their client."},
    Field{"timeouts", &NodeCounters::timeouts, "Requests ended by their deadline."},
    Field{"keys_got", &NodeCounters::keys_got, "Records sent by GETs."},
    Field{"keys_missed", &NodeCounters::keys_missed, "Records asked for by GETs and not sent."},
    Field{"keys_put", &NodeCounters::keys_put, "Records acknowledged by PUTs."},
    Field{"keys_put_failed", &NodeCounters::keys_put_failed, "Records that PUTs brought in vain."},
    Field{"keys_put_present", &NodeCounters::keys_put_present, "Records that PUTs brought and that were here already."},
    Field{"put_corrupt", &NodeCounters::put_corrupt, "Slabs whose checksum was wrong when they arrived."},
    Field{"match_blocks", &NodeCounters::match_blocks, "Blocks asked for by MATCHes."},
    Field{"match_blocks_hit", &NodeCounters::match_blocks_hit, "Blocks of the usable prefixes of MATCHes."},
    Field{"leases_granted", &NodeCounters::leases_granted, "Leases granted."},
    Field{"leases_expired", &NodeCounters::leases_expired, "Leases that ended by their time."},
    Field{"bytes_lent", &NodeCounters::bytes_lent, "Bytes of records that clients were lent in shared memory."},
    Field{"gets_lent", &NodeCounters::gets_lent, "GETs answered through shared memory."},
    Field{"gets_not_lent", &NodeCounters::gets_not_lent, "GETs sent as bytes because views held their share."},
    Field{"put_arena_bytes", &NodeCounters::put_arena_bytes, "Bytes of records that came through arenas."},
    Field{"get_window_refused", &NodeCounters::get_window_refused, "Messages that were too large for a window."},
    Field{"get_window_bytes", &NodeCounters::get_window_bytes, "Bytes of records that were copied to windows."},
    Field{"views_expired", &NodeCounters::views_expired, "Views of shared memory that ended by their time."},
    Field{"resp_commands", &NodeCounters::resp_commands, "Commands of Redis clients."},
    Field{"resp_hits", &NodeCounters::resp_hits, "Keys that Redis clients asked for and that were found."},
    Field{"resp_misses", &NodeCounters::resp_misses, "Keys that Redis clients asked for and that were not."},
    Field{"resp_bytes_sent", &NodeCounters::resp_bytes_sent, "Bytes of values sent to Redis clients."},
    Field{"resp_bytes_received", &NodeCounters::resp_bytes_received, "Bytes of values that Redis clients stored."}};
constexpr std::array kNodeGauges{
    Field{"connections", &NodeCounters::connections, "Open client connections, without those of Redis clients."},
    Field{"resp_connections", &NodeCounters::resp_connections, "Open connections of Redis clients."},
    Field{"ops", &NodeCounters::ops, "Unfinished GETs and PUTs."},
    Field{"op_keys", &NodeCounters::op_keys, "Keys of unfinished GETs and PUTs."},
    Field{"rings", &NodeCounters::rings, "Connections whose messages go through memory."},
    Field{"arena_bytes", &NodeCounters::arena_bytes, "Bytes of the arenas through which clients put records."},
    Field{"window_bytes", &NodeCounters::window_bytes, "Bytes of the windows in which clients are shown records."},
    Field{"leases", &NodeCounters::leases, "Leases held."},
    Field{"pinned_bytes", &NodeCounters::pinned_bytes, "Bytes of the pool that GETs pin."},
    Field{"unfinished_bytes", &NodeCounters::unfinished_bytes, "Bytes of records being put."},
    Field{"views", &NodeCounters::views, "Views of shared memory that clients hold."},
    Field{"view_bytes", &NodeCounters::view_bytes, "Bytes in the views of shared memory that clients hold."},
    Field{"kept_bytes", &NodeCounters::kept_bytes, "Bytes of the pool that clients keep views of."},
    Field{"kept_keys", &NodeCounters::kept_keys, "Keys of the GETs whose views clients keep."},
    Field{"leavers", &NodeCounters::leavers, "Clients without a connection that still keep views."}};
constexpr std::array kNodeHistograms{
    Field{"match", &NodeCounters::match_us, "Time of a MATCH inside the depot."},
    Field{"get", &NodeCounters::get_us, "Time of a GET from its arrival to its last byte in the socket."},
    Field{"put", &NodeCounters::put_us, "Time of a PUT from its arrival to its acknowledgement."}};
constexpr Field kMatchResidence{"match_residence", &NodeCounters::match_residence_us,
                                "Time from when a MATCH could be read, at the earliest, to its answer in the socket."};
using net::NetCounters;
constexpr std::array kNetCounters{
    Field{"messages_in", &NetCounters::messages_in, "Messages received."},
    Field{"messages_out", &NetCounters::messages_out, "Messages queued to be sent."},
    Field{"bytes_in", &NetCounters::bytes_in, "Bytes received from clients."},
    Field{"bytes_out", &NetCounters::bytes_out, "Bytes sent to clients."},
    Field{"recv_calls", &NetCounters::recv_calls, "System calls that received bytes."},
    Field{"send_calls", &NetCounters::send_calls, "System calls that sent bytes."},
    Field{"moves", &NetCounters::moves, "Batches of bodies that went to the threads of --cores beside the loop's."},
    Field{"moved_bytes", &NetCounters::moved_bytes, "Bytes that these threads sent, which are among those sent."},
    Field{"protocol_errors", &NetCounters::protocol_errors, "Connections ended because of what the peer sent."},
    Field{"stalled", &NetCounters::stalled,
          "Connections cut because the peer stopped reading or writing, or was too slow."},
    Field{"unfinished_ended", &NetCounters::unfinished_ended,
          "Connections ended because requests of all clients that were not whole took too much memory."}};

constexpr std::array kNetGauges{Field{"owned_bytes", &NetCounters::owned_bytes,
                                      "Bytes of headers, replies and encrypted data that wait to be sent."}};

using Families = std::vector<prometheus::MetricFamily>;

prometheus::MetricFamily& add_family(Families& families, std::string name, const char* help,
                                     prometheus::MetricType type) {
  prometheus::MetricFamily& family = families.emplace_back();
  family.name = std::move(name);
  family.help = help;
  family.type = type;
  family.metric.emplace_back();
  return family;
}

void add_gauge(Families& families, std::string name, const char* help, double value) {
  add_family(families, std::move(name), help, prometheus::MetricType::Gauge).metric[0].gauge.value = value;
}

template <class Owner, std::size_t N>
void add_counters(Families& families, const Owner& owner, const std::string& prefix,
                  const std::array<Field<Owner, Counter>, N>& fields) {
  for (const auto& f : fields) {
    auto& family = add_family(families, prefix + f.name + "_total", f.help, prometheus::MetricType::Counter);
    family.metric[0].counter.value = static_cast<double>((owner.*f.field).value());
  }
}

template <class Owner, std::size_t N>
void add_gauges(Families& families, const Owner& owner, const std::string& prefix,
                const std::array<Field<Owner, Gauge>, N>& fields) {
  for (const auto& f : fields) {
    add_gauge(families, prefix + f.name, f.help, static_cast<double>((owner.*f.field).value()));
  }
}

template <class Histogram>
void add_histogram(Families& families, const NodeCounters& counters, const Field<NodeCounters, Histogram>& field) {
  const Histogram& histogram = counters.*field.field;
  auto& family = add_family(families, std::string("kvdepot_") + field.name + "_seconds", field.help,
                            prometheus::MetricType::Histogram);
  auto& out = family.metric[0].histogram;
  std::uint64_t sum = 0;
  const auto buckets = histogram.snapshot();
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    sum += buckets[i];
    const bool last = i + 1 == buckets.size();
    const double bound =
        last ? std::numeric_limits<double>::infinity() : static_cast<double>(Histogram::bound_us(i)) / 1e6;
    out.bucket.push_back({.cumulative_count = sum, .upper_bound = bound});
  }
  out.sample_count = sum;
  out.sample_sum = static_cast<double>(histogram.sum_us()) / 1e6;
}

template <class Histogram>
void add_quantiles(nlohmann::json& json, const NodeCounters& counters, const Field<NodeCounters, Histogram>& field) {
  const Histogram& histogram = counters.*field.field;
  json["latency_us"][field.name] = {{"p50", histogram.quantile_us(0.5)}, {"p99", histogram.quantile_us(0.99)}};
}

template <class Owner, class Metric, std::size_t N>
void add_json(nlohmann::json& json, const Owner& owner, const std::array<Field<Owner, Metric>, N>& fields) {
  for (const auto& f : fields) json[f.name] = (owner.*f.field).value();
}

// One figure of what a tenant's clients did or have under way.
struct UseField {
  const char* name;
  std::uint64_t Tenants::Figure::* field;
  bool counts;
  const char* help;
};
using UseFigure = Tenants::Figure;
constexpr std::array kUseFields{
    UseField{"requests", &UseFigure::accepted, true, "Requests that were begun."},
    UseField{"refused", &UseFigure::refused, true, "Requests refused by rights or quota."},
    UseField{"requests_in_flight", &UseFigure::in_flight, false, "Requests in flight, as the quota counts them."},
    UseField{"connections", &UseFigure::connections, false, "Open connections of its clients."},
    UseField{"connections_refused", &UseFigure::connections_refused, true,
             "Connections refused: it had as many as it may, or the rest is kept for others."},
    UseField{"rings", &UseFigure::rings, false, "Of these connections, those whose messages go through memory."},
    UseField{"arenas", &UseFigure::arenas, false, "Of these connections, those with an arena for puts."},
    UseField{"windows", &UseFigure::windows, false, "Of these connections, those with a window for gets."},
    UseField{"records_got", &UseFigure::records_got, true, "Records and values that its clients asked for and got."},
    UseField{"records_missed", &UseFigure::records_missed, true,
             "Records and values that its clients asked for and did not get."},
    UseField{"bytes_sent", &UseFigure::bytes_sent, true, "Bytes of records and values sent to its clients."},
    UseField{"bytes_received", &UseFigure::bytes_received, true,
             "Bytes of records and values that its clients stored."}};

// What the clients of each tenant asked for; a bounded number of labels.
void add_tenants(Families& families, const std::vector<Tenants::Figure>& tenants) {
  if (tenants.empty()) return;
  for (const UseField& field : kUseFields) {
    const auto type = field.counts ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
    prometheus::MetricFamily family{
        std::string("kvdepot_tenant_") + field.name + (field.counts ? "_total" : ""), field.help, type, {}};
    for (const Tenants::Figure& tenant : tenants) {
      prometheus::ClientMetric& metric = family.metric.emplace_back();
      metric.label.push_back({"tenant", tenant.name});
      (field.counts ? metric.counter.value : metric.gauge.value) = static_cast<double>(tenant.*field.field);
    }
    families.push_back(std::move(family));
  }
}

// One figure of what a tenant takes up.
struct SpaceField {
  const char* name;
  std::uint64_t (*of)(const store::TenantFigures&);
  bool counts;
  const char* help;
};
constexpr std::array kSpaceFields{
    SpaceField{"pool_bytes", [](const auto& f) { return f.pool_bytes; }, false, "Bytes of the pool in use."},
    SpaceField{"pool_quota_bytes", [](const auto& f) { return f.quota.pool_bytes; }, false,
               "Bytes of the pool that it may use."},
    SpaceField{"pool_refused", [](const auto& f) { return f.pool_refused; }, true,
               "Records for which there was no room within the quota of the pool."},
    SpaceField{"pool_evictions", [](const auto& f) { return f.pool_evictions; }, true,
               "Records that left the pool for others of the same tenant."},
    SpaceField{"flash_bytes", [](const auto& f) { return f.flash_bytes; }, false,
               "Bytes of the records that flash serves."},
    SpaceField{"flash_quota_bytes", [](const auto& f) { return f.quota.flash_bytes; }, false,
               "Bytes that these may be."},
    SpaceField{"flash_given_up_bytes", [](const auto& f) { return f.flash_given_up; }, true,
               "Bytes of records that flash serves no more, for others of the same tenant."},
    SpaceField{"namespaces", [](const auto& f) { return f.namespaces; }, false, "Open namespaces."},
    SpaceField{"namespaces_quota", [](const auto& f) { return f.quota.namespaces; }, false,
               "Namespaces that it may open."},
    SpaceField{"namespaces_refused", [](const auto& f) { return f.namespaces_refused; }, true,
               "Namespaces that were not opened: the tenant had as many open as it may."}};

// A tenant's name as it is where it could be in a credentials file. Without credentials clients name tenants by any
// bytes, which neither JSON nor Prometheus takes: others than those of such names are written as %HH.
// The sum of several keeps its parentheses, which no other label has.
std::string label_of(const store::TenantFigures& space) {
  if (space.summed) return space.tenant;
  std::string label;
  for (const char c : space.tenant) {
    if (auth::is_name({&c, 1}, 1)) {
      label += c;
    } else {
      label += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return label;
}

// Of tenants without a quota there is none to show.
bool shown(std::uint64_t figure) { return figure != store::SpaceQuota::kUnlimited; }

void add_spaces(Families& families, const std::vector<store::TenantFigures>& spaces) {
  for (const SpaceField& field : kSpaceFields) {
    const auto type = field.counts ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
    prometheus::MetricFamily family{
        std::string("kvdepot_tenant_") + field.name + (field.counts ? "_total" : ""), field.help, type, {}};
    for (const store::TenantFigures& space : spaces) {
      const std::uint64_t figure = field.of(space);
      if (!shown(figure)) continue;
      prometheus::ClientMetric& metric = family.metric.emplace_back();
      metric.label.push_back({"tenant", label_of(space)});
      (field.counts ? metric.counter.value : metric.gauge.value) = static_cast<double>(figure);
    }
    if (!family.metric.empty()) families.push_back(std::move(family));
  }
}

void add_spaces(nlohmann::json& json, const std::vector<store::TenantFigures>& spaces) {
  for (const store::TenantFigures& space : spaces)
    for (const SpaceField& field : kSpaceFields)
      if (shown(field.of(space))) json["tenants"][label_of(space)][field.name] = field.of(space);
}

using store::DeviceStats;
constexpr std::array kDeviceCounters{
    Field{"read_bytes", &DeviceStats::bytes_read, "Bytes read from it."},
    Field{"written_bytes", &DeviceStats::bytes_written, "Bytes written to it, tables and footers included."},
    Field{"discarded_bytes", &DeviceStats::bytes_discarded, "Bytes that it was told are not needed."},
    Field{"scrubbed_bytes", &DeviceStats::bytes_scrubbed, "Bytes read from it to find damage early."},
    Field{"io_errors", &DeviceStats::io_errors, "Failed reads and writes of it."},
    Field{"outages", &DeviceStats::outages, "Times that it went off because it fails."}};
constexpr std::array kDeviceGauges{
    Field{"off", &DeviceStats::off, "1 while it is off because it fails."},
    Field{"bytes", &DeviceStats::bytes, "Size of its log."},
    Field{"segments", &DeviceStats::segments, "Segments of its log."},
    Field{"segments_free", &DeviceStats::segments_free, "Segments of it without data."},
    Field{"segments_doubtful", &DeviceStats::segments_doubtful,
          "Segments of it whose headers could not be read at the start."},
    Field{"records", &DeviceStats::records, "Records on it."},
    Field{"removals_waiting", &DeviceStats::removals_waiting, "Removals that are to be written to it."},
    Field{"in_flight", &DeviceStats::in_flight, "Operations that it has not answered."}};

// A path may be any bytes, of which neither JSON nor Prometheus nor a terminal takes all: others than those that are
// printed as they are, and quotes, are written as %HH.
std::string label_of(const store::DeviceFigures& device) {
  std::string label;
  for (const char c : device.dir) {
    if (c >= ' ' && c <= '~' && c != '"' && c != '\\') {
      label += c;
    } else {
      label += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return label;
}

template <class Metric, std::size_t N>
void add_devices(Families& families, const std::vector<store::DeviceFigures>& devices,
                 const std::array<Field<DeviceStats, Metric>, N>& fields) {
  constexpr bool kCounts = std::is_same_v<Metric, Counter>;
  const auto type = kCounts ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
  for (const auto& f : fields) {
    prometheus::MetricFamily family{
        std::string("kvdepot_device_") + f.name + (kCounts ? "_total" : ""), f.help, type, {}};
    for (const store::DeviceFigures& device : devices) {
      prometheus::ClientMetric& metric = family.metric.emplace_back();
      metric.label.push_back({"device", label_of(device)});
      (kCounts ? metric.counter.value : metric.gauge.value) = static_cast<double>((device.stats->*f.field).value());
    }
    if (!family.metric.empty()) families.push_back(std::move(family));
  }
}

nlohmann::json devices_json(const std::vector<store::DeviceFigures>& devices) {
  nlohmann::json all = nlohmann::json::array();
  for (const store::DeviceFigures& device : devices) {
    nlohmann::json one{{"dir", label_of(device)},
                       {"why_off", device.stats->off.value() > 0 ? device.stats->why_off.load() : ""}};
    add_json(one, *device.stats, kDeviceCounters);
    add_json(one, *device.stats, kDeviceGauges);
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace

std::string metrics_text(const Figures& figures) {
  Families families;
  add_gauge(families, "kvdepot_ready", "1 when the depot serves all requests, 0 while it recovers or drains.",
            figures.ready ? 1 : 0);
  add_gauge(families, "kvdepot_uptime_seconds", "Time since the depot was started.", figures.uptime_s);
  auto& info = add_family(families, "kvdepot_build_info", "The version that runs.", prometheus::MetricType::Gauge);
  info.metric[0].label.push_back({"version", KVD_VERSION});
  info.metric[0].gauge.value = 1;
  if (figures.store != nullptr) {
    add_counters(families, *figures.store, "kvdepot_store_", kStoreCounters);
    add_gauges(families, *figures.store, "kvdepot_store_", kStoreGauges);
  }
  add_counters(families, figures.node, "kvdepot_", kNodeCounters);
  add_gauges(families, figures.node, "kvdepot_", kNodeGauges);
  add_counters(families, figures.net, "kvdepot_net_", kNetCounters);
  add_gauges(families, figures.net, "kvdepot_net_", kNetGauges);
  add_tenants(families, figures.tenants.figures());
  add_spaces(families, figures.spaces);
  add_devices(families, figures.devices, kDeviceCounters);
  add_devices(families, figures.devices, kDeviceGauges);
  for (const auto& f : kNodeHistograms) add_histogram(families, figures.node, f);
  add_histogram(families, figures.node, kMatchResidence);
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return std::move(out).str();
}

std::string stats_json(const Figures& figures) {
  nlohmann::json json;
  json["version"] = KVD_VERSION;
  json["ready"] = figures.ready;
  json["uptime_s"] = figures.uptime_s;
  if (figures.store != nullptr) {
    add_json(json["store"], *figures.store, kStoreCounters);
    add_json(json["store"], *figures.store, kStoreGauges);
  }
  add_json(json["node"], figures.node, kNodeCounters);
  add_json(json["node"], figures.node, kNodeGauges);
  for (const Tenants::Figure& tenant : figures.tenants.figures())
    for (const UseField& field : kUseFields) json["tenants"][tenant.name][field.name] = tenant.*field.field;
  add_spaces(json, figures.spaces);
  json["devices"] = devices_json(figures.devices);
  add_json(json["net"], figures.net, kNetCounters);
  add_json(json["net"], figures.net, kNetGauges);
  for (const auto& f : kNodeHistograms) add_quantiles(json, figures.node, f);
  add_quantiles(json, figures.node, kMatchResidence);
  return json.dump();
}

}  // namespace kvd::node
