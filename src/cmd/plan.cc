#include "cmd/plan.h"

#include <cstdio>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cmd/complaint.h"
#include "cmd/plan_catalogue.h"
#include "cmd/plan_report.h"
#include "cmd/plan_talk.h"
#include "cmd/plan_talk_runs.h"
#include "cmd/progress_bar.h"
#include "cmd/run_jobs.h"
#include "cmd/text_file.h"

namespace kvd::cmd {
namespace {

constexpr const char* kPlanFooter =
    "Classes: S0 engine memory only, S1a + local DRAM, S1b + local SSD, S2a shared DRAM, S2b shared file system,\n"
    "S3 the depot. Times and bandwidths take their unit: 40ms, 20GB/s. Prices are dollars: per GPU and hour, per TB "
    "and\n"
    "month. docs/plan.md explains every column.\n\n"
    "Examples:\n"
    "  kvdepot plan --model llama-3-70b --gpu h100:2 --prompt 2200 --output 170 --reuse 0.9\n"
    "  kvdepot plan --model qwen3-32b --context 131072 --gpu h100:2 --replicas 8 --trace conversation_trace.jsonl\n"
    "  kvdepot plan --model ./config.json --gpu h200 --prompt 9600 --output 100 --reuse 0.85 --io 20GB/s --html "
    "plan.html\n"
    "  kvdepot plan talk --html talk.html\n"
    "  kvdepot plan catalogue";

void add_flags(CLI::App& plan, PlanFlags& flags) {
  const auto add = [&](const char* name, std::string& into, const char* type, const char* help) {
    plan.add_option(std::string("--") + name, into, help)->type_name(type)->take_last();
  };
  add("model", flags.model, "NAME", "Model of the catalogue, or a Hugging Face config.json");
  add("gpu", flags.gpu, "NAME[:N]", "GPUs of one replica, tensor parallel");
  add("prompt", flags.prompt, "TOKENS", "Mean prompt");
  add("output", flags.output, "TOKENS", "Mean answer");
  add("reuse", flags.reuse, "SHARE", "Share of a prompt's tokens seen before, 0 to 1");
  add("trace", flags.trace, "FILE", "Mooncake JSONL or CSV: prompt, output, rate and reuse come from it");
  add("block-tokens", flags.block_tokens, "N", "Tokens of one of the trace's blocks [512]");
  add("context", flags.context, "TOKENS", "Context of the model, where it was extended");
  add("precision", flags.precision, "TYPE", "bf16, fp16, fp8, int8 or fp32 [fp8 where the GPU has it]");
  add("kv-precision", flags.kv_precision, "TYPE", "The same for KV [as --precision]");
  add("attention", flags.attention, "MODE", "causal, or full as the talk counts [causal]");
  plan.add_flag("--growing", flags.growing, "Decode also reads the KV of the answer so far");
  add("io", flags.io, "BYTES/s", "What one replica reads from the depot [20GB/s per GPU]");
  add("sla-ttft", flags.sla_ttft, "TIME", "Time to the first token at most [400ms]");
  add("sla-tpot", flags.sla_tpot, "TIME", "Time per further token at most [40ms]");
  add("tpot1", flags.tpot_one, "TIME", "Decode step of one request alone [from the catalogue]");
  add("efficiency", flags.efficiency, "SHARE", "Achieved of the peak FLOP/s [from the catalogue]");
  add("rate", flags.rate, "N", "Requests per second of all replicas [what S3 serves within the SLA]");
  add("replicas", flags.replicas, "N", "Replicas of the model [1]");
  add("routing", flags.routing, "HOW", "affinity: a request goes where its prefix is; any: anywhere [affinity]");
  add("idle", flags.idle, "TIME", "Mean time until a prefix is used again, without a trace [120s]");
  add("price-gpu", flags.price_gpu, "$", "One GPU for an hour");
  add("price-dram", flags.price_dram, "$", "A TB of DRAM for a month");
  add("price-flash", flags.price_flash, "$", "A TB of NVMe for a month");
  add("price-fs", flags.price_fs, "$", "A TB of the shared file system for a month");
  plan.add_option("--price", flags.prices, "A TB of any storage of the catalogue for a month; repeatable")
      ->type_name("NAME=$")
      ->allow_extra_args(false);
}

void add_outputs(CLI::App& app, PlanFlags& flags) {
  app.add_option("--catalogue", flags.catalogue, "TOML file with entries of your own; repeatable")
      ->type_name("FILE")
      ->allow_extra_args(false);
  app.add_flag("--json", flags.json, "Print one JSON object, SI units");
  app.add_option("--html", flags.html, "Write a page with figures that opens without a network")
      ->type_name("FILE")
      ->take_last();
}

}  // namespace

PlanVerb::PlanVerb(CLI::App& program) {
  plan_ = program.add_subcommand("plan", "What a depot would bring: closed forms for your model, GPUs and traffic");
  add_flags(*plan_, flags_);
  add_outputs(*plan_, flags_);
  plan_->add_flag("--csv", flags_.csv, "Print a line for each class");
  plan_->footer(kPlanFooter);
  talk_ = plan_->add_subcommand("talk", "The SDC'25 talk's example and figures, with its settings");
  talk_->add_flag("--json", flags_.json, "Print the figures' points as one JSON object");
  talk_->add_option("--seeds", seeds_, "Runs of each simulated point, the same seeds without and with the depot [10]")
      ->type_name("N")
      ->check(CLI::Range(2U, 1000U));
  talk_->add_option("--html", flags_.html, "Write the figures as a page")->type_name("FILE")->take_last();
  talk_->footer("Example:\n  kvdepot plan talk --html talk.html");
  list_ = plan_->add_subcommand("catalogue",
                                "All devices, models, links, storage and classes that are known, with their sources");
  list_->add_option("--catalogue", flags_.catalogue, "TOML file with entries of your own; repeatable")
      ->type_name("FILE")
      ->allow_extra_args(false);
  list_->add_flag("--json", flags_.json, "Print all of it as one JSON object, SI units");
  list_->footer("Example:\n  kvdepot plan catalogue --catalogue mine.toml");
}

bool PlanVerb::chosen() const { return plan_->parsed(); }

OrComplaint<std::string> PlanVerb::plan() const {
  if (flags_.json && flags_.csv) return std::unexpected("--json and --csv: choose one");
  const auto made = make_plan(flags_);
  if (!made) return std::unexpected(made.error());
  const auto answer = model::answer(made->question, made->catalogue);
  if (!answer) return std::unexpected(answer.error());
  if (!flags_.html.empty()) {
    const std::string heading = fmt::format("kvdepot plan: {} on {} x {}", made->question.model->name,
                                            made->question.gpus, made->question.device->name);
    const std::string fault =
        write_text(flags_.html, page(heading, plan_table(*made, *answer), plan_charts(*made, *answer)));
    if (!fault.empty()) return std::unexpected(fault);
  }
  if (flags_.json) return plan_json(*made, *answer);
  return flags_.csv ? plan_csv(*answer) : plan_table(*made, *answer);
}

OrComplaint<std::string> PlanVerb::talk() const {
  const TalkRuns runs = [&] {
    ProgressBar bar("simulating");
    return run_talk(talk_setups(), seeds_, threads_of_machine(),
                    [&](std::size_t done, std::size_t all) { bar.show(done, all); });
  }();
  const auto figures = talk_figures(runs);
  if (!flags_.html.empty()) {
    std::vector<Chart> charts;
    for (const TalkFigure& figure : figures) charts.push_back(figure.chart);
    const std::string fault = write_text(flags_.html, page("kvdepot plan talk", talk_table(runs), charts));
    if (!fault.empty()) return std::unexpected(fault);
  }
  return flags_.json ? talk_json(figures, runs) : talk_table(runs);
}

OrComplaint<std::string> PlanVerb::list() const {
  const auto catalogue = read_catalogue(flags_.catalogue);
  if (!catalogue) return std::unexpected(catalogue.error());
  return flags_.json ? catalogue_json(*catalogue) : catalogue_text(*catalogue);
}

int PlanVerb::run() const {
  const auto text = talk_->parsed() ? talk() : list_->parsed() ? list() : plan();
  if (!text) return complain(text.error());
  fmt::print("{}", *text);
  return 0;
}

}  // namespace kvd::cmd
