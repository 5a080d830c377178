// PutFlow: what happens inside one multiput on its way out: which released layers go into the next PUT data message,
// their checksums, and where their bytes lie. No sockets and no clock.
//
// Layers go in order; a layer released early waits for those before it. Released layers that follow each other travel
// in one message up to kGroupBytes, so that small layers do not become small messages. Checksums precede the slabs on
// the wire, so a message is hashed as a whole before it is sent, in bounded steps. Belongs to the I/O thread.
#pragma once

#include <vector>

#include "base/bytes.h"
#include "client/layout.h"
#include "client/op.h"
#include "wire/message.h"

namespace kvd::client {

// Payload of one message when several layers fit: enough to amortise a message, little enough to be hashed in 0.2 ms.
inline constexpr std::uint64_t kGroupBytes = std::uint64_t{4} << 20;
// Pieces of memory that one message may consist of, counting those of one layer of all keys: 16 MiB of descriptors.
inline constexpr std::uint64_t kPiecesPerLayerMax = std::uint64_t{1} << 20;

class PutFlow {
 public:
  // Borrows the op.
  explicit PutFlow(Op& op);

  // Some layer is released and its turn has come.
  [[nodiscard]] bool ready() const noexcept { return preparing() || next_released(); }
  // Hashes at most about `bytes_max` of the next message, at least one slab. True when the message is complete.
  // Requires ready().
  bool prepare(std::size_t bytes_max);

  struct Message {
    wire::Buffer head;
    std::vector<Bytes> body;
    std::uint64_t bytes = 0;
  };
  // The message that prepare() has completed.
  Message take();
  // Every layer has been taken.
  [[nodiscard]] bool all_taken() const noexcept { return next_ == op_.request.layer_count && !preparing(); }

 private:
  [[nodiscard]] bool preparing() const noexcept { return group_ > 0; }
  [[nodiscard]] bool next_released() const noexcept {
    return next_ < op_.request.layer_count && op_.layer_released(next_);
  }
  void start_group();

  Op& op_;
  std::vector<std::uint32_t> keys_;       // 0, 1, 2, ...
  std::uint16_t next_ = 0;                // first layer of the next message
  std::uint16_t group_ = 0;               // layers of the message being prepared; 0 = none
  std::vector<std::uint64_t> checksums_;  // made so far
};

}  // namespace kvd::client
