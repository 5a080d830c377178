// A progress bar on stderr while something takes long; nothing where stderr is no terminal.
//
// One owner, one thread. The line is erased when the bar goes, so that results stand alone.
#pragma once

#include <cstdint>
#include <string>

namespace kvd::cmd {

class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `done` of `all`; draws when a percent was gained. Blocks on the terminal only.
  void show(std::uint64_t done, std::uint64_t all);

  // The line for a share in percent: "verify [####......]  40 %".
  static std::string line(const std::string& label, unsigned percent);

 private:
  std::string label_;
  bool terminal_;
  unsigned shown_ = 101;  // percent; over 100: nothing yet
};

}  // namespace kvd::cmd
