// OpTable: the operations of a client that were submitted and not yet released, at most ops_max of them; where callers
// wait for and poll their completions, and where the I/O thread announces them.
//
// An OpId is slot + generation, never 0 and never reused, so an id that was released is recognised. Completions are
// announced by the I/O thread without a lock (EventCount for waiters, a ring of slots for poll()). Who waits for a get
// may help the I/O thread meanwhile (CopyJob).
#pragma once

#include <optional>
#include <span>

#include "base/cores.h"
#include "base/result.h"
#include "client/copy_job.h"
#include "client/op.h"

namespace kvd::client {

inline constexpr std::uint32_t kOpsMaxMax = 32768;  // an id keeps 16 bits for the slot

class OpTable {
 public:
  // Requires 0 < ops_max <= kOpsMaxMax. `event_fd` is borrowed (an eventfd; see signal()). `helped`: waiters may help,
  // and look for `spin` for something to do before they sleep, where it is likely to come.
  OpTable(std::uint32_t ops_max, int event_fd, bool helped = has_other_cores(), Duration spin = Duration::zero());

  // --- callers, any thread ---

  // Puts a request into a free slot and returns the op, whose id is valid from now on. kBusy: none is free.
  Result<Op*> add(OpRequest request);
  // There is no operation that has not been released.
  [[nodiscard]] bool is_empty() const;
  // The op with this id or null. It stays in its slot until release(id).
  [[nodiscard]] Op* find(OpId id) const noexcept;
  // What kind of operation it is, if it is one that is soon there (OpRequest::soon).
  [[nodiscard]] std::optional<OpKind> soon_kind(OpId id) const;
  // Copies the completion of `layer` (schema number) or, with kWholeOp, of the whole op, if it is known. kBusy: not
  // yet. kNotFound: unknown or released. kInvalid: the op has no such layer. `copy`, when given, gets it with its
  // bitmap and text, while no other thread can release the op.
  Result<Completion> try_get(OpId id, std::uint16_t layer, OwnedCompletion* copy = nullptr);
  // The same, waiting until `until` on the monotonic clock: kTimeout then. Who `helps` copies for the I/O thread while
  // it is at what he waits for, a claim (13 us) beyond `until` at most.
  Result<Completion> wait(OpId id, std::uint16_t layer, Time until, OwnedCompletion* copy = nullptr,
                          bool helps = false);
  // Marks layer `layer` of a put as readable. kNotFound, kInvalid (no put, no such layer, released before).
  Status release_layer(OpId id, std::uint16_t layer);
  // Frees the slot of an op that has ended. kBusy: it has not. kNotFound.
  Status release(OpId id);
  // Takes the completions that have not been polled yet; of one op in order. `copies`, when given, gets them too, made
  // as in try_get().
  std::size_t poll(std::span<Completion> out, std::vector<OwnedCompletion>* copies = nullptr);
  // From now on the eventfd is written when completions wait.
  void signal();
  // Takes the view of an ended borrow. kBusy: it has not ended; kNotFound: there is none (any more).
  Result<std::unique_ptr<View>> take_view(OpId id);
  // Takes the text of an ended STATS op.
  Result<std::string> take_text(OpId id);

  // --- the I/O thread ---

  // Announces the next layer of a get, whose entry in results.layers is final. Announces the end, after which the
  // I/O thread must not touch the op any more.
  void announce_layer(Op& op);
  void announce_end(Op& op);
  // What waiters help with: the view of a get that is being copied.
  [[nodiscard]] CopyJob& copies() noexcept { return copies_; }
  [[nodiscard]] std::uint32_t ops_max() const noexcept { return static_cast<std::uint32_t>(ops_.size()); }
  [[nodiscard]] Op& at(std::uint32_t slot) noexcept { return *ops_[slot]; }

 private:
  Result<Completion> completion(Op& op, std::uint16_t layer) const;
  void enqueue(Op& op);
  bool help(const Op& op, OpId id, std::uint32_t layer_at, Time until, Duration look);
  [[nodiscard]] bool may_look() const noexcept;
  void note_look(bool in_vain) noexcept;
  std::size_t deliver(Op& op, std::span<Completion> out, std::vector<OwnedCompletion>* copies);

  std::vector<std::unique_ptr<Op>> ops_;
  int event_fd_;
  std::atomic<bool> signalling_{false};
  CopyJob copies_;
  const Duration spin_;
  // Of who looked last, any of them. Where nothing comes they rest, as the loop does (io/real_loop.cc).
  std::atomic<int> vain_looks_{0};
  std::atomic<Time> look_rests_until_{Time::min()};

  mutable std::mutex free_mutex_;  // guards the next two
  std::vector<std::uint32_t> free_;
  std::uint64_t generation_ = 0;

  // Slots with completions to poll: written by the I/O thread, read under poll_mutex_. A slot is in it at most once,
  // so it never overflows.
  std::vector<std::atomic<std::uint32_t>> ring_;
  std::atomic<std::uint64_t> ring_head_{0};  // next to write
  std::mutex poll_mutex_;                    // guards the next two
  std::uint64_t ring_tail_ = 0;
  Op* polling_ = nullptr;  // taken from the ring, not drained yet
};

}  // namespace kvd::client
