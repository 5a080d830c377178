#include "cmd/sim.h"

#include <memory>

#include <CLI/CLI.hpp>

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
};

void add_common(CLI::App& verb, StudyFlags& flags) {
  verb.add_option("--data", flags.data, "Folder with calibration.json and workloads.json [data/ipdps25]")
      ->type_name("DIR");
  verb.add_option("--out", flags.out, "Write here instead of to stdout; appears when complete")->type_name("FILE");
}

}  // namespace

std::function<int()> add_sim(CLI::App& app) {
  auto flags = std::make_shared<SimFlags>();
  CLI::App* const sim = app.add_subcommand("sim", "Simulate engines and fleets; repeat the IPDPS'25 study");
  sim->require_subcommand(1);

  CLI::App* const study = sim->add_subcommand("study", "Predict the figures of the IPDPS'25 study");
  study
      ->add_option("--figure", flags->study.figures,
                   "3a 3b 3c 4a 4b 4c 4c_fixed 5 8a 8b 9 10a 10b 11; repeatable [all]")
      ->type_name("N")
      ->allow_extra_args(false);
  add_common(*study, flags->study);
  study->add_option("--html", flags->study.html, "Write the figures as a page, with the given measurements as dots")
      ->type_name("FILE");
  study->footer("Example:\n  kvdepot sim study --figure 9 --figure 10a --out study.json");

  CLI::App* const calibrate =
      sim->add_subcommand("calibrate", "Fit the step-time model to measurements, with its error on points left out");
  add_common(*calibrate, flags->calibrate);
  calibrate->add_flag("--json", flags->calibrate.json, "Constants and every point left out as JSON");
  calibrate
      ->add_option("passes", flags->calibrate.passes,
                   "CSV of measured passes: seconds, prefill_tokens, pairs, decodes, context_tokens; without it "
                   "the study's tables")
      ->type_name("CSV");
  calibrate->add_option("--test", flags->calibrate.test, "CSV of other passes to test the fit on [every second one]")
      ->type_name("CSV");
  calibrate->footer("Example:\n  kvdepot sim calibrate --data data/ipdps25");

  CLI::App* const opportunities =
      sim->add_subcommand("opportunities", "The study's open opportunities against recomputation and swapping");
  add_common(*opportunities, flags->opportunities);
  opportunities->add_option("--seeds", flags->opportunities.seeds, "Orders of the requests [30]")->type_name("N");

  CLI::App* const run = sim->add_subcommand("run", "Simulate a fleet: engines, caches, routing, a shared depot");
  run->add_option("config", flags->run.config, "TOML file; examples/sim/ has commented ones")
      ->type_name("FILE")
      ->required();
  run->add_option("--set", flags->run.set, "section.key=value, over the file; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  run->add_option("--requests", flags->run.requests, "Write a CSV line per request; appears when complete")
      ->type_name("FILE");
  run->add_flag("--no-skip", flags->run.no_skip, "Take every pass by itself; the same results, slower");
  run->add_flag("--json", flags->run.json, "The summary as JSON");
  run->footer("Example:\n  kvdepot sim run examples/sim/mooncake.toml --set fleet.policy=prefix-affinity");

  return [sim, study, calibrate, opportunities, run, flags] {
    if (!sim->parsed()) return 0;
    if (study->parsed()) return run_study(flags->study);
    if (calibrate->parsed()) return run_calibrate(flags->calibrate);
    if (opportunities->parsed()) return run_opportunities(flags->opportunities);
    if (run->parsed()) return run_sim_run(flags->run);
    return 0;
  };
}

}  // namespace kvd::cmd
