// The credentials file of `kvdepot serve --credentials`, read at the start and at SIGHUP; and the verb `kvdepot token`,
// which makes a token for it. Blocks for small files.
#pragma once

#include <expected>
#include <memory>
#include <string>

#include "auth/authority.h"
#include "cmd/verb.h"

namespace kvd::cmd {

// What the file says, or one line why not: it cannot be read, others could write to it, somebody else owns it, or what
// is wrong in it.
std::expected<std::shared_ptr<const auth::Authority>, std::string> load_authority(const std::string& path);

struct TokenFlags {
  std::string out;
  std::string tenant;
  std::string rights = "read,write";
  std::string name;
  std::string expires;
};

// Writes a new token to a new file of mode 0600 and prints the line that makes it known to a depot. 0; 2 after one line
// on stderr.
int run_token(const TokenFlags& flags);

// Adds `token` to the program.
Verb add_token(CLI::App& app);

}  // namespace kvd::cmd
