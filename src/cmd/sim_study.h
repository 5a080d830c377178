// `kvdepot sim study` and `calibrate`: the figures of the IPDPS'25 study from its calibration tables.
#pragma once

#include <expected>
#include <string>
#include <vector>

#include "model/step_fit.h"
#include "sim/study.h"

namespace kvd::cmd {

struct StudyFlags {
  std::vector<std::string> figures;  // empty = all
  std::string data;                  // a folder; empty = the files that are compiled in
  std::string out;                   // a file; empty = stdout
  std::string html;                  // a page with the figures; empty = none
  std::string svg;                   // the figures alone, of opportunities; empty = none
  bool json = false;
  std::string passes;    // CSV of measured passes, for calibrate; empty = the study's tables
  std::string test;      // CSV of passes that the fit must not see; empty = every second one of `passes`
  std::string device;    // name of a catalogue entry to make of the passes; empty = none
  bool engine = false;   // print an [engine] section for sim run, made of the passes
  std::string model;     // whose passes they are, for entry or section: a name of the catalogue
  std::string memory;    // of the device, for the entry: "8GiB"
  unsigned context = 0;  // tokens that the engine takes, for the section; 0 = the model's
  unsigned seeds = 30;   // of the comparison of opportunities
};

// calibration.json and workloads.json.
struct StudyFiles {
  model::StudyTables tables;
  sim::StudyInputs inputs;
  std::string inputs_name;  // of the file they are from
};
// Reads both from the folder `data`, or those that are compiled in where it is empty; or says in one line what is
// wrong.
std::expected<StudyFiles, std::string> load_study(const std::string& data);

// Both print to stdout or write `out`, complain on stderr, and return the exit status.
int run_study(const StudyFlags& flags);
int run_calibrate(const StudyFlags& flags);

}  // namespace kvd::cmd
