#include "cmd/credentials_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/error_text.h"
#include "cmd/complaint.h"
#include "cmd/text_file.h"
#include "io/fd.h"

namespace kvd::cmd {
namespace {

constexpr const char* kTokenFooter =
    "The token goes into a new file that only you may read, for clients: --token-file, or token_file in their "
    "options.\n"
    "The line on stdout holds a digest of it and is no secret; append it to the depot's credentials file and send the\n"
    "depot a SIGHUP. Take a line out of that file to revoke its token.\n\n"
    "Examples:\n"
    "  kvdepot token --tenant search --out engine.token >> /etc/kvdepot/credentials\n"
    "  kvdepot token --tenant search --rights read --expires 2027-06-30 --name reader-7 --out reader.token";

// Puts the token into a file that was not there; empty when done.
std::string write_token(const std::string& path, const std::string& token) {
  const io::UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file.ok()) return fmt::format("--out {}: {}", path, error_text(errno));
  const std::string line = token + "\n";
  if (::write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()) || ::fsync(file.get()) != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    return fmt::format("--out {}: {}", path, error_text(error));
  }
  return {};
}

}  // namespace

std::expected<std::shared_ptr<const auth::Authority>, std::string> load_authority(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) {
    return std::unexpected(fmt::format("{} cannot be read: {}", path, error_text(errno)));
  }
  if (!S_ISREG(status.st_mode)) return std::unexpected(path + " is not a plain file");
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return std::unexpected(path + ": others than its owner can write to it: chmod 600");
  }
  if (status.st_uid != ::geteuid() && status.st_uid != 0) return std::unexpected(path + " belongs to another user");
  const auto text = read_text(path);
  if (!text) return std::unexpected(text.error());
  const auto credentials = auth::parse_credentials(*text, path);
  if (!credentials) return std::unexpected(credentials.error().str());
  return std::make_shared<const auth::Authority>(*credentials);
}

int run_token(const TokenFlags& flags) {
  if (!auth::is_name(flags.tenant, auth::kTenantNameMax))
    return complain(fmt::format("--tenant '{}': give 1 to 64 letters, digits and ._-@:/+", flags.tenant));
  const std::string name = flags.name.empty() ? std::filesystem::path(flags.out).filename().string() : flags.name;
  if (!auth::is_name(name, auth::kNameMax))
    return complain(fmt::format("--name '{}': give 1 to 255 letters, digits and ._-@:/+", name));
  if (const auto rights = auth::parse_rights(flags.rights); !rights)
    return complain(fmt::format("--rights '{}' is {}", flags.rights, rights.error().what));
  if (!flags.expires.empty() && !auth::parse_date(flags.expires))
    return complain(fmt::format("--expires '{}' is not a date as 2027-06-30", flags.expires));
  const auto token = auth::make_token();
  if (!token) return report_failure(error_text(token.error()));
  if (const std::string problem = write_token(flags.out, *token); !problem.empty()) return complain(problem);
  fmt::print("{}\n", auth::show_token_line(name, flags.tenant, flags.rights, auth::digest_token(as_bytes(*token)),
                                           flags.expires));
  return EXIT_SUCCESS;
}

Verb add_token(CLI::App& app) {
  auto flags = std::make_shared<TokenFlags>();
  CLI::App* const verb = app.add_subcommand("token", "Make a token for clients of a depot with credentials");
  verb->add_option("--out", flags->out, "The new file that the token is written to, mode 0600")
      ->type_name("FILE")
      ->required();
  verb->add_option("--tenant", flags->tenant, "Whose token it is")->type_name("NAME")->required();
  verb->add_option("--rights", flags->rights, "Some of read,write,admin,pool [read,write]")->type_name("LIST");
  verb->add_option("--name", flags->name, "What the depot's log calls it [the name of the file]")->type_name("NAME");
  verb->add_option("--expires", flags->expires, "The day from which it is no longer good, UTC [never]")
      ->type_name("YYYY-MM-DD");
  verb->footer(kTokenFooter);
  return {verb, [flags] { return run_token(*flags); }};
}

}  // namespace kvd::cmd
