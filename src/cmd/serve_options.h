// What `kvdepot serve` was told, by flags and by its configuration file. A flag wins over the file.
#pragma once

#include <expected>
#include <map>
#include <string>
#include <vector>

#include "base/log.h"
#include "node/options.h"

namespace kvd::cmd {

// A value or one line for the user: what is wrong and what to do. For the command line only; rooms use Result.
template <class T>
using OrComplaint = std::expected<T, std::string>;

// Settings as they were written, by the flag's name without dashes: {"pool": {"8GiB"}, "listen": {..., ...}}.
using Settings = std::map<std::string, std::vector<std::string>>;

struct ServeOptions {
  node::NodeOptions node;
  std::string credentials;  // file; empty = everybody may come in
  tls::ServerFiles tls;     // of tls:// addresses; empty = there are none
  Level log_level = Level::kInfo;
};

// Reads a TOML file of flat keys: strings, numbers and arrays of them. Complains about syntax with its line, about
// other kinds of values, and about keys that are no flags.
OrComplaint<Settings> read_config(const std::string& path);

// Checks and converts. `settings` may lack anything: defaults are filled in. A complaint names the flag.
OrComplaint<ServeOptions> make_options(const Settings& settings);

}  // namespace kvd::cmd
