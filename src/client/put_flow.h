// PutFlow: what happens inside one multiput on its way out: which released layers go into the next PUT data message,
// their checksums, and where their bytes lie. No sockets and no clock.
//
// Layers go in order; a layer released early waits for those before it. Checksums precede the slabs on the wire, so a
// message is hashed as a whole before it is sent, in bounded steps. A depot that takes parts of layers gets messages of
// kPartBytes: while one is received and verified there the next one is hashed here. To others released layers that
// follow each other travel whole, in one message up to kGroupBytes, so that small layers do not become small messages.
// Where there is an arena slabs are copied there, hashed in the same pass, and the message says where they lie
// (net/arena.h). Belongs to the I/O thread.
#pragma once

#include <vector>

#include "base/bytes.h"
#include "client/arena_room.h"
#include "client/layout.h"
#include "client/op.h"
#include "wire/message.h"

namespace kvd::client {

// Payload of one message of whole layers when several fit: enough to amortise a message, little enough to be hashed in
// 0.2 ms.
inline constexpr std::uint64_t kGroupBytes = std::uint64_t{4} << 20;
// The same of parts: while a part is hashed the depot may run dry and fall asleep, and to wake it costs what it costs
// to hash 256 KiB (docs/results/net.md, Longer parts).
inline constexpr std::uint64_t kPartBytes = std::uint64_t{1} << 20;
// Slabs of a part, where they have a few bytes: half of what a message's meta has room for, at 8 bytes a checksum.
inline constexpr std::uint64_t kPartSlabsMax = wire::kMetaBytesMax / 16;
// Of parts in an arena, which are hashed where they are copied: half of a small second-level cache.
inline constexpr std::uint64_t kArenaPartBytes = std::uint64_t{256} << 10;
// Pieces of memory that one message may consist of, counting those of one layer of all keys: 16 MiB of descriptors.
inline constexpr std::uint64_t kPiecesPerLayerMax = std::uint64_t{1} << 20;

class PutFlow {
 public:
  // Borrows the op. `parts`: the depot takes parts of layers. `arena`: may be null.
  PutFlow(Op& op, bool parts, std::shared_ptr<ArenaRoom> arena = nullptr);
  ~PutFlow();
  PutFlow(const PutFlow&) = delete;
  PutFlow& operator=(const PutFlow&) = delete;

  // Some layer is released and its turn has come.
  [[nodiscard]] bool ready() const noexcept { return preparing() || next_released(); }
  // Whether the next message has room in the arena, if it is to go there: else prepare() waits for what the depot
  // takes. Requires ready().
  [[nodiscard]] bool has_room();
  // Slabs go through the arena.
  [[nodiscard]] bool uses_arena() const noexcept { return arena_ != nullptr; }
  // Hashes at most about `bytes_max` of the next message, at least one slab. True when the message is complete.
  // Requires has_room().
  bool prepare(std::size_t bytes_max);

  struct Message {
    wire::Buffer head;
    std::vector<Bytes> body;  // none of a message whose slabs lie in the arena
    std::uint64_t bytes = 0;  // of slabs
  };
  // The message that prepare() has completed. It is to be sent.
  Message take();
  // Every layer has been taken.
  [[nodiscard]] bool all_taken() const noexcept { return next_ == slabs() && !preparing(); }

 private:
  [[nodiscard]] std::size_t slabs() const noexcept { return op_.request.layer_count * keys_.size(); }
  [[nodiscard]] std::size_t layer_of(std::size_t slab) const noexcept { return slab / keys_.size(); }
  [[nodiscard]] bool preparing() const noexcept { return message_slabs_ > 0; }
  [[nodiscard]] bool next_released() const noexcept { return next_ < slabs() && op_.layer_released(layer_of(next_)); }
  void start_message();
  Message take_from_arena();

  Op& op_;
  const bool parts_;
  const std::shared_ptr<ArenaRoom> arena_;  // null: slabs are sent from where they lie
  std::uint64_t offset_ = 0;                // in the arena, of the message being prepared
  std::vector<std::uint32_t> keys_;         // 0, 1, 2, ...
  std::size_t next_ = 0;                    // first slab of the next message, in wire order
  std::size_t message_slabs_ = 0;           // of the message being prepared; 0 = none
  std::vector<std::uint64_t> checksums_;    // made so far
};

}  // namespace kvd::client
