#include "base/input.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>

namespace kvd {
namespace {

// Lower-case letters and digits only.
std::string letters(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      out.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    }
  }
  return out;
}

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string InputFault::str() const {
  return line == 0 ? file + ": " + text : file + ":" + std::to_string(line) + ": " + text;
}

std::vector<std::string> nearest_names(std::string_view given, std::span<const std::string> known,
                                       std::size_t count_max) {
  constexpr std::size_t kLettersMax = 200;  // of a name; longer ones are nobody's typing slip
  const std::string wanted = letters(given.substr(0, kLettersMax));
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const std::string& name : known) {
    const std::string other = letters(name.substr(0, kLettersMax));
    const bool within = wanted.size() >= 2 && other.size() >= 2 &&
                        (other.find(wanted) != std::string::npos || wanted.find(other) != std::string::npos);
    const std::size_t distance = edit_distance(wanted, other);
    if (within || distance * 3 <= std::max(wanted.size(), other.size())) near.emplace_back(within ? 0 : distance, name);
  }
  std::ranges::stable_sort(near, {}, &std::pair<std::size_t, std::string>::first);
  near.resize(std::min(near.size(), count_max));
  std::vector<std::string> names;
  names.reserve(near.size());
  for (auto& [distance, name] : near) names.push_back(std::move(name));
  return names;
}

}  // namespace kvd
