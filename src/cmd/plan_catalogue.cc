#include "cmd/plan_catalogue.h"

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace kvd::cmd {

namespace {

using nlohmann::ordered_json;

// The other names of an entry, out of `names` by a search that knows both.
template <class Entry>
std::vector<std::string> aliases_of(const Entry& entry, const std::vector<std::string>& names,
                                    const std::function<const Entry*(const std::string&)>& find) {
  std::vector<std::string> out;
  for (const std::string& name : names) {
    if (name != entry.name && find(name) == &entry) out.push_back(name);
  }
  return out;
}

// All entries of a kind, without their aliases, each with these.
template <class Entry>
std::vector<std::pair<const Entry*, std::vector<std::string>>> entries(
    const std::vector<std::string>& names, const std::function<const Entry*(const std::string&)>& find) {
  std::vector<std::pair<const Entry*, std::vector<std::string>>> out;
  for (const std::string& name : names) {
    const Entry* const entry = find(name);
    if (entry->name == name) out.emplace_back(entry, aliases_of(*entry, names, find));
  }
  return out;
}

auto models(const model::Catalogue& c) {
  return entries<model::Transformer>(c.model_names(), [&](const std::string& name) { return c.model(name); });
}
auto devices(const model::Catalogue& c) {
  return entries<model::Device>(c.device_names(), [&](const std::string& name) { return c.device(name); });
}

std::string also(const std::vector<std::string>& aliases) {
  return aliases.empty() ? "" : fmt::format("; also {}", fmt::join(aliases, ", "));
}

std::string origin_text(const model::Origin& origin) { return origin.kind() + ": " + origin.source; }

// "4 KiB", "1 MiB".
std::string size_text(double bytes) {
  constexpr double kKib = 1024;
  constexpr double kMib = kKib * kKib;
  if (bytes >= kMib && std::fmod(bytes, kMib) == 0) return fmt::format("{:g} MiB", bytes / kMib);
  if (bytes >= kKib && std::fmod(bytes, kKib) == 0) return fmt::format("{:g} KiB", bytes / kKib);
  return fmt::format("{:g} B", bytes);
}

// "10.2 GB/s at 4 KiB, 13 at 128 KiB"; without a size where there is one bandwidth for all.
std::string bandwidth_text(const model::Bandwidth& bandwidth) {
  if (bandwidth.size() == 1) return fmt::format("{:.3g} GB/s", bandwidth[0].second * 1e-9);
  std::string out;
  for (const auto& [bytes, rate] : bandwidth) {
    out += fmt::format("{}{:.3g}{} at {}", out.empty() ? "" : ", ", rate * 1e-9, out.empty() ? " GB/s" : "",
                       size_text(bytes));
  }
  return out;
}

std::string device_lines(const model::Catalogue& catalogue) {
  std::string out =
      "devices (memory, bandwidth, FLOP/s by precision; achieved of FLOP/s and of bandwidth, error; fixed time of a "
      "layer and of a step, time of a request in a decode step)\n";
  for (const auto& [d, aliases] : devices(catalogue)) {
    out += fmt::format("  {:<12} {:>4.0f} GB {:>6.3g} TB/s ", d->name, d->memory_bytes * 1e-9,
                       d->memory_bytes_per_s * 1e-12);
    for (const auto& [precision, flops] : d->flops_per_s) out += fmt::format(" {} {:.4g}T", precision, flops * 1e-12);
    out += fmt::format(";  {:.2g}, {:.3g}, {:.0f} %;  {:.4g} us a layer and {:.4g} us, {:.4g} us{}  {}\n",
                       d->compute_efficiency, d->memory_efficiency, d->error * 100, d->layer_s * 1e6, d->step_s * 1e6,
                       d->seq_s * 1e6, also(aliases), origin_text(d->origin));
    if (!d->reduce_link.empty()) {
      out += fmt::format("               all-reduces over {}: {:.3g} GB/s, {:.3g} us\n", d->reduce_link,
                         1e-9 / d->reduce_byte_s, d->reduce_latency_s * 1e6);
    }
  }
  return out;
}

std::string model_lines(const model::Catalogue& catalogue) {
  std::string out = "models (parameters, active; KV bytes a token in bf16; context; kinds of layer)\n";
  for (const auto& [m, aliases] : models(catalogue)) {
    out += fmt::format("  {:<20} {:>7.4g} G {:>7.4g} G {:>8.0f} B {:>8} ", m->name, m->params() * 1e-9,
                       m->params_active() * 1e-9, m->kv_token_bytes(2), m->context_tokens);
    for (const model::LayerGroup& group : m->groups) {
      out += fmt::format(" {} x {}{}", group.layers, model::mixer_name(group.mixer),
                         group.experts > 0 ? " + experts" : "");
    }
    out += fmt::format("{}  ({})\n", also(aliases), m->source);
  }
  return out;
}

std::string link_lines(const model::Catalogue& catalogue) {
  std::string out = "links (latency; bandwidth by size of a request)\n";
  for (const std::string& name : catalogue.link_names()) {
    const model::Link& l = *catalogue.link(name);
    out += fmt::format("  {:<14} {:.3g} us; {}  {}\n", l.name, l.latency_s * 1e6, bandwidth_text(l.bytes_per_s),
                       origin_text(l.origin));
  }
  return out;
}

std::string storage_lines(const model::Catalogue& catalogue) {
  std::string out = "storage (capacity, latency, endurance; bandwidth by size of a request)\n";
  for (const std::string& name : catalogue.storage_names()) {
    const model::Storage& s = *catalogue.storage(name);
    const std::string wear =
        s.drive_writes_per_day > 0 ? fmt::format(", {:g} drive writes a day", s.drive_writes_per_day) : "";
    out += fmt::format("  {:<14} {:.7g} TB, {:.6g} us{}{}; read {}; write {}  {}\n", s.name, s.capacity_bytes * 1e-12,
                       s.latency_s * 1e6, wear, s.service ? ", a service" : "", bandwidth_text(s.read_bytes_per_s),
                       bandwidth_text(s.write_bytes_per_s), origin_text(s.origin));
  }
  return out;
}

std::string class_lines(const model::Catalogue& catalogue) {
  std::string out = "classes (devices for each GPU, over which link; requests; where the class comes from)\n";
  for (const model::DeploymentClass& c : catalogue.classes()) {
    out += fmt::format("  {:<4} {:<30} {:g} x {}{} in {}{}{}  {}\n", c.name, c.title, c.per_gpu, c.storage,
                       c.link.empty() ? "" : " over " + c.link, size_text(c.request_bytes),
                       c.read_limit > 0 ? fmt::format(", at most {:.3g} GB/s", c.read_limit * 1e-9) : "",
                       c.shared ? ", shared" : "", c.source);
  }
  return out;
}

void add_origin(ordered_json& entry, const model::Origin& origin) {
  entry["measured"] = origin.measured;
  if (origin.measured) entry["data_sheet"] = origin.data_sheet;
  entry["source"] = origin.source;
}

ordered_json bandwidth_json(const model::Bandwidth& bandwidth) {
  ordered_json out = ordered_json::array();
  for (const auto& [bytes, rate] : bandwidth) out.push_back({bytes, rate});
  return out;
}

ordered_json devices_json(const model::Catalogue& catalogue) {
  ordered_json out = ordered_json::array();
  for (const auto& [d, aliases] : devices(catalogue)) {
    ordered_json entry{{"name", d->name},
                       {"aliases", aliases},
                       {"memory_bytes", d->memory_bytes},
                       {"memory_bytes_per_s", d->memory_bytes_per_s},
                       {"flops_per_s", d->flops_per_s},
                       {"compute_efficiency", d->compute_efficiency},
                       {"memory_efficiency", d->memory_efficiency},
                       {"error", d->error},
                       {"layer_s", d->layer_s},
                       {"step_s", d->step_s},
                       {"seq_s", d->seq_s},
                       {"reduce_link", d->reduce_link}};
    add_origin(entry, d->origin);
    out.push_back(std::move(entry));
  }
  return out;
}

ordered_json models_json(const model::Catalogue& catalogue) {
  ordered_json out = ordered_json::array();
  for (const auto& [m, aliases] : models(catalogue)) {
    ordered_json groups = ordered_json::array();
    for (const model::LayerGroup& group : m->groups) {
      groups.push_back(
          {{"layers", group.layers}, {"mixer", model::mixer_name(group.mixer)}, {"experts", group.experts}});
    }
    out.push_back({{"name", m->name},
                   {"aliases", aliases},
                   {"params", m->params()},
                   {"params_active", m->params_active()},
                   {"kv_token_bytes_bf16", m->kv_token_bytes(2)},
                   {"context_tokens", m->context_tokens},
                   {"layers", std::move(groups)},
                   {"source", m->source}});
  }
  return out;
}

ordered_json links_json(const model::Catalogue& catalogue) {
  ordered_json out = ordered_json::array();
  for (const std::string& name : catalogue.link_names()) {
    const model::Link& l = *catalogue.link(name);
    ordered_json entry{{"name", l.name}, {"latency_s", l.latency_s}, {"bytes_per_s", bandwidth_json(l.bytes_per_s)}};
    add_origin(entry, l.origin);
    out.push_back(std::move(entry));
  }
  return out;
}

ordered_json storage_json(const model::Catalogue& catalogue) {
  ordered_json out = ordered_json::array();
  for (const std::string& name : catalogue.storage_names()) {
    const model::Storage& s = *catalogue.storage(name);
    ordered_json entry{{"name", s.name},
                       {"latency_s", s.latency_s},
                       {"read_bytes_per_s", bandwidth_json(s.read_bytes_per_s)},
                       {"write_bytes_per_s", bandwidth_json(s.write_bytes_per_s)},
                       {"capacity_bytes", s.capacity_bytes},
                       {"drive_writes_per_day", s.drive_writes_per_day},
                       {"service", s.service}};
    add_origin(entry, s.origin);
    out.push_back(std::move(entry));
  }
  return out;
}

ordered_json classes_json(const model::Catalogue& catalogue) {
  ordered_json out = ordered_json::array();
  for (const model::DeploymentClass& c : catalogue.classes()) {
    out.push_back({{"name", c.name},
                   {"title", c.title},
                   {"storage", c.storage},
                   {"link", c.link},
                   {"per_gpu", c.per_gpu},
                   {"request_bytes", c.request_bytes},
                   {"read_limit", c.read_limit},
                   {"shared", c.shared},
                   {"overlapped", c.overlapped},
                   {"source", c.source}});
  }
  return out;
}

}  // namespace

std::string catalogue_text(const model::Catalogue& catalogue) {
  return device_lines(catalogue) + "\n" + model_lines(catalogue) + "\n" + link_lines(catalogue) + "\n" +
         storage_lines(catalogue) + "\n" + class_lines(catalogue);
}

std::string catalogue_json(const model::Catalogue& catalogue) {
  const ordered_json out{{"device", devices_json(catalogue)},
                         {"model", models_json(catalogue)},
                         {"link", links_json(catalogue)},
                         {"storage", storage_json(catalogue)},
                         {"class", classes_json(catalogue)}};
  return out.dump(1) + "\n";
}

}  // namespace kvd::cmd
