#include "cmd/text_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include <fmt/format.h>

#include "base/error_text.h"

namespace kvd::cmd {

std::expected<std::string, std::string> read_text(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    const int error = errno;
    if (error == 0) return std::unexpected(path + " is empty");  // a stream that copies nothing says that it failed
    const bool packed = error == ENOENT && access((path + ".xz").c_str(), F_OK) == 0;
    return std::unexpected(fmt::format("{} cannot be read: {}{}", path, error_text(error),
                                       packed ? fmt::format("; unpack it with: xz -dk {}.xz", path) : ""));
  }
  return std::move(text).str();
}

namespace {

std::string part_of(const std::string& path) { return path + ".part"; }

// One spelling of a path, however it was typed and whatever links lead to its folder.
std::filesystem::path plain(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path typed = std::filesystem::absolute(path, ignored);
  const std::filesystem::path folder = std::filesystem::weakly_canonical(typed.parent_path(), ignored);
  return (ignored ? typed.parent_path() : folder) / typed.filename();
}

std::string cannot(const std::string& path, int error) {
  return fmt::format("{} cannot be written: {}", path, error_text(error));
}

}  // namespace

TextFiles::~TextFiles() {
  for (const std::string& path : paths_) std::remove(part_of(path).c_str());
}

std::string TextFiles::add(const std::string& path, const std::string& text) {
  if (path.empty()) return {};
  for (const std::string& other : paths_) {
    if (plain(other) == plain(path)) return path + " is named for two files";
    if (plain(part_of(other)) == plain(path) || plain(other) == plain(part_of(path))) {
      return fmt::format("{} and {} cannot be written together: one is the name of the other while it is written",
                         other, path);
    }
  }
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return cannot(path, EISDIR);
  std::FILE* const file = std::fopen(part_of(path).c_str(), "w");
  if (file == nullptr) return cannot(path, errno);
  paths_.push_back(path);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0 &&
                       fsync(fileno(file)) == 0;
  const int error = errno;
  if (std::fclose(file) != 0) return cannot(path, errno);
  return written ? std::string() : cannot(path, error);
}

std::string TextFiles::commit() {
  while (!paths_.empty()) {
    const std::string path = paths_.front();
    if (std::rename(part_of(path).c_str(), path.c_str()) != 0) return cannot(path, errno);
    paths_.erase(paths_.begin());
  }
  return {};
}

std::string write_text(const std::string& path, const std::string& text) {
  TextFiles file;
  std::string error = file.add(path, text);
  return error.empty() ? file.commit() : error;
}

}  // namespace kvd::cmd
