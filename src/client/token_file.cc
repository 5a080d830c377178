#include "client/token_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "io/fd.h"
#include "wire/message.h"

namespace kvd::client {
namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n";

}  // namespace

Result<std::string> read_token_file(const std::string& path) {
  const io::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file.ok()) return fail(Code::kIo, "open the token's file", errno);
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) return fail(Code::kIo, "look at the token's file", errno);
  if (!S_ISREG(status.st_mode)) return fail(Code::kInvalid, "the token's file is not a plain file");
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return fail(Code::kInvalid, "others than its owner can read the token's file: chmod 600");
  }
  if (status.st_uid != ::geteuid() && ::geteuid() != 0) {
    return fail(Code::kInvalid, "the token's file belongs to another user");
  }
  std::array<char, 4096> bytes{};
  const ssize_t n = ::read(file.get(), bytes.data(), bytes.size());
  if (n < 0) return fail(Code::kIo, "read the token's file", errno);
  std::string_view text(bytes.data(), static_cast<std::size_t>(n));
  text.remove_prefix(std::min(text.find_first_not_of(kWhiteSpace), text.size()));
  text = text.substr(0, text.find_last_not_of(kWhiteSpace) + 1);
  const bool printable = std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
  if (text.empty() || text.size() > wire::kTokenBytesMax || !printable) {
    return fail(Code::kInvalid, "the token's file does not hold one token");
  }
  return std::string(text);
}

}  // namespace kvd::client
