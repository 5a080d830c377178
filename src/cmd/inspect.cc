#include "cmd/inspect.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/sizes.h"
#include "cmd/complaint.h"
#include "cmd/inspect_report.h"
#include "cmd/progress_bar.h"
#include "cmd/run_jobs.h"
#include "cmd/text_file.h"
#include "store/aligned_buffer.h"
#include "store/inventory.h"
#include "store/segment_scan.h"
#include "store/store_files.h"
#include "store/store_reader.h"
#include "store/verify.h"

namespace kvd::cmd {
namespace {

using store::StoreFiles;
using store::StoreReader;
using Json = nlohmann::ordered_json;

constexpr int kDamaged = 1;

constexpr const char* kInspectFooter =
    "Reads headers and footers only; nothing is changed, and a depot may run meanwhile. docs/inspect.md explains what\n"
    "is shown. KEY: 32 hexadecimal digits, as `kvdepot verify` names records.\n\n"
    "Examples:\n"
    "  kvdepot inspect /data/kv\n"
    "  kvdepot inspect /data/kv --segments\n"
    "  kvdepot inspect /data/kv --json | jq .tenants\n"
    "  kvdepot inspect /data/kv --device /mnt/other/kv\n"
    "  kvdepot inspect /data/kv --record 00c0ffee00000000000000000000002a --out record.bin";

constexpr const char* kVerifyFooter =
    "Reads and verifies everything, changes nothing; no depot may run on DIR. Exit status: 0 intact, 1 something is\n"
    "damaged (each on a line), 2 it could not be done, or a device of the store is missing.\n\n"
    "Examples:\n"
    "  kvdepot verify /data/kv\n"
    "  kvdepot verify /data/kv --threads 8 --json";

bool parse_key(const std::string& text, Key& key) {
  if (text.size() != 32) return false;
  const auto half = [](const char* from, std::uint64_t& to) {
    const auto [end, error] = std::from_chars(from, from + 16, to, 16);
    return error == std::errc{} && end == from + 16;
  };
  return half(text.data(), key.hi) && half(text.data() + 16, key.lo);
}

// Bytes of an even number of hexadecimal digits, or nothing.
std::optional<std::string> parse_hex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 2 <= text.size(); i += 2) {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + i + 2, value, 16);
    if (error != std::errc{} || end != text.data() + i + 2) return std::nullopt;
    bytes += static_cast<char>(value);
  }
  if (text.empty() || text.size() % 2 != 0) return std::nullopt;
  return bytes;
}

std::string record_line(const store::FoundRecord& found, bool several) {
  const GroupSchema& schema = found.content.schemas[0];
  const store::Descriptor& d = found.descriptor;
  return fmt::format(
      "{:016x}{:016x}: {}, {} slabs of {}, tenant {}, namespace {}, group {}, shard {}, {}segment {} page "
      "{}, put {}",
      d.key_hi, d.key_lo, found.live ? "live" : "dead", schema.layers, show_size(schema.slab_bytes),
      show_opaque(found.content.namespaces[0].tenant), show_opaque(found.content.namespaces[0].fingerprint),
      schema.group, d.shard, several ? fmt::format("device {} ", found.device) : "", found.segment, d.offset,
      d.put_seq);
}

Json record_json(const store::FoundRecord& found, const StoreFiles& files) {
  const GroupSchema& schema = found.content.schemas[0];
  const store::Descriptor& d = found.descriptor;
  return {{"key", fmt::format("{:016x}{:016x}", d.key_hi, d.key_lo)},
          {"live", found.live},
          {"tenant", show_opaque(found.content.namespaces[0].tenant)},
          {"fingerprint", show_opaque(found.content.namespaces[0].fingerprint)},
          {"group", schema.group},
          {"shard", d.shard},
          {"layers", schema.layers},
          {"slab_bytes", schema.slab_bytes},
          {"path", files.readers[found.device].path()},
          {"segment", found.segment},
          {"page", d.offset},
          {"image_bytes", d.length},
          {"put_seq", d.put_seq}};
}

// The record's slabs without padding, in order of layers, verified. Empty: `why` has one line.
std::string payload_of(const StoreFiles& files, const store::FoundRecord& found, std::string& foreign,
                       std::string& why) {
  const StoreReader& reader = files.readers[found.device];
  const store::AlignedBuffer image(found.descriptor.length);
  const auto read = reader.read(reader.offset_of(found.segment, found.descriptor.offset), image.span());
  const auto checked = read ? store::check_record(image.span(), found.descriptor, found.content)
                            : Result<store::CheckedRecord>(fail(read.error()));
  if (!checked) {
    why = fmt::format("{}segment {} page {}: the record {}", files.several() ? reader.path() + ": " : "", found.segment,
                      found.descriptor.offset, read ? checked.error().what : "cannot be read");
    return {};
  }
  foreign = as_text(checked->foreign);
  std::string payload;
  payload.reserve(std::size_t{checked->shape.layers} * checked->shape.slab_bytes);
  for (std::uint32_t layer = 0; layer < checked->shape.layers; ++layer)
    payload += as_text(Bytes(image.span()).subspan(checked->shape.slab_offset(layer), checked->shape.slab_bytes));
  return payload;
}

