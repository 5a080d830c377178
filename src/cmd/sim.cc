#include "cmd/sim.h"

#include <memory>

#include <CLI/CLI.hpp>

#include "cmd/sim_ablate.h"
#include "cmd/sim_opportunities.h"
#include "cmd/sim_replay.h"
#include "cmd/sim_run.h"
#include "cmd/sim_study.h"

namespace kvd::cmd {

namespace {

// What was typed; shared by the parser and the function that runs the verb.
struct SimFlags {
  StudyFlags study;
  StudyFlags calibrate;
  StudyFlags opportunities;
  SimRunFlags run;
  SimSweepFlags sweep;
  SimReplayFlags replay;
};

void add_common(CLI::App& verb, StudyFlags& flags) {
  verb.add_option("--data", flags.data, "Folder with a calibration.json and a workloads.json [the study's, built in]")
      ->type_name("DIR");
  verb.add_option("--out", flags.out, "Write here instead of to stdout; appears when complete")->type_name("FILE");
}

void add_fleet(CLI::App& verb, std::string& config, std::vector<std::string>& set, std::vector<std::string>& off) {
  verb.add_option("config", config, "TOML file; examples/sim/ has commented ones")->type_name("FILE")->required();
  verb.add_option("--set", set, "section.key=value, over the file; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  verb.add_option("--ablate", off, "Switch a mechanism off, see below; repeatable")
      ->type_name("NAME")
      ->allow_extra_args(false);
}

CLI::App* add_calibrate(CLI::App& sim, StudyFlags& flags) {
  CLI::App* const calibrate =
      sim.add_subcommand("calibrate", "Fit the step-time model to measurements, with its error on points left out");
  add_common(*calibrate, flags);
  calibrate->add_flag("--json", flags.json, "Constants and every point left out as JSON");
  calibrate
      ->add_option("passes", flags.passes,
                   "CSV of measured passes: seconds, prefill_tokens, pairs, decodes, context_tokens; without it "
                   "the study's tables")
      ->type_name("CSV");
  calibrate->add_option("--test", flags.test, "CSV of other passes to test the fit on [every second one]")
      ->type_name("CSV");
  calibrate
      ->add_option("--device", flags.device,
                   "Write a [[device]] entry of that name for kvdepot plan --catalogue, made of the passes")
      ->type_name("NAME");
  calibrate->add_flag("--engine", flags.engine, "Write an [engine] section for kvdepot sim run");
  calibrate->add_option("--model", flags.model, "With --device or --engine: whose passes they are, 16 bits a parameter")
      ->type_name("NAME");
  calibrate->add_option("--memory", flags.memory, "With --device: the device's memory")->type_name("SIZE");
  calibrate->add_option("--context", flags.context, "With --engine: the engine's context [of --model]")
      ->type_name("TOKENS")
      ->check(CLI::Range(1U, 1U << 30));
  calibrate->footer(
      "Examples:\n  kvdepot sim calibrate\n"
      "  kvdepot sim calibrate passes.csv --device my-cpu --model smollm2-135m --memory 8GiB --out my-cpu.toml\n"
      "  kvdepot sim calibrate passes.csv --engine --model smollm2-135m --out fleet.toml");
  return calibrate;
}

void add_run(CLI::App& run, SimRunFlags& flags) {
  add_fleet(run, flags.config, flags.set, flags.ablate);
  run.add_option("--requests", flags.requests, "Write a CSV line per request; appears when complete")
      ->type_name("FILE");
  run.add_option("--passes", flags.passes, "Write a CSV line per pass; passes taken at once are one line")
      ->type_name("FILE");
  run.add_option("--series", flags.series, "Write a CSV line per sample over time")->type_name("FILE");
  run.add_option("--html", flags.html, "Write a page with charts over time")->type_name("FILE");
  run.add_flag("--no-skip", flags.no_skip, "Take every pass by itself; the same results, slower");
  run.add_flag("--json", flags.json, "The summary as JSON");
  run.footer(
      "Mechanisms for --ablate:\n" + ablations_help() +
      "\nExample:\n  kvdepot sim run examples/sim/mooncake.toml --set fleet.policy=prefix-affinity --html fleet.html");
}

void add_sweep(CLI::App& sweep, SimSweepFlags& flags) {
  add_fleet(sweep, flags.config, flags.set, flags.ablate);
  sweep
      .add_option("--vary", flags.vary,
                  "section.key=V,V,... or ablate=NAME,... (none: nothing off; each: one mechanism after the other); "
                  "repeatable: all combinations")
      ->type_name("KEY=V,V")
      ->allow_extra_args(false);
  sweep.add_option("--seeds", flags.seeds, "Seeds 1 to N, the same for all arms [10]")->type_name("N");
  sweep.add_option("--jobs", flags.jobs, "Threads; the output does not depend on it [one a core]")->type_name("N");
  sweep.add_option("--out", flags.out, "Write a CSV line per run; appears when complete")->type_name("FILE");
  sweep.add_option("--html", flags.html, "Write a page with charts over the first axis of numbers")->type_name("FILE");
  sweep.add_flag("--json", flags.json, "All runs as JSON");
  sweep.footer("Mechanisms for --ablate and --vary ablate=...:\n" + ablations_help() +
               "\nExamples:\n  kvdepot sim sweep examples/sim/depot.toml --vary depot.bandwidth=1GB/s,5GB/s,10GB/s "
               "--vary workload.speed=1,1.5\n  kvdepot sim sweep examples/sim/tiers.toml --vary ablate=each");
}

void add_replay(CLI::App& replay, SimReplayFlags& flags) {
  replay.add_option("trace", flags.trace, "Mooncake JSONL with hash_ids")->type_name("FILE")->required();
  replay.add_option("--capacity", flags.capacities, "Percent of the distinct blocks [2,5,10,20,40]")
      ->type_name("P,P")
      ->delimiter(',');
  replay.add_option("--segment-blocks", flags.segments, "Blocks of a segment [4,8,32,128]")
      ->type_name("N,N")
      ->delimiter(',')
      ->check(CLI::Range(1U, 1U << 16));
  replay.add_option("--interleave", flags.interleave, "Requests written at once, in the lines that say so [64]")
      ->type_name("N")
      ->check(CLI::Range(1U, 1U << 16));
  replay.add_flag("--two-open", flags.two_open,
                  "Also with two open segments: the first blocks of a prompt apart from the rest, what was there "
                  "before, and, which nobody knows "
                  "beforehand, what is used again apart from the rest");
  replay.add_option("--head-blocks", flags.head_blocks, "First blocks of a prompt that --two-open keeps apart [4]")
      ->check(CLI::Range(1, 1'000'000));
  replay.add_option("--block-tokens", flags.block_tokens, "Tokens of one of the trace's blocks [512]")
      ->type_name("N")
      ->check(CLI::Range(1U, 1U << 20));
  replay.add_option("--out", flags.out, "Write here instead of to stdout; appears when complete")->type_name("FILE");
  replay.add_flag("--json", flags.json, "As JSON");
  replay.footer("Example:\n  kvdepot sim replay trace.jsonl --capacity 10,20 --segment-blocks 4,16");
}

}  // namespace

std::function<int()> add_sim(CLI::App& app) {
  auto flags = std::make_shared<SimFlags>();
  CLI::App* const sim = app.add_subcommand("sim", "Simulate engines and fleets; repeat the IPDPS'25 study");
  sim->require_subcommand(1);

  CLI::App* const study = sim->add_subcommand("study", "Predict the figures of the IPDPS'25 study");
  study
      ->add_option("--figure", flags->study.figures,
                   "3a 3b 3c 4a 4b 4c 4c_fixed 5 8a 8b 9 10a 10b 11, or evictions, makespans, accesses, prompt_passes; "
                   "repeatable [all figures]")
      ->type_name("N")
      ->allow_extra_args(false);
  add_common(*study, flags->study);
  study->add_option("--html", flags->study.html, "Write the figures as a page, with the given measurements as dots")
      ->type_name("FILE");
  study->footer("Example:\n  kvdepot sim study --figure 9 --figure 10a --out study.json");

  CLI::App* const calibrate = add_calibrate(*sim, flags->calibrate);
  CLI::App* const opportunities =
      sim->add_subcommand("opportunities", "The study's open opportunities against recomputation and swapping");
  add_common(*opportunities, flags->opportunities);
  opportunities->add_option("--seeds", flags->opportunities.seeds, "Orders of the requests [30]")->type_name("N");
  opportunities->add_option("--html", flags->opportunities.html, "Write a page with the figures and the table")
      ->type_name("FILE");
  opportunities->add_option("--svg", flags->opportunities.svg, "Write the figures alone")->type_name("FILE");
  opportunities->footer("Example:\n  kvdepot sim opportunities --out table.md --svg figures.svg");

  CLI::App* const run = sim->add_subcommand("run", "Simulate a fleet: engines, caches, tiers, routing, a shared depot");
  add_run(*run, flags->run);
  CLI::App* const sweep =
      sim->add_subcommand("sweep", "Simulate a fleet over values and seeds on all cores, with paired intervals");
  add_sweep(*sweep, flags->sweep);
  CLI::App* const replay =
      sim->add_subcommand("replay", "A trace's hit rate by capacity, segment size and eviction policy");
  add_replay(*replay, flags->replay);
  // Last: verbs that are added later would inherit it.
  sim->footer(
      "Examples:\n  kvdepot sim study --figure 9\n  kvdepot sim run examples/sim/depot.toml --html fleet.html\n"
      "  kvdepot sim sweep examples/sim/tiers.toml --vary ablate=each");

  return [sim, study, calibrate, opportunities, run, sweep, replay, flags] {
    if (!sim->parsed()) return 0;
    if (study->parsed()) return run_study(flags->study);
    if (calibrate->parsed()) return run_calibrate(flags->calibrate);
    if (opportunities->parsed()) return run_opportunities(flags->opportunities);
    if (run->parsed()) return run_sim_run(flags->run);
    if (sweep->parsed()) return run_sim_sweep(flags->sweep);
    if (replay->parsed()) return run_sim_replay(flags->replay);
    return 0;
  };
}

}  // namespace kvd::cmd
