// RESP: what Redis clients speak, the server's side: an incremental parser of commands and an encoder of replies
// (version 2, and 3 where a client asks for it). Pure, any thread; one parser per connection.
//
// The parser collects arguments itself unless its user says where one goes: a value of megabytes is announced before it
// comes, and its bytes then go from the socket to their place without passing through here (pass(), landed()).
// Bounds: a header line 64 bytes, an inline command 16 KiB, 8,193 arguments (an MSET of 4,096 pairs), 1 MiB of kept
// arguments of one command. Longer arguments are read and dropped, so that they can be refused in order; what Redis
// calls a protocol error ends the stream, with Redis' words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "wire/message.h"

namespace kvd::wire {

class RespParser {
 public:
  static constexpr std::size_t kArgumentsMax = 8'193;
  static constexpr std::size_t kLineBytesMax = 64;
  static constexpr std::size_t kInlineBytesMax = std::size_t{16} << 10;
  static constexpr std::size_t kKeptBytesMax = std::size_t{1} << 20;
  static constexpr std::uint64_t kBulkBytesMax = std::uint64_t{512} << 20;  // Redis' proto-max-bulk-len

  enum class Event : std::uint8_t {
    kMore,      // all bytes are used, or the next ones belong to an argument that was passed
    kArgument,  // an argument of body_left() bytes comes, number arguments().size() - 1; pass() or drop() it, or not
    kCommand,   // the arguments are complete, valid until the next call
    kBroken,    // see problem(); nothing more is parsed
  };
  // How an argument was taken.
  enum class Taken : std::uint8_t { kKept, kPassed, kDropped };
  struct Argument {
    Taken taken = Taken::kKept;
    std::uint64_t bytes = 0;
    std::size_t at = 0;  // of a kept one, in the parser's memory
  };

  // Parses from `in`; `used` becomes how many of its bytes were taken. Call again with the rest after kArgument and
  // kCommand.
  Event next(Bytes in, std::size_t& used);

  // After kArgument: its bytes are the caller's, who tells with landed() as they come.
  void pass();
  // After kArgument: its bytes are thrown away.
  void drop();
  // Bytes of the argument that are still to come.
  [[nodiscard]] std::uint64_t body_left() const noexcept { return body_left_; }
  // The next bytes of the stream belong to a passed argument.
  [[nodiscard]] bool passing() const noexcept {
    return part_ == Part::kBody && body_left_ > 0 && arguments_.back().taken == Taken::kPassed;
  }
  // Requires passing() and bytes <= body_left().
  void landed(std::uint64_t bytes);
  // The next bytes of the stream are thrown away: so many.
  [[nodiscard]] std::uint64_t dropping() const noexcept {
    return part_ == Part::kBody && arguments_.back().taken == Taken::kDropped ? body_left_ : 0;
  }

  // Of the current command, as far as it has come.
  [[nodiscard]] const std::vector<Argument>& arguments() const noexcept { return arguments_; }
  // The bytes of a kept argument; of others nothing.
  [[nodiscard]] std::string_view text(std::size_t i) const noexcept;
  // How many arguments the command will have; 0 for an inline command until it is complete.
  [[nodiscard]] std::size_t announced() const noexcept { return announced_; }
  // In the middle of a command.
  [[nodiscard]] bool within_command() const noexcept { return part_ != Part::kStart || !line_.empty(); }
  // Of kBroken: what Redis would say, behind "ERR ".
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }
  // Memory held for the current command.
  [[nodiscard]] std::size_t bytes_held() const noexcept {
    return line_.capacity() + kept_.capacity() + arguments_.capacity() * sizeof(Argument);
  }

 private:
  enum class Part : std::uint8_t { kStart, kHeader, kBody, kBodyEnd, kBroken };

  bool take_line(Bytes in, std::size_t& used, std::size_t bytes_max);
  [[nodiscard]] bool too_long(std::size_t bytes_max) const noexcept;
  Event start(Bytes in, std::size_t& used);
  Event header(Bytes in, std::size_t& used);
  Event begin_multibulk();
  Event split_inline();
  Event broken(std::string problem);
  void clear();

  Part part_ = Part::kStart;
  std::string line_;  // as far as it has come, without its end
  std::string kept_;
  std::vector<Argument> arguments_;
  std::size_t announced_ = 0;
  std::uint64_t body_left_ = 0;
  bool command_done_ = false;  // the next call begins another
  std::string problem_;
};

// Replies; each appends to `out`. `version`: 2 or 3.
namespace resp {
void simple(Buffer& out, std::string_view text);
void error(Buffer& out, std::string_view text);  // with its code word; line ends become spaces
void integer(Buffer& out, std::int64_t value);
void bulk_head(Buffer& out, std::uint64_t bytes);  // the bytes and an end of line follow
void bulk(Buffer& out, std::string_view text);
void nil(Buffer& out, int version);
void array(Buffer& out, std::size_t items);
void map(Buffer& out, std::size_t pairs, int version);
void end_line(Buffer& out);
}  // namespace resp

}  // namespace kvd::wire
