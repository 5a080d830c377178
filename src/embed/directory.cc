#include "embed/directory.h"

#include "base/sizes.h"

namespace kvd::embed {
namespace {

constexpr std::string_view kScheme = "file://";
constexpr std::size_t kSocketPathMax = 107;  // sockaddr_un

// Sets one parameter, once.
Status set_parameter(std::string_view name, std::string_view value, Directory& directory, bool& pool_given) {
  const auto bytes = parse_size(value);
  if (!bytes) return fail(bytes.error());
  if (name == "pool" && !pool_given) {
    pool_given = true;
    directory.pool_bytes = *bytes;
  } else if (name == "flash" && !directory.flash_given) {
    directory.flash_given = true;
    directory.flash_bytes = *bytes;
  } else {
    return fail(Code::kInvalid, "a file:// address takes pool=SIZE and flash=SIZE, each once");
  }
  return {};
}

}  // namespace

Result<Directory> parse_directory(std::string_view address) {
  if (!address.starts_with(kScheme)) return fail(Code::kInvalid, "an embedded depot's address starts with file://");
  address.remove_prefix(kScheme.size());
  const std::size_t question = address.find('?');
  std::string_view parameters = question == std::string_view::npos ? "" : address.substr(question + 1);
  Directory directory;
  directory.path = address.substr(0, question);
  while (directory.path.size() > 1 && directory.path.ends_with('/')) directory.path.pop_back();
  if (!directory.path.starts_with('/') || directory.path.size() == 1) {
    return fail(Code::kInvalid, "the directory must be absolute: write file:///DIR?pool=SIZE&flash=SIZE");
  }
  if (directory.socket_path().size() > kSocketPathMax) {
    return fail(Code::kInvalid, "the directory's path is too long: its socket's may have 107 bytes");
  }
  bool pool_given = false;
  while (!parameters.empty()) {
    const std::size_t end = parameters.find('&');
    const std::string_view parameter = parameters.substr(0, end);
    parameters = end == std::string_view::npos ? "" : parameters.substr(end + 1);
    const std::size_t equals = parameter.find('=');
    const std::string_view value = equals == std::string_view::npos ? "" : parameter.substr(equals + 1);
    if (Status set = set_parameter(parameter.substr(0, equals), value, directory, pool_given); !set) {
      return fail(set.error());
    }
  }
  return directory;
}

}  // namespace kvd::embed