int write_payload(const InspectFlags& flags, const std::string& payload) {
  ::umask(0077);  // KV reveals prompts
  if (flags.out == "-") {
    const bool whole = std::fwrite(payload.data(), 1, payload.size(), stdout) == payload.size();
    return whole && std::fflush(stdout) == 0 ? 0 : complain("standard output cannot be written");
  }
  const std::string fault = write_text(flags.out, payload);
  return fault.empty() ? 0 : complain(fault);
}

int inspect_record(const StoreFiles& files, const InspectFlags& flags) {
  Key key;
  const auto foreign_key = parse_hex(flags.foreign);
  if (!flags.record.empty() && !parse_key(flags.record, key))
    return complain(fmt::format("--record {}: a key has 32 hexadecimal digits", flags.record));
  if (flags.record.empty() && !foreign_key)
    return complain(fmt::format("--foreign {}: an even number of hexadecimal digits is expected", flags.foreign));
  const std::string asked = flags.record.empty() ? "--foreign " + flags.foreign : "--record " + flags.record;
  auto found = store::find_records(files.readers,
                                   flags.record.empty() ? store::match_foreign(*foreign_key) : store::match_key(key));
  std::erase_if(found, [&](const store::FoundRecord& r) {
    return (flags.shard >= 0 && r.descriptor.shard != flags.shard) ||
           (flags.group >= 0 && r.content.schemas[0].group != flags.group);
  });
  if (found.empty()) return complain(asked + ": no such record on flash");
  const auto live = std::ranges::count_if(found, &store::FoundRecord::live);
  if (!flags.out.empty() && live > 1)
    return complain(fmt::format("{}: {} records have this key: choose by --shard and --group", asked, live));
  if (flags.out.empty()) {
    for (const auto& record : found)
      fmt::print("{}\n", flags.json ? record_json(record, files).dump() : record_line(record, files.several()));
    return 0;
  }
  // The newest one, also when it was removed: what is still on flash can be looked at.
  std::string foreign, why;
  const store::FoundRecord& chosen =
      *std::ranges::max_element(found, {}, [](const auto& r) { return std::pair(r.live, r.descriptor.put_seq); });
  const std::string payload = payload_of(files, chosen, foreign, why);
  if (!why.empty()) {
    complain(why);
    return kDamaged;
  }
  if (flags.out != "-")
    fmt::print("{}{}{}\n", record_line(chosen, files.several()), foreign.empty() ? "" : ", foreign key ",
               show_opaque(foreign));
  return write_payload(flags, payload);
}

Json findings_json(const std::vector<store::Finding>& findings, bool damage) {
  Json all = Json::array();
  for (const auto& finding : findings)
    if (finding.damage == damage) {
      Json one;
      if (!finding.device.empty()) one["device"] = finding.device;
      one["segment"] = finding.segment == store::Finding::kWholeStore ? Json() : Json(finding.segment);
      one["what"] = finding.what;
      all.push_back(std::move(one));
    }
  return all;
}

void add_devices(CLI::App& verb, std::vector<std::string>& devices) {
  verb.add_option("--device", devices, "Where a device of the store is that is not where it was last; repeatable")
      ->type_name("DIR")
      ->allow_extra_args(false);
}

// Devices of the store that are not there, a line each; without those whose superblocks are damaged, which is damage.
std::vector<std::string> missing_of(const StoreFiles& files) {
  std::vector<std::string> missing;
  for (const store::StoreFile& file : files.devices)
    if (!file.reader && !file.damaged) missing.push_back(file.missing);
  return missing;
}

void print_verified(const StoreFiles& files, const store::VerifyReport& report, bool json) {
  const std::vector<std::string> missing = missing_of(files);
  if (json) {
    Json all = {{"path", files.path},
                {"intact", report.damages() == 0 && missing.empty()},
                {"records", report.records},
                {"records_damaged", report.records_damaged},
                {"records_ignored", report.records_ignored},
                {"bytes_verified", report.bytes},
                {"segments", files.segments()},
                {"segments_used", report.segments_used},
                {"damages", findings_json(report.findings, true)},
                {"notes", findings_json(report.findings, false)}};
    if (files.several()) all["missing"] = missing;
    fmt::print("{}\n", all.dump());
    return;
  }
  for (const auto& finding : report.findings) fmt::print("{}\n", finding.line());
  for (const std::string& line : missing) fmt::print("missing: {}\n", line);
  fmt::print("{}: {} records in {} segments{} verified, {}; {}{}\n", files.path,
             report.records - report.records_damaged - report.records_ignored, report.segments_used,
             files.several() ? fmt::format(" of {} devices", files.readers.size()) : "", show_size(report.bytes),
             report.damages() == 0
                 ? "intact"
                 : fmt::format("{} damages, {} records lost", report.damages(), report.records_damaged),
             missing.empty() ? "" : fmt::format(", but {} devices are missing", missing.size()));
}

