#include "auth/credentials.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/sizes.h"

namespace kvd::auth {
namespace {

constexpr std::string_view kBlank = " \t\r";

// The next word of the line, which it is taken from; empty at the end or where a comment begins.
std::string_view next_word(std::string_view& line) {
  const std::size_t begin = line.find_first_not_of(kBlank);
  if (begin == std::string_view::npos || line[begin] == '#') return {};
  line.remove_prefix(begin);
  const std::string_view word = line.substr(0, line.find_first_of(kBlank));
  line.remove_prefix(word.size());
  return word;
}

struct TenantLine {
  std::size_t line = 0;
  Quotas quotas;
  bool used = false;
};

class Parser {
 public:
  explicit Parser(const std::string& file) : fault_{.file = file, .line = 0, .text = {}} {}

  FromInput<Credentials> parse(std::string_view text) {
    if (text.size() > kCredentialsBytesMax) return std::unexpected(InputFault{fault_.file, 0, "longer than 1 MiB"});
    while (!text.empty()) {
      ++fault_.line;
      const std::size_t length = std::min(text.find('\n'), text.size());
      std::string_view line = text.substr(0, length);
      text.remove_prefix(std::min(length + 1, text.size()));
      const std::string_view word = next_word(line);
      if (word.empty()) continue;
      if (!parse_line(word, line)) return std::unexpected(fault_);
    }
    return finish();
  }

 private:
  using Setting = std::function<bool(std::string_view value)>;

  bool complain(std::string text) {
    fault_.text = std::move(text);
    return false;
  }

  bool parse_line(std::string_view word, std::string_view line) {
    const std::string name(next_word(line));
    if (word == "tenant") return parse_tenant(name, line);
    if (word == "token") return parse_token(name, line, Identity::Kind::kToken);
    if (word == "certificate") return parse_token(name, line, Identity::Kind::kCertificate);
    if (word == "subject") return parse_subject(name, line);
    return complain("'" + printable(word) + "' is not tenant, token, subject or certificate");
  }

  bool parse_tenant(const std::string& name, std::string_view line) {
    if (!is_name(name, kTenantNameMax)) return complain("a tenant's name has 1 to 64 letters, digits and ._-@:/+");
    if (tenants_.size() == kTenantsMax) return complain("more than 1,024 tenants");
    TenantLine tenant{.line = fault_.line, .quotas = {}};
    const auto size = [this](std::uint64_t& place) {
      return [this, &place](std::string_view value) {
        const Result<std::uint64_t> bytes = parse_size(value);
        if (bytes) place = *bytes;
        return bytes || complain("'" + printable(value) + "' is not a size");
      };
    };
    const auto count = [this](std::uint64_t& place, const char* what) {
      return [this, &place, what](std::string_view value) {
        const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), place);
        const bool good = error == std::errc{} && end == value.data() + value.size() && place > 0;
        return good || complain("'" + printable(value) + "' is not a number of " + what + " above 0");
      };
    };
    const std::map<std::string_view, Setting> settings{{"pool", size(tenant.quotas.pool_bytes)},
                                                       {"flash", size(tenant.quotas.flash_bytes)},
                                                       {"requests", count(tenant.quotas.requests, "requests")},
                                                       {"connections", count(tenant.quotas.connections, "connections")},
                                                       {"namespaces", count(tenant.quotas.namespaces, "namespaces")}};
    if (!parse_settings(line, settings, {})) return false;
    if (!tenants_.emplace(name, tenant).second) return complain("tenant " + name + " is named twice");
    return true;
  }

  // What tokens and subjects have in common.
  std::map<std::string_view, Setting> identity_settings(Identity& identity) {
    return {{"tenant",
             [this, &identity](std::string_view value) {
               identity.tenant = value;
               return is_name(value, kTenantNameMax) || complain("'" + printable(value) + "' is not a tenant's name");
             }},
            {"rights", [this, &identity](std::string_view value) {
               const Result<Rights> rights = parse_rights(value);
               if (rights) identity.rights = *rights;
               return rights || complain("'" + printable(value) + "' is " + rights.error().what);
             }}};
  }

  // Or a certificate, which its digest stands for as well.
  bool parse_token(const std::string& name, std::string_view line, Identity::Kind kind) {
    const bool is_token = kind == Identity::Kind::kToken;
    const std::string word = is_token ? "token" : "certificate";
    std::vector<Identity>& list = is_token ? credentials_.tokens : credentials_.certificates;
    if (!is_name(name, kNameMax)) return complain("a " + word + "'s name has 1 to 255 letters, digits and ._-@:/+");
    if (list.size() == kCredentialsMax) return complain("more than 4,096 " + word + "s");
    Identity token;
    token.kind = kind;
    token.credential = name;
    auto settings = identity_settings(token);
    settings["sha256"] = [this, &token](std::string_view value) {
      const std::optional<TokenDigest> digest = parse_digest(value);
      if (digest) token.digest = *digest;
      return token.digest != TokenDigest{} || complain("sha256 is not 64 digits of 0-9a-f, or zero");
    };
    settings["expires"] = [this, &token](std::string_view value) {
      const Result<WallSeconds> at = parse_date(value);
      if (at) token.expires = *at;
      return at || complain("'" + printable(value) + "' is not a date as 2027-06-30");
    };
    if (!parse_settings(line, settings, {"tenant", "rights", "sha256"})) return false;
    if (!names_.insert({kind, name}).second) return complain(word + " " + name + " is named twice");
    if (!digests_.insert({kind, token.digest}).second) return complain("another " + word + " has this sha256");
    list.push_back(std::move(token));
    return true;
  }

