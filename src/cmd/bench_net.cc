#include "cmd/bench_net.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error_text.h"
#include "base/sizes.h"
#include "cmd/complaint.h"
#include "cmd/net_bench.h"
#include "cmd/percentile.h"
#include "cmd/progress_bar.h"

namespace kvd::cmd {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kNetBytesMin = std::uint64_t{8} << 20;  // two of the largest records
constexpr std::uint64_t kNetBytesMax = std::uint64_t{4} << 30;
constexpr Duration kNetTimeMin = Millis(10);
constexpr Duration kNetTimeMax = std::chrono::minutes(10);

constexpr const char* kNetFooter =
    "Stores records in a namespace of its own, gets and looks them up, and removes them: all from the depot's memory,\n"
    "where --size fits into its pool. One client, 8 requests of 2 MiB (at least one record) at once over one "
    "connection;\n"
    "what comes is verified. GB are 10^9 bytes; rates are medians of the rounds, latencies are of all requests in "
    "them,\n"
    "from the submission to the end; CPU is this process's. Takes twice --size of memory. Interrupted,\n"
    "its records stay until they are evicted.\n\n"
    "Examples:\n"
    "  kvdepot bench net tcp://127.0.0.1:7070\n"
    "  kvdepot bench net unix:///run/kvdepot.sock --shared-memory --size 256MiB --rounds 9 --json";

struct NetRow {
  std::string name;
  std::uint64_t record_bytes = 0;
  std::vector<RunFigures> rounds;
  std::vector<double> latency_s;
};

std::vector<double> rates_of(const NetRow& row) {
  std::vector<double> values;
  for (const RunFigures& run : row.rounds) values.push_back(run.rate());
  return values;
}

double cpu_s_per_gb(const NetRow& row) {
  std::vector<double> values;
  for (const RunFigures& run : row.rounds) values.push_back(run.cpu_seconds / (static_cast<double>(run.bytes) * 1e-9));
  return median(values);
}

class BenchNet {
 public:
  BenchNet(const BenchNetFlags& flags, std::uint64_t bytes, double seconds)
      : flags_(flags), bytes_(bytes), seconds_(seconds) {}

  // On an error `why` says what failed.
  Status run(std::string& why) {
    for (const RecordSize& size : kRecordSizes) {
      if (const Status done = measure(size, why); !done) return done;
    }
    bar_.reset();  // its line goes before results come
    return {};
  }
  [[nodiscard]] const std::vector<NetRow>& rows() const noexcept { return rows_; }

 private:
  Status measure(const RecordSize& size, std::string& why) {
    auto bench = NetBench::open({.depot = flags_.depot,
                                 .shared_memory = flags_.shared_memory,
                                 .token_file = flags_.token_file,
                                 .tls_ca = flags_.tls_ca,
                                 .tls_cert = flags_.tls_cert,
                                 .tls_key = flags_.tls_key,
                                 .tls_server_name = flags_.tls_server_name,
                                 .tenant = flags_.tenant,
                                 .bytes = bytes_,
                                 .size = size});
    if (!bench) {
      why = error_text(bench.error());
      if (bench.error().code == Code::kUnavailable) why += ": is a depot running there?";
      return fail(bench.error());
    }
    const std::string text = show_size(size.bytes());
    const bool lookups = size.layers == 1;
    NetRow put{"put " + text, size.bytes(), {}, {}}, get{"get " + text, size.bytes(), {}, {}};
    NetRow match{"match of records", 0, {}, {}};
    for (unsigned round = 0; round < flags_.rounds; ++round) {
      Status done = take(put, (*bench)->put());
      if (done) done = take(get, (*bench)->get(seconds_));
      if (done && lookups) done = take(match, (*bench)->match(seconds_));
      if (!done) {
        why = fmt::format("records of {}: {}{}", text, error_text(done.error()),
                          (*bench)->why().empty() ? "" : fmt::format(" ({})", (*bench)->why()));
        if (done.error().code == Code::kBusy || done.error().code == Code::kNoSpace)
          why += ": give a smaller --size, or the depot a larger pool";
        return done;
      }
      bar_->show(++rounds_done_, std::size(kRecordSizes) * flags_.rounds);
    }
    rows_.push_back(std::move(put));
    rows_.push_back(std::move(get));
    if (lookups) rows_.push_back(std::move(match));
    return {};
  }

  static Status take(NetRow& row, const Result<NetFigures>& figures) {
    if (!figures) return fail(figures.error());
    row.rounds.push_back(figures->run);
    row.latency_s.insert(row.latency_s.end(), figures->latency_s.begin(), figures->latency_s.end());
    return {};
  }

