#include "cmd/text_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "base/error_text.h"

namespace kvd::cmd {

std::expected<std::string, std::string> read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return std::unexpected(fmt::format("{} cannot be read: {}", path, error_text(errno)));
  }
  return std::move(text).str();
}

std::string write_text(const std::string& path, const std::string& text) {
  const std::string part = path + ".part";
  const auto complain = [&] {
    const std::string why = error_text(errno);
    std::remove(part.c_str());
    return fmt::format("{} cannot be written: {}", path, why);
  };
  std::FILE* const file = std::fopen(part.c_str(), "w");
  if (file == nullptr) return complain();
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0 &&
                       fsync(fileno(file)) == 0;
  if (std::fclose(file) != 0 || !written || std::rename(part.c_str(), path.c_str()) != 0) return complain();
  return {};
}

}  // namespace kvd::cmd
