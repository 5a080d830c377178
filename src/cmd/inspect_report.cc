#include "cmd/inspect_report.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/sizes.h"

namespace kvd::cmd {
namespace {

using store::Inventory;
using store::InventorySegment;
using store::SegmentKind;
using store::StoreFiles;
using store::StoreReader;
using store::Tally;
using store::uuid_text;
using Json = nlohmann::ordered_json;

constexpr std::size_t kBarWidth = 30;
constexpr std::size_t kKinds = std::tuple_size_v<decltype(Inventory::kinds)>;

double percent(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

// What can hold records, and what does.
std::uint64_t capacity(const StoreFiles& files) { return files.segments() * files.segment_bytes(); }
std::uint64_t filled(const Inventory& inventory) { return inventory.live.bytes + inventory.dead.bytes; }

std::string kinds_text(const Inventory& inventory) {
  std::string text;
  for (std::size_t kind = 0; kind < kKinds; ++kind)
    if (inventory.kinds[kind] > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", inventory.kinds[kind],
                          store::kind_name(static_cast<SegmentKind>(kind)));
  return text;
}

// Used segments, the oldest first.
std::vector<const InventorySegment*> by_age(const Inventory& inventory) {
  std::vector<const InventorySegment*> used;
  for (const auto& segment : inventory.segments)
    if (segment.generation != 0) used.push_back(&segment);
  std::ranges::sort(used, {}, &InventorySegment::generation);
  return used;
}

std::string ages_text(const StoreFiles& files, const Inventory& inventory) {
  const auto used = by_age(inventory);
  if (used.empty()) return "nothing is stored";
  const auto line = [&](const char* which, const InventorySegment& s) {
    return fmt::format("{} begun {} opening{} ago, {} of log ago", which, s.openings_ago,
                       s.openings_ago == 1 ? "" : "s", show_size(s.newer_segments * files.segment_bytes()));
  };
  return line("oldest segment", *used.front()) + "; " + line("median", *used[used.size() / 2]);
}

std::map<std::string, Tally> by_tenant(const Inventory& inventory) {
  std::map<std::string, Tally> tenants;
  for (const auto& ns : inventory.namespaces) {
    Tally& tally = tenants[ns.name.tenant];
    tally.records += ns.live.records;
    tally.bytes += ns.live.bytes;
  }
  return tenants;
}

std::string namespaces_text(const Inventory& inventory) {
  std::string text = "tenants\n";
  for (const auto& [tenant, tally] : by_tenant(inventory))
    text += fmt::format("  {:<24} {:>12} records {:>12} {:>6.1f} %\n", show_opaque(tenant), tally.records,
                        show_size(tally.bytes), percent(tally.bytes, inventory.live.bytes));
  text += "namespaces (live records; dead: removed, or stored anew)\n";
  for (const auto& ns : inventory.namespaces) {
    text += fmt::format("  {} / {}\n    {} records, {}; dead {}, {}\n", show_opaque(ns.name.tenant),
                        show_opaque(ns.name.fingerprint), ns.live.records, show_size(ns.live.bytes), ns.dead.records,
                        show_size(ns.dead.bytes));
    for (const GroupSchema& g : ns.groups)
      text += fmt::format("    group {}: {} slabs of {}, {} parts, {} tokens, order {}\n", g.group, g.layers,
                          show_size(g.slab_bytes), g.parts, g.block_tokens, g.order.empty() ? "-" : g.order);
  }
  return text;
}

std::string sizes_text(const Inventory& inventory) {
  std::uint64_t most = 1;
  for (const Tally& tally : inventory.sizes) most = std::max(most, tally.records);
  std::string text = "record sizes (with table and padding)\n";
  for (std::size_t i = 0; i < inventory.sizes.size(); ++i) {
    const Tally& tally = inventory.sizes[i];
    if (tally.records == 0) continue;
    const std::string bar(std::max<std::size_t>(1, tally.records * kBarWidth / most), '#');
    text += fmt::format("  from {:>8} {:>12} records {:>12}  {}\n", show_size(std::uint64_t{1} << i), tally.records,
                        show_size(tally.bytes), bar);
  }
  return text;
}

std::string name_of(const InventorySegment& segment, bool several) {
  return several ? fmt::format("{}:{}", segment.device, segment.segment) : fmt::format("{}", segment.segment);
}

std::string segments_text(const Inventory& inventory, bool several) {
  std::string text = fmt::format("{:>8} {:<9} {:>18} {:>8} {:>7} {:>10} {:>12} {:>8} {:>6}\n", "segment", "state",
                                 "generation", "openings", "recency", "live", "live bytes", "dead", "tombs");
  for (const InventorySegment* s : by_age(inventory))
    text += fmt::format("{:>8} {:<9} {:>18} {:>8} {:>7} {:>10} {:>12} {:>8} {:>6}\n", name_of(*s, several),
                        store::kind_name(s->kind), s->generation, s->openings_ago,
                        s->recency < 0 ? "-" : std::to_string(s->recency), s->live.records, show_size(s->live.bytes),
                        s->dead.records, s->tombstones);
  return text;
}

Json tally_json(const Tally& tally) { return {{"records", tally.records}, {"bytes", tally.bytes}}; }

Json namespaces_json(const Inventory& inventory) {
  Json all = Json::array();
  for (const auto& ns : inventory.namespaces) {
    Json groups = Json::array();
    for (const GroupSchema& g : ns.groups)
      groups.push_back({{"group", g.group},
                        {"layers", g.layers},
                        {"slab_bytes", g.slab_bytes},
                        {"parts", g.parts},
                        {"block_tokens", g.block_tokens},
                        {"order", show_opaque(g.order)}});
    all.push_back({{"tenant", show_opaque(ns.name.tenant)},
                   {"fingerprint", show_opaque(ns.name.fingerprint)},
                   {"live", tally_json(ns.live)},
                   {"dead", tally_json(ns.dead)},
                   {"groups", std::move(groups)}});
  }
  return all;
}

Json segments_json(const Inventory& inventory, bool several) {
  Json all = Json::array();
  for (const InventorySegment& s : inventory.segments) {
    if (s.kind == SegmentKind::kFree) continue;
    Json one = {{"segment", s.segment},
                {"state", store::kind_name(s.kind)},
                {"generation", s.generation},
                {"openings_ago", s.openings_ago},
                {"newer_segments", s.newer_segments},
                {"recency", s.recency < 0 ? Json() : Json(s.recency)},
                {"data_bytes", s.data_bytes},
                {"live", tally_json(s.live)},
                {"dead", tally_json(s.dead)},
                {"tombstones", s.tombstones}};
    if (several) one["device"] = s.device;
    all.push_back(std::move(one));
  }
  return all;
}

// What is known of each device of the list: live records and bytes, and what it is.
Json devices_json(const StoreFiles& files, const Inventory& inventory) {
  Json all = Json::array();
  for (const store::StoreFile& file : files.devices) {
    Json one = {
        {"uuid", uuid_text(file.listed.uuid)}, {"last_at", file.listed.path}, {"here", file.reader.has_value()}};
    if (file.reader) {
      const StoreReader& reader = files.readers[*file.reader];
      Tally live;
      for (const InventorySegment& s : inventory.segments)
        if (s.device == *file.reader) {
          live.records += s.live.records;
          live.bytes += s.live.bytes;
        }
      one["device"] = *file.reader;
      one["path"] = reader.path();
      one["segments"] = reader.segments();
      one["file_bytes"] = reader.file_bytes();
      one["superblock_copies"] = reader.copies_that_agree();
      one["live"] = tally_json(live);
    } else {
      one["missing"] = file.missing;
    }
    all.push_back(std::move(one));
  }
  return all;
}

std::string devices_text(const StoreFiles& files) {
  std::string text;
  for (const store::StoreFile& file : files.devices) {
    if (!file.reader) {
      text += fmt::format("  missing    {}\n", file.missing);
      continue;
    }
    const StoreReader& reader = files.readers[*file.reader];
    text += fmt::format("  device {:<3} {}: {}, {} segments, file of {}, {} of {} superblock copies agree\n",
                        *file.reader, reader.path(), uuid_text(file.listed.uuid), reader.segments(),
                        show_size(reader.file_bytes()), reader.copies_that_agree(), store::kSuperblockCopies);
  }
  return text;
}

// How it is laid out.
std::string geometry_text(const StoreFiles& files) {
  if (files.several())
    return devices_text(files) +
           fmt::format("  geometry   {} segments of {}, files of {}, {} of {} copies of the list agree\n",
                       files.segments(), show_size(files.segment_bytes()), show_size(files.file_bytes()),
                       files.list_copies, store::kSuperblockCopies);
  const StoreReader& reader = files.readers.front();
  std::string text = fmt::format("  geometry   {} segments of {}, file of {}, {} of {} superblock copies agree\n",
                                 reader.segments(), show_size(reader.segment_bytes()), show_size(reader.file_bytes()),
                                 reader.copies_that_agree(), store::kSuperblockCopies);
  if (reader.superblock().member())
    text += fmt::format(
        "  note       one device of store {}, which has several: give the directory with its devices.kvd "
        "to see all\n",
        uuid_text(reader.superblock().store));
  return text;
}

Json findings_json(const std::vector<store::Finding>& findings) {
  Json all = Json::array();
  for (const auto& finding : findings) all.push_back({{"damage", finding.damage}, {"line", finding.line()}});
  return all;
}

}  // namespace

std::string show_opaque(const std::string& bytes) {
  if (std::ranges::all_of(bytes, [](char c) { return c >= ' ' && c <= '~'; })) return bytes;
  std::string hex;
  for (const char c : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

std::string inventory_text(const StoreFiles& files, const Inventory& inventory, bool segments) {
  std::string text = fmt::format("{}: store {}{}, format {}, opening {}\n", files.path, uuid_text(files.uuid()),
                                 files.several() ? fmt::format(" of {} devices", files.devices.size()) : "",
                                 files.version(), files.boot_epoch());
  if (files.in_use()) text += fmt::format("  in use by {}: figures change while they are read\n", files.holder());
  text += geometry_text(files);
  text += fmt::format("  segments   {}\n", kinds_text(inventory));
  text += fmt::format("  fill       {:.1f} %: {} of {}, live {}, dead {}\n",
                      percent(filled(inventory), capacity(files)), show_size(filled(inventory)),
                      show_size(capacity(files)), show_size(inventory.live.bytes), show_size(inventory.dead.bytes));
  text +=
      fmt::format("  records    {} live, {} dead, {} tombstones, {} ignored; newest put {}\n", inventory.live.records,
                  inventory.dead.records, inventory.tombstones, inventory.ignored, inventory.put_seq_max);
  text += fmt::format("  ages       {}\n", ages_text(files, inventory));
  text += namespaces_text(inventory) + sizes_text(inventory);
  if (segments) text += segments_text(inventory, files.several());
  for (const auto& finding : files.findings) text += finding.line() + "\n";
  for (const auto& finding : inventory.findings) text += finding.line() + "\n";
  return text;
}

std::string inventory_json(const StoreFiles& files, const Inventory& inventory) {
  Json kinds = Json::object(), tenants = Json::object(), sizes = Json::array();
  for (std::size_t kind = 0; kind < kKinds; ++kind)
    kinds[store::kind_name(static_cast<SegmentKind>(kind))] = inventory.kinds[kind];
  for (const auto& [tenant, tally] : by_tenant(inventory)) tenants[show_opaque(tenant)] = tally_json(tally);
  for (std::size_t i = 0; i < inventory.sizes.size(); ++i) {
    if (inventory.sizes[i].records == 0) continue;
    Json bucket = tally_json(inventory.sizes[i]);
    bucket["from_bytes"] = std::uint64_t{1} << i;
    sizes.push_back(std::move(bucket));
  }
  Json findings = findings_json(files.findings);
  for (Json& one : findings_json(inventory.findings)) findings.push_back(std::move(one));
  Json all = {{"path", files.path},
              {"uuid", uuid_text(files.uuid())},
              {"format", files.version()},
              {"opening", files.boot_epoch()},
              {"in_use", files.in_use()},
              {"segments", files.segments()},
              {"segment_bytes", files.segment_bytes()},
              {"file_bytes", files.file_bytes()},
              {"states", std::move(kinds)},
              {"fill_bytes", filled(inventory)},
              {"capacity_bytes", capacity(files)},
              {"live", tally_json(inventory.live)},
              {"dead", tally_json(inventory.dead)},
              {"tombstones", inventory.tombstones},
              {"ignored", inventory.ignored},
              {"put_seq_max", inventory.put_seq_max},
              {"tenants", std::move(tenants)},
              {"namespaces", namespaces_json(inventory)},
              {"record_sizes", std::move(sizes)},
              {"segment_list", segments_json(inventory, files.several())},
              {"findings", std::move(findings)}};
  if (files.several()) {
    all["list_copies"] = files.list_copies;
    all["devices"] = devices_json(files, inventory);
  } else {
    all["superblock_copies"] = files.readers.front().copies_that_agree();
    if (files.readers.front().superblock().member())
      all["device_of"] = uuid_text(files.readers.front().superblock().store);
  }
  return all.dump() + "\n";
}

}  // namespace kvd::cmd