  const BenchNetFlags& flags_;
  const std::uint64_t bytes_;
  const double seconds_;
  std::unique_ptr<ProgressBar> bar_ = std::make_unique<ProgressBar>("bench net");
  std::uint64_t rounds_done_ = 0;
  std::vector<NetRow> rows_;
};

void print_net_table(const BenchNet& bench) {
  fmt::print("{:<18} {:>10} {:>13} {:>11} {:>11}\n", "", "rate", "CPU per GB", "p50", "p99");
  for (const NetRow& row : bench.rows()) {
    const bool bytes = row.record_bytes > 0;
    fmt::print("{:<18} {:>10} {:>13} {:>8.0f} us {:>8.0f} us\n", row.name,
               bytes ? fmt::format("{:.2f} GB/s", median(rates_of(row)) * 1e-9) : "",
               bytes ? fmt::format("{:.2f} s", cpu_s_per_gb(row)) : "", percentile(row.latency_s, 0.5) * 1e6,
               percentile(row.latency_s, 0.99) * 1e6);
  }
}

void print_net_json(const BenchNet& bench, const BenchNetFlags& flags) {
  Json rows = Json::array();
  for (const NetRow& row : bench.rows()) {
    Json out = {{"name", row.name},
                {"p50_s", percentile(row.latency_s, 0.5)},
                {"p99_s", percentile(row.latency_s, 0.99)},
                {"requests", row.latency_s.size()}};
    if (row.record_bytes > 0) {
      out["record_bytes"] = row.record_bytes;
      out["bytes_per_s"] = median(rates_of(row));
      out["cpu_s_per_gb"] = cpu_s_per_gb(row);
      out["rounds"] = rates_of(row);
    }
    rows.push_back(std::move(out));
  }
  const Json all = {
      {"depot", flags.depot}, {"size", flags.size}, {"shared_memory", flags.shared_memory}, {"rows", std::move(rows)}};
  fmt::print("{}\n", all.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

int run_bench_net(const BenchNetFlags& flags) {
  const auto bytes = parse_size(flags.size);
  if (!bytes || *bytes < kNetBytesMin || *bytes > kNetBytesMax)
    return complain(fmt::format("--size {}: give a size from 8MiB to 4GiB", flags.size));
  const auto time = parse_duration(flags.time);
  if (!time || *time < kNetTimeMin || *time > kNetTimeMax)
    return complain(fmt::format("--time {}: give a time from 10ms to 10m", flags.time));
  std::string why;
  BenchNet bench(flags, *bytes, std::chrono::duration<double>(*time).count());
  if (const Status done = bench.run(why); !done) {
    const std::string line = fmt::format("{}: {}", flags.depot, why);
    return done.error().code == Code::kInvalid ? complain(line) : report_failure(line);
  }
  flags.json ? print_net_json(bench, flags) : print_net_table(bench);
  return EXIT_SUCCESS;
}

Verb add_bench_net(CLI::App& bench) {
  auto flags = std::make_shared<BenchNetFlags>();
  CLI::App* const verb = bench.add_subcommand("net", "Puts, gets and lookups of one client on a depot that runs");
  verb->add_option("depot", flags->depot, "Its address: tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH")
      ->type_name("ADDRESS")
      ->required();
  verb->add_option("--size", flags->size, "Of the records that the depot holds meanwhile [64MiB]")
      ->type_name("SIZE")
      ->take_last();
  verb->add_option("--time", flags->time, "Of gets, and of lookups, in each round [1s]")
      ->type_name("TIME")
      ->take_last();
  verb->add_option("--rounds", flags->rounds, "Turns for each size [3]")->type_name("N")->check(CLI::Range(1, 100));
  verb->add_flag("--shared-memory", flags->shared_memory, "Read the depot's memory, as engines on its host do");
  verb->add_option("--token-file", flags->token_file, "The token that the depot asks for is in it, mode 0600")
      ->type_name("FILE")
      ->take_last();
  const auto file = [verb](const char* name, std::string& place, const char* help) {
    verb->add_option(name, place, help)->type_name("FILE")->take_last();
  };
  file("--tls-ca", flags->tls_ca, "Of tls:// addresses: who has signed the depot's certificate, PEM");
  file("--tls-cert", flags->tls_cert, "This client's own certificate, where the depot wants one");
  file("--tls-key", flags->tls_key, "Its private key, mode 0600");
  verb->add_option("--tls-server-name", flags->tls_server_name, "What the depot's certificate is for [its host]")
      ->type_name("NAME")
      ->take_last();
  verb->add_option("--tenant", flags->tenant, "Whose records they are: the token's tenant [default]")
      ->type_name("NAME")
      ->take_last();
  verb->add_flag("--json", flags->json, "One JSON object, with every round");
  verb->footer(kNetFooter);
  return {verb, [flags] { return run_bench_net(*flags); }};
}

}  // namespace kvd::cmd
