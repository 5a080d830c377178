#include "cmd/spdlog_log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace kvd::cmd {
namespace {

spdlog::level::level_enum level_of(Level level) {
  switch (level) {
    case Level::kDebug: return spdlog::level::debug;
    case Level::kInfo: return spdlog::level::info;
    case Level::kWarn: return spdlog::level::warn;
    case Level::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

class SpdlogLog final : public Log {
 public:
  SpdlogLog(Level level, bool colour)
      : logger_("kvdepot", std::make_shared<spdlog::sinks::stderr_color_sink_mt>(colour ? spdlog::color_mode::automatic
                                                                                        : spdlog::color_mode::never)) {
    logger_.set_level(level_of(level));
    logger_.set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
    logger_.flush_on(spdlog::level::debug);
  }
  void write(Level level, std::string_view line) override { logger_.log(level_of(level), "{}", line); }

 private:
  spdlog::logger logger_;
};

}  // namespace

Result<Level> parse_level(std::string_view text) {
  if (text == "debug") return Level::kDebug;
  if (text == "info") return Level::kInfo;
  if (text == "warn") return Level::kWarn;
  if (text == "error") return Level::kError;
  return fail(Code::kInvalid, "not a log level: write debug, info, warn or error");
}

std::unique_ptr<Log> make_stderr_log(Level level, bool colour) { return std::make_unique<SpdlogLog>(level, colour); }

}  // namespace kvd::cmd
