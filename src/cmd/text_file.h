// Whole files for verbs that print reports: read at once, and written so that names show up only when all is there.
#pragma once

#include <expected>
#include <string>
#include <vector>

namespace kvd::cmd {

// The file's bytes, or one line that says why not, and how to unpack it where only its .xz is there.
std::expected<std::string, std::string> read_text(const std::string& path);

// Files that belong together: written beside their paths, and renamed when the last of them is written. What was not
// renamed is removed at the end. Blocks; one owner.
class TextFiles {
 public:
  TextFiles() = default;
  ~TextFiles();
  TextFiles(const TextFiles&) = delete;
  TextFiles& operator=(const TextFiles&) = delete;

  // Writes a file beside `path` and flushes it; nothing where the path is empty. Empty when done, else one line that
  // says why not: it cannot be written, or is named twice, be it in another spelling.
  [[nodiscard]] std::string add(const std::string& path, const std::string& text);
  // Gives all files their names. As above; those before the one that cannot be renamed have theirs.
  [[nodiscard]] std::string commit();

 private:
  std::vector<std::string> paths_;  // written and not renamed
};

// One file by itself.
std::string write_text(const std::string& path, const std::string& text);

}  // namespace kvd::cmd
