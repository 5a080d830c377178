// The options of the crash programs. One source includes CLI11 for all of them: it takes ten seconds to compile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace kvd::crash {

class CommandLine {
 public:
  explicit CommandLine(const std::string& what);
  ~CommandLine();

  // An option that sets `value`, which must live until parse() has returned.
  void add(const std::string& name, std::uint64_t& value, const std::string& help);
  void add(const std::string& name, unsigned& value, const std::string& help);
  void add(const std::string& name, double& value, const std::string& help);
  void add(const std::string& name, std::string& value, const std::string& help);

  // Reads the words; the exit status where the program ends now (--help, or what it does not know).
  std::optional<int> parse(int argc, char** argv);

 private:
  struct App;
  std::unique_ptr<App> app_;
};

}  // namespace kvd::crash
