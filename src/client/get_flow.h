// GetFlow: what happens inside one multiget, from the first GET data message to its last layer. It places payload
// straight into the caller's memory, verifies each slab right after it has landed (while it is in the cache), and
// announces each layer. No sockets and no clock: messages and byte counts come in, places and announcements go out.
//
// A key fails when the depot says so or when its bytes do not match its checksum; with stop_at_first_failure all keys
// behind it fail with it. The depot keeps sending slabs of keys that failed here, which land where they belong and
// count for nothing; which of them were damaged it is told at the end (CHECK). Belongs to the I/O thread; dropped when
// the op ends, however it ends.
#pragma once

#include <sys/uio.h>

#include <span>
#include <vector>

#include "base/metric.h"
#include "client/failed_keys.h"
#include "client/layout.h"
#include "client/op_table.h"
#include "wire/message.h"

namespace kvd::client {

// How much payload one system call may bring: about what a socket's buffer holds, and small enough that its slabs are
// verified from the cache and that cancel() waits for at most this much (0.25 ms at 4 GB/s).
inline constexpr std::size_t kReceiveBytesMax = std::size_t{1} << 20;

struct GetCounters {
  Counter corrupt_slabs;
  Counter bytes_loaded;
};

class GetFlow {
 public:
  // Borrows all three. `verify` = false accepts any bytes (tests only).
  GetFlow(Op& op, OpTable& table, GetCounters& counters, bool verify);

  // A GET data message with status ok begins. kCorrupt: it does not continue this get as the protocol says.
  Status begin(const wire::Header& header, const wire::GetData& data);
  // Where the next bytes of its payload go; returns the number of places.
  std::size_t places(std::span<iovec> out) const;
  // `bytes` of them have landed: verifies and announces what they complete.
  void landed(std::size_t bytes);
  // Payload of the current message that has not landed.
  [[nodiscard]] std::uint64_t left() const noexcept { return walk_.left(); }
  // Every layer has been announced.
  [[nodiscard]] bool complete() const noexcept { return announced_ == op_.request.layer_count; }
  // Keys whose bytes did not match their checksum.
  [[nodiscard]] std::span<const std::uint32_t> damaged() const noexcept { return damaged_; }
  // Fills the whole op's completion from what is known.
  void fill_whole(Completion& whole);

 private:
  Status take_failures(Bytes failed);
  void fail_key(std::size_t key);
  void on_slab(std::size_t layer, std::uint32_t key);
  void announce_layer();

  Op& op_;
  OpTable& table_;
  GetCounters& counters_;
  bool verify_;
  FailedKeys failed_;  // as callers see it
  std::vector<std::uint32_t> damaged_;
  std::vector<std::uint32_t> live_;       // keys whose slabs the depot still sends
  std::vector<std::uint64_t> checksums_;  // of the current message
  std::size_t checksum_at_ = 0;
  SlabWalk walk_;
  std::uint16_t announced_ = 0;    // layers
  std::uint16_t message_end_ = 0;  // layers that will be announced when the current message is in
};

}  // namespace kvd::client
