#include "crash/command_line.h"

#include <CLI/CLI.hpp>

namespace kvd::crash {

struct CommandLine::App {
  explicit App(const std::string& what) : cli(what) {}
  CLI::App cli;
};

CommandLine::CommandLine(const std::string& what) : app_(std::make_unique<App>(what)) {}
CommandLine::~CommandLine() = default;

void CommandLine::add(const std::string& name, std::uint64_t& value, const std::string& help) {
  app_->cli.add_option(name, value, help);
}
void CommandLine::add(const std::string& name, unsigned& value, const std::string& help) {
  app_->cli.add_option(name, value, help);
}
void CommandLine::add(const std::string& name, double& value, const std::string& help) {
  app_->cli.add_option(name, value, help);
}
void CommandLine::add(const std::string& name, std::string& value, const std::string& help) {
  app_->cli.add_option(name, value, help);
}

std::optional<int> CommandLine::parse(int argc, char** argv) {
  try {
    app_->cli.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    return app_->cli.exit(error);
  }
}

}  // namespace kvd::crash