// What is wrong with the list, with devices that cannot be told, and with what each of the others holds.
store::VerifyReport verify_all(const StoreFiles& files, unsigned threads) {
  ProgressBar bar("verify");
  store::VerifyReport all;
  all.findings = files.findings;
  for (const store::StoreFile& file : files.devices)
    if (file.damaged) all.findings.push_back({true, store::Finding::kWholeStore, file.missing});
  std::uint64_t before = 0;
  for (const StoreReader& reader : files.readers) {
    store::VerifyReport one = store::verify_store(
        reader, threads, [&](std::uint64_t done, std::uint64_t) { bar.show(before + done, files.segments()); });
    before += reader.segments();
    all.records += one.records;
    all.records_damaged += one.records_damaged;
    all.records_ignored += one.records_ignored;
    all.bytes += one.bytes;
    all.segments_used += one.segments_used;
    for (store::Finding& finding : one.findings) {
      if (files.several()) finding.device = reader.path();
      all.findings.push_back(std::move(finding));
    }
  }
  return all;
}

}  // namespace

int run_inspect(const InspectFlags& flags) {
  std::string why;
  const auto files = StoreFiles::open(flags.dir, flags.devices, why);
  if (!files) return complain(why);
  if (flags.record.empty() && flags.foreign.empty() && !flags.out.empty())
    return complain("--out: say which record by --record or --foreign");
  if (!flags.record.empty() || !flags.foreign.empty()) return inspect_record(*files, flags);
  ProgressBar bar("inspect");
  const auto inventory = store::take_inventory(files->readers, [&](auto done, auto all) { bar.show(done, all); });
  fmt::print("{}", flags.json ? inventory_json(*files, inventory) : inventory_text(*files, inventory, flags.segments));
  return 0;
}

int run_verify(const VerifyFlags& flags) {
  std::string why;
  const auto files = StoreFiles::open(flags.dir, flags.devices, why);
  if (!files && files.error().code == Code::kCorrupt) {
    fmt::print("damage: {}\n", why);
    return kDamaged;
  }
  if (!files) return complain(why);
  if (files->in_use())
    return complain(
        fmt::format("{}: is in use by {}: stop it first, or look with kvdepot inspect", flags.dir, files->holder()));
  const store::VerifyReport report = verify_all(*files, flags.threads != 0 ? flags.threads : threads_of_machine());
  print_verified(*files, report, flags.json);
  if (const std::size_t missing = missing_of(*files).size(); missing > 0)
    return complain(fmt::format("{}: {} of {} devices are missing: attach them, or say where they are by --device DIR",
                                flags.dir, missing, files->devices.size()));
  return report.damages() == 0 ? 0 : kDamaged;
}

Verb add_inspect(CLI::App& app) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* const verb = app.add_subcommand("inspect", "Look into a store without changing it");
  verb->add_option("dir", flags->dir, "Directory of the store")->type_name("DIR")->required();
  add_devices(*verb, flags->devices);
  verb->add_flag("--segments", flags->segments, "A line for each segment that holds something, the oldest first");
  verb->add_flag("--json", flags->json, "One JSON object; sizes in bytes");
  auto* record = verb->add_option("--record", flags->record, "Show where this record lies")->type_name("KEY");
  verb->add_option("--foreign", flags->foreign, "The same by the engine's own key, in hexadecimal digits")
      ->type_name("KEY")
      ->excludes(record);
  verb->add_option("--out", flags->out, "Write the record's payload there, verified; - is standard output")
      ->type_name("FILE");
  verb->add_option("--shard", flags->shard, "Of several records with this key, that of a shard")
      ->type_name("N")
      ->check(CLI::Range(0, 65'535));
  verb->add_option("--group", flags->group, "The same for a group")->type_name("N")->check(CLI::Range(0, 65'535));
  verb->footer(kInspectFooter);
  return {verb, [flags] { return run_inspect(*flags); }};
}

Verb add_verify(CLI::App& app) {
  auto flags = std::make_shared<VerifyFlags>();
  CLI::App* const verb = app.add_subcommand("verify", "Verify all that a store holds, offline");
  verb->add_option("dir", flags->dir, "Directory of the store")->type_name("DIR")->required();
  add_devices(*verb, flags->devices);
  verb->add_option("--threads", flags->threads, "How many read at once [one per core]")
      ->type_name("N")
      ->check(CLI::Range(1, 256));
  verb->add_flag("--json", flags->json, "One JSON object");
  verb->footer(kVerifyFooter);
  return {verb, [flags] { return run_verify(*flags); }};
}

}  // namespace kvd::cmd