  bool parse_subject(const std::string& name, std::string_view line) {
    if (!is_name(name, kNameMax)) return complain("a subject has 1 to 255 letters, digits and ._-@:/+");
    if (credentials_.subjects.size() == kCredentialsMax) return complain("more than 4,096 subjects");
    Identity subject;
    subject.kind = Identity::Kind::kSubject;
    subject.credential = name;
    if (!parse_settings(line, identity_settings(subject), {"tenant", "rights"})) return false;
    if (!subjects_.insert(name).second) return complain("subject " + name + " is named twice");
    credentials_.subjects.push_back(std::move(subject));
    return true;
  }

  bool parse_settings(std::string_view line, const std::map<std::string_view, Setting>& known,
                      const std::vector<std::string_view>& needed) {
    std::set<std::string_view> seen;
    for (std::string_view word = next_word(line); !word.empty(); word = next_word(line)) {
      const std::size_t equals = word.find('=');
      const std::string_view name = word.substr(0, equals);
      const auto at = known.find(name);
      if (at == known.end() || equals == std::string_view::npos) {
        return complain("'" + printable(name) + "' is not a setting of this line, written name=value");
      }
      if (!seen.insert(name).second) return complain(std::string(name) + " is set twice");
      if (!at->second(word.substr(equals + 1))) return false;
    }
    for (const std::string_view name : needed) {
      if (!seen.contains(name)) return complain(std::string(name) + "= is missing");
    }
    return true;
  }

  // Text that is not ours goes into a log in part and in a form that it cannot hide in.
  static std::string printable(std::string_view text) {
    constexpr std::size_t kShownMax = 40;
    std::string out(text.substr(0, kShownMax));
    std::ranges::replace_if(out, [](char c) { return c < ' ' || c > '~'; }, '?');
    return out;
  }

  FromInput<Credentials> finish() {
    std::set<std::string_view> tenants;
    const auto take_quotas = [&](Identity& identity) {
      tenants.insert(identity.tenant);
      const auto at = tenants_.find(identity.tenant);
      if (at == tenants_.end()) return;
      identity.quotas = at->second.quotas;
      at->second.used = true;
    };
    for (Identity& token : credentials_.tokens) take_quotas(token);
    for (Identity& subject : credentials_.subjects) take_quotas(subject);
    for (Identity& certificate : credentials_.certificates) take_quotas(certificate);
    if (tenants.size() > kTenantsMax) return std::unexpected(InputFault{fault_.file, 0, "more than 1,024 tenants"});
    for (const auto& [name, tenant] : tenants_) {
      if (tenant.used) continue;
      return std::unexpected(
          InputFault{fault_.file, tenant.line, "no token, subject or certificate is of tenant " + name});
    }
    return std::move(credentials_);
  }

  InputFault fault_;
  Credentials credentials_;
  std::map<std::string, TenantLine> tenants_;
  std::set<std::pair<Identity::Kind, std::string>> names_;
  std::set<std::string> subjects_;
  std::set<std::pair<Identity::Kind, TokenDigest>> digests_;
};

}  // namespace

FromInput<Credentials> parse_credentials(std::string_view text, const std::string& file) {
  return Parser(file).parse(text);
}

std::string show_token_line(std::string_view name, std::string_view tenant, std::string_view rights,
                            const TokenDigest& digest, std::string_view expires) {
  std::string line = "token " + std::string(name) + " tenant=" + std::string(tenant) +
                     " rights=" + std::string(rights) + " sha256=" + show_digest(digest);
  if (!expires.empty()) line += " expires=" + std::string(expires);
  return line;
}

Result<WallSeconds> parse_date(std::string_view text) {
  const auto bad = fail(Code::kInvalid, "not a date as 2027-06-30");
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return bad;
  const auto number = [text](std::size_t at, std::size_t digits) {
    unsigned value = 0;
    for (const char c : text.substr(at, digits)) {
      if (c < '0' || c > '9') return 0U;
      value = value * 10 + static_cast<unsigned>(c - '0');
    }
    return value;
  };
  const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(number(0, 4))),
                                         std::chrono::month(number(5, 2)), std::chrono::day(number(8, 2))};
  if (!date.ok() || static_cast<int>(date.year()) < 1970) return bad;
  return std::chrono::seconds(std::chrono::sys_days(date).time_since_epoch()).count();
}

Result<Rights> parse_rights(std::string_view text) {
  Rights rights;
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view word = text.substr(0, comma);
    const auto right = word == "read"    ? std::optional(Right::kRead)
                       : word == "write" ? std::optional(Right::kWrite)
                       : word == "admin" ? std::optional(Right::kAdmin)
                       : word == "pool"  ? std::optional(Right::kPool)
                                         : std::nullopt;
    if (!right || rights.allow(*right)) return fail(Code::kInvalid, "not some of read,write,admin,pool");
    rights.add(*right);
    if (comma == std::string_view::npos) return rights;
    text.remove_prefix(comma + 1);
  }
}

bool is_name(std::string_view text, std::size_t max) noexcept {
  return !text.empty() && text.size() <= max && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-@:/+").find(c) != std::string_view::npos;
  });
}

}  // namespace kvd::auth
