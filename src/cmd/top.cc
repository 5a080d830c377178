#include "cmd/top.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/error_text.h"
#include "base/sizes.h"
#include "cmd/complaint.h"
#include "cmd/top_report.h"
#include "http/client.h"

namespace kvd::cmd {
namespace {

constexpr Duration kAnswerLimit = std::chrono::seconds(5);
constexpr Duration kIntervalMin = Millis(100);
constexpr Duration kIntervalMax = std::chrono::hours(24);
constexpr const char* kClear = "\x1b[H\x1b[J";

constexpr const char* kTopFooter =
    "Shares and rates are of the time between two readings, what \"since the start\" is said of excepted; latencies "
    "are\n"
    "the bounds of a histogram's buckets, powers of two. Ctrl-C ends it.\n\n"
    "Examples:\n"
    "  kvdepot top\n"
    "  kvdepot top 127.0.0.1:9071 --interval 500ms\n"
    "  kvdepot top --interval 1m --json >> depot.jsonl\n"
    "  kvdepot top --count 1 --json | jq .hit_share";

Result<MetricsSample> read_sample(const std::string& address) {
  const auto answer = http::get(address, "/metrics", kAnswerLimit);
  if (!answer) return fail(answer.error());
  if (answer->status != 200) return fail(Code::kInvalid, "what answers there is no depot");
  auto sample = MetricsSample::parse(answer->body);
  if (!sample) return sample;
  const std::string version = sample->label("kvdepot_build_info", "version");
  const auto printable = [](char c) { return c > ' ' && c <= '~'; };
  if (version.empty() || !std::ranges::all_of(version, printable))
    return fail(Code::kInvalid, "what answers there is no depot");
  return sample;
}

// Views until there were enough. A depot that goes away is waited for.
void watch(const TopFlags& flags, MetricsSample before, Duration interval) {
  const bool terminal = ::isatty(STDOUT_FILENO) == 1 && !flags.json;
  bool away = false;
  double off_s = 0;
  using Steady = std::chrono::steady_clock;
  auto next = Steady::now(), read = next;
  for (std::uint64_t shown = 0; flags.count == 0 || shown < flags.count;) {
    next = std::max(next + interval, Steady::now());  // what was missed is not made up for
    std::this_thread::sleep_until(next);
    const double apart_s = std::chrono::duration<double>(Steady::now() - read).count();
    auto now = read_sample(flags.address);
    if (!now) {
      if (!away) fmt::print(stderr, "kvdepot: {}: {}; trying again\n", flags.address, error_text(now.error()));
      away = true;
      continue;
    }
    away = false;
    read = Steady::now();
    const Interval between(before, *now, apart_s);
    off_s = flash_off_s(between, off_s);
    if (flags.json) {
      fmt::print("{}\n", top_json(between, off_s));
    } else {
      fmt::print("{}{}{}", terminal ? kClear : "", top_text(between, flags.address, off_s), terminal ? "" : "\n");
    }
    std::fflush(stdout);
    before = std::move(*now);
    ++shown;
  }
}

}  // namespace

int run_top(const TopFlags& flags) {
  const auto interval = parse_duration(flags.interval);
  if (!interval || *interval < kIntervalMin || *interval > kIntervalMax)
    return complain(fmt::format("--interval {}: give a time from 100ms to 24h, as in 2s", flags.interval));
  auto first = read_sample(flags.address);
  if (!first && first.error().code == Code::kInvalid)
    return complain(fmt::format("{}: {}: see kvdepot top --help", flags.address, error_text(first.error())));
  if (!first)
    return report_failure(fmt::format("{}: {}: is a depot running, and is this where its metrics are (serve --http)?",
                                      flags.address, error_text(first.error())));
  watch(flags, std::move(*first), *interval);
  return EXIT_SUCCESS;
}

Verb add_top(CLI::App& app) {
  auto flags = std::make_shared<TopFlags>();
  CLI::App* const verb = app.add_subcommand("top", "A live view of a depot that runs");
  verb->add_option("address", flags->address, "Where its metrics are: --http of serve [127.0.0.1:7071]")
      ->type_name("HOST:PORT");
  verb->add_option("--interval", flags->interval, "Time between two readings, from 100ms [2s]")->type_name("TIME");
  verb->add_option("--count", flags->count, "End after so many views; 0 = never [0]")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
  verb->add_flag("--json", flags->json, "One JSON object in a line for each view");
  verb->footer(kTopFooter);
  return {verb, [flags] { return run_top(*flags); }};
}

}  // namespace kvd::cmd
