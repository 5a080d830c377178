// docs/observability.md against the metrics themselves: each family that a depot exports has a row there, with its
// type, and no page of docs/ names a metric of a depot that there is not.
#include <array>
#include <cctype>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "node/metrics.h"

namespace kvd::node {
namespace {

using MetricTypes = std::map<std::string, std::string>;  // of a family, by its name

// All families: those of the store, and those that a tenant has when all its quotas are set.
MetricTypes exported_metrics() {
  NodeCounters node;
  net::NetCounters net;
  store::StoreStats store;
  Tenants tenants;
  const SharedTenant tenant = tenants.get("search", {});
  store::TenantFigures space;
  space.tenant = "search";
  space.quota.pool_bytes = 1;
  space.quota.flash_bytes = 1;
  space.quota.namespaces = 1;
  const store::DeviceStats device;
  const Figures figures{.node = node,
                        .net = net,
                        .tenants = tenants,
                        .store = &store,
                        .spaces = {space},
                        .devices = {{"/data/kv", &device}},
                        .ready = true,
                        .uptime_s = 1};
  MetricTypes types;
  std::istringstream lines(metrics_text(figures));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string sign, what, name, type;
    if (words >> sign >> what >> name >> type && sign == "#" && what == "TYPE") types[name] = type;
  }
  return types;
}

std::string metrics_page(const std::filesystem::path& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

// Names that begin with kvdepot_ and do not end in '_' (those stand for all that begin so). `vllm:kvdepot_...` are the
// connector's, in an engine.
std::set<std::string> metrics_named(const std::string& page) {
  constexpr std::string_view kPrefix = "kvdepot_";
  const auto of_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  std::set<std::string> names;
  for (std::size_t at = page.find(kPrefix); at != std::string::npos; at = page.find(kPrefix, at + 1)) {
    if (at > 0 && (of_word(page[at - 1]) || page[at - 1] == ':')) continue;
    std::size_t end = at;
    while (end < page.size() && of_word(page[end])) ++end;
    if (page[end - 1] != '_') names.insert(page.substr(at, end - at));
  }
  return names;
}

// A family, or a series of a histogram.
bool is_exported(const MetricTypes& types, const std::string& name) {
  if (types.contains(name)) return true;
  constexpr std::array<std::string_view, 3> kSeries{"_bucket", "_sum", "_count"};
  for (const std::string_view series : kSeries) {
    if (!name.ends_with(series)) continue;
    const auto family = types.find(name.substr(0, name.size() - series.size()));
    if (family != types.end() && family->second == "histogram") return true;
  }
  return false;
}

const std::filesystem::path& docs_folder() {
  static const std::filesystem::path folder = std::filesystem::path(KVD_SOURCE_DIR) / "docs";
  return folder;
}

TEST(MetricsPage, HasARowForEachMetricWithItsType) {
  const MetricTypes types = exported_metrics();
  ASSERT_GT(types.size(), 100u) << "what metrics_text() writes was not understood";
  const std::string page = metrics_page(docs_folder() / "observability.md");
  for (const auto& [name, type] : types) {
    const std::string row = "\n| `" + name + "` | " + type + " | ";
    EXPECT_NE(page.find(row), std::string::npos) << "docs/observability.md has no row that begins with" << row;
  }
}

TEST(MetricsPage, PagesNameNoMetricThatThereIsNot) {
  const MetricTypes types = exported_metrics();
  std::size_t pages = 0;
  for (const auto& entry : std::filesystem::directory_iterator(docs_folder())) {
    // vllm.md is about the metrics of engines; a plan names what there is not yet.
    const std::string file = entry.path().filename().string();
    if (entry.path().extension() != ".md" || file == "vllm.md" || file.starts_with("plan-")) continue;
    ++pages;
    for (const std::string& name : metrics_named(metrics_page(entry.path())))
      EXPECT_TRUE(is_exported(types, name)) << "docs/" << file << " names " << name << ", which no depot exports";
  }
  EXPECT_GT(pages, 5u);
}

TEST(MetricsPage, ReadsNamesOutOfText) {
  const std::set<std::string> names = metrics_named(
      "kvdepot_ready, `kvdepot_get_seconds_bucket{le=\"1\"}`, rate(kvdepot_store_busy_total[5m]), kvdepot_store_*, "
      "vllm:kvdepot_lookups, _kvdepot_x, kvdepot_");
  EXPECT_EQ(names, (std::set<std::string>{"kvdepot_ready", "kvdepot_get_seconds_bucket", "kvdepot_store_busy_total"}));
  const MetricTypes types{{"kvdepot_get_seconds", "histogram"}, {"kvdepot_ready", "gauge"}};
  EXPECT_TRUE(is_exported(types, "kvdepot_get_seconds_bucket"));
  EXPECT_TRUE(is_exported(types, "kvdepot_ready"));
  EXPECT_FALSE(is_exported(types, "kvdepot_ready_count"));
  EXPECT_FALSE(is_exported(types, "kvdepot_node_ready"));
}

}  // namespace
}  // namespace kvd::node
