// Op: one operation from its submission to release(), in three parts with one writer each.
//
//   request   written by the submitting thread, then constant until release;
//   results   written by the I/O thread, each part before the event that announces it, then constant;
//   commands  set by callers, taken by the I/O thread: start, cancel, layers released.
// Ops live in the slots of an OpTable and are never moved. Memory per op: its keys, 8 bytes per key and per layer, and
// one bitmap per layer in which another key failed.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "client/event_count.h"
#include "client/layout.h"
#include "client/region_table.h"
#include "kvdepot/client.h"

namespace kvd::client {

enum class OpKind : std::uint8_t { kMatch, kGet, kPut, kRemove, kStats };

// What was asked for, checked and copied.
struct OpRequest {
  OpKind kind = OpKind::kMatch;
  NamespaceId ns = 0;
  std::vector<std::uint16_t> shards;  // one of each for get and put
  std::vector<std::uint16_t> groups;
  std::vector<std::byte> key_bytes;  // what `keys` points into
  KeyList keys;
  Deadline deadline;
  Time submitted{};
  bool soon = false;  // there: who waits for it does the I/O thread's work meanwhile
  // match
  std::uint32_t lease_ms = 0;
  bool promote = false;
  // get and put
  std::uint16_t layer_first = 0;
  std::uint16_t layer_count = 0;
  Layout layout;
  std::vector<std::uint64_t> seeds;  // block::record_seed of each key
  RegionUse region;                  // keeps the region registered; the I/O thread drops it as the op ends
  bool stop_at_first_failure = false;
  AckLevel ack = AckLevel::kPooled;
  bool whole = false;  // put: every layer may be read from the start
  // a get that ends with a view instead of bytes in a region
  bool borrow = false;
  bool verify = true;
  Duration hold{};
};

// What was found, as far as it is known.
struct OpResults {
  struct Layer {
    std::uint32_t failed_keys = 0;
    const std::uint8_t* failed = nullptr;
  };
  std::vector<Layer> layers;                             // one per layer of a get, else empty
  std::vector<std::unique_ptr<std::uint8_t[]>> bitmaps;  // what `failed` points to; [0] is all zeros
  Completion whole;
  std::string text;            // STATS
  std::string why;             // what whole.why points to
  std::unique_ptr<View> view;  // of a borrow that has ended with kOk, until it is taken
};

struct Op {
  // EventCount values: number of layers announced, plus kEnded once `results.whole` is final.
  static constexpr std::uint32_t kEnded = std::uint32_t{1} << 30;
  static constexpr std::uint32_t kReleased = std::uint32_t{1} << 29;
  // EventCount channel of the whole operation, and of layer i (a waiter may be woken for a neighbour).
  static constexpr std::uint32_t kWholeChannel = std::uint32_t{1} << 31;
  static constexpr std::uint32_t layer_channel(std::uint32_t i) noexcept { return std::uint32_t{1} << (i % 31); }

  enum Command : std::uint32_t { kStart = 1, kLayers = 2, kCancel = 4 };

  std::uint32_t slot = 0;  // constant
  OpRequest request;
  OpResults results;
  EventCount events;

  // Commands. `cancel_id` names the op that a cancel is meant for: the slot may hold another one when it is taken.
  std::atomic<std::uint32_t> commands{0};
  std::atomic<OpId> cancel_id{0};
  std::array<std::atomic<std::uint64_t>, (kLayersMax + 63) / 64> released{};  // bit l: layer l of a put may be read
  Op* next_submitted = nullptr;                                               // SubmitStack's

  // Callers only; the I/O thread never takes it. Guards `id` against release, and poll_next.
  std::mutex mutex;
  std::atomic<OpId> id{0};  // 0: the slot is free
  std::uint32_t poll_next = 0;

  std::atomic<bool> queued{false};  // the slot is in the queue of ops with completions to poll

  [[nodiscard]] bool ended() const noexcept { return (events.value() & kEnded) != 0; }
  [[nodiscard]] bool layer_released(std::size_t layer) const noexcept {
    return (released[layer / 64].load(std::memory_order_acquire) >> (layer % 64) & 1) != 0;
  }
};

}  // namespace kvd::client
