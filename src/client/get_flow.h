// GetFlow: what happens inside one multiget, from the first GET data message to its last layer. It places payload
// straight into the caller's memory, verifies each slab right after it has landed (while it is in the cache), and
// announces each layer. No sockets and no clock: messages and byte counts come in, places and announcements go out.
// Slabs that lie in shared memory (GET view) it copies itself, by the same rules; those of a large view together with
// callers who wait for the get (CopyJob), of whom only run_slab() is called.
//
// A borrow has no places in the caller's memory: its slabs stay where they lie, and are only verified there, where the
// depot keeps them for this client (loan); they land in memory of the view's own otherwise.
//
// A key fails when the depot says so or when its bytes do not match its checksum; with stop_at_first_failure all keys
// behind it fail with it. The depot keeps sending slabs of keys that failed here, which land where they belong and
// count for nothing; which of them were damaged it is told at the end (CHECK). Belongs to the I/O thread; dropped when
// the op ends, however it ends.
#pragma once

#include <sys/uio.h>

#include <optional>
#include <span>
#include <vector>

#include "base/metric.h"
#include "block/checksum.h"
#include "client/copy_job.h"
#include "client/failed_keys.h"
#include "client/layout.h"
#include "client/lent_view.h"
#include "client/op_table.h"
#include "wire/message.h"

namespace kvd::client {

// How much payload one system call may bring: about what a socket's buffer holds, and small enough that its slabs are
// verified from the cache and that cancel() waits for at most this much (0.25 ms at 4 GB/s).
inline constexpr std::size_t kReceiveBytesMax = std::size_t{1} << 20;

// A larger slab is copied, or hashed where it lies, in steps of this, between which a turn may end.
inline constexpr std::size_t kCopyStepBytes = std::size_t{256} << 10;

struct GetCounters {
  Counter corrupt_slabs;
  Counter bytes_loaded;
  Counter bytes_shared;    // of these, copied from shared memory
  Counter bytes_borrowed;  // of these, left there for a view
  Counter loans_ended;     // of views that had not been given back in time
};

class GetFlow final : private CopyJob::Work {
 public:
  // Borrows all three. `verify` = false accepts any bytes (tests only). A borrow that asks for no verification has none
  // of slabs that stay where they are, which its reader verifies; what is copied for it may have changed meanwhile.
  GetFlow(Op& op, OpTable& table, GetCounters& counters, bool verify);
  // Nobody else is at its slabs when it is gone.
  ~GetFlow();
  GetFlow(const GetFlow&) = delete;
  GetFlow& operator=(const GetFlow&) = delete;

  // A GET data message with status ok begins. kCorrupt: it does not continue this get as the protocol says.
  Status begin(const wire::Header& header, const wire::GetData& data);
  // A GET view message begins, whose slabs lie in `memory`. kCorrupt: also when a slab lies outside of it.
  Status begin_view(const wire::Header& header, const wire::GetView& view, const SharedMapping& memory);
  // What GET views of a borrow are lent with, from now on; null: they must be copied. Before its first message.
  void lend(std::shared_ptr<LoanDesk> desk, SharedKeeper keeper);
  // Views are kept for it: their slabs stay where they are.
  [[nodiscard]] bool keeps() const noexcept { return keeper_ != nullptr; }
  // The view whose slabs were looked at last is its own from `now` on.
  void keep(std::uint64_t view, Time now);
  [[nodiscard]] const std::vector<std::shared_ptr<Loan>>& loans() const noexcept { return loans_; }
  // What the borrow ends with. Once, at its end.
  std::unique_ptr<View> make_view();
  // Copies, verifies and announces the next slabs of that view: at least `bytes_max` bytes, if there are as many, and
  // less than a slab, step or claim more. False: others have what is left, and are not done yet.
  bool copy(std::size_t bytes_max);
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
  Status make_copies();
  void share_view();
  void copy_shared(std::size_t bytes_max);
  void collect();
  [[nodiscard]] bool run_slab(std::size_t slab) const noexcept override;
  [[nodiscard]] Bytes source_of(std::size_t layer, std::size_t key_at) const noexcept;
  [[nodiscard]] bool borrows() const noexcept { return op_.request.borrow; }
  // The slabs of the current message.
  [[nodiscard]] bool verifies() const noexcept { return verify_ && (op_.request.verify || !stays_); }
  [[nodiscard]] const Layout& layout() const noexcept { return copies_ ? own_layout_ : op_.request.layout; }
  [[nodiscard]] std::size_t place_of(std::size_t layer, std::uint32_t key) const noexcept {
    return layer * slabs_.keys + key;
  }
  Status begin_layers(const wire::Header& header, Bytes failed, const wire::U64View& checksums);
  Status take_failures(Bytes failed);
  [[nodiscard]] std::uint64_t checksum(std::size_t layer, std::uint32_t key) const;
  void fail_key(std::size_t key);
  void on_slab(std::size_t layer, std::uint32_t key, std::optional<bool> good);
  void fetch_behind(std::size_t layer, std::size_t key_at) const noexcept;
  void announce_layer();

  Op& op_;
  OpTable& table_;
  GetCounters& counters_;
  bool verify_;
  bool stays_ = false;       // the slabs of the current message are the view's where they lie
  bool past_cache_ = false;  // it brings more than its reader would find in the cache
  FailedKeys failed_;        // as callers see it
  std::vector<std::uint32_t> damaged_;
  std::vector<std::uint32_t> live_;       // keys whose slabs the depot still sends
  std::vector<std::uint64_t> checksums_;  // of the current message
  std::size_t checksum_at_ = 0;
  SlabWalk walk_;
  std::vector<const std::byte*> sources_;  // of the current view: by living key, its slab of the first layer
  std::uint64_t source_stride_ = 0;        // to the slab of the next layer
  std::size_t source_layer_ = 0;           // the first layer, from the operation's first
  std::size_t source_layers_ = 0;          // of the current view
  SharedMapping mapping_;                  // that they lie in
  bool shared_ = false;                    // the current view is a CopyJob that is not closed
  std::size_t collected_ = 0;              // slabs of it whose results were taken
  FailedKeys passed_over_;                 // keys that had failed when it came: their slabs are not copied
  LentView::Slabs slabs_;                  // of a borrow
  std::unique_ptr<std::byte[]> copies_;    // where its slabs land that are not lent; made when there are some
  Layout own_layout_;                      // of these
  std::shared_ptr<LoanDesk> desk_;
  SharedKeeper keeper_;
  std::vector<std::shared_ptr<Loan>> loans_;  // one for each mapping: a mapping may be made anew meanwhile
  std::optional<block::SlabHasher> hasher_;   // of a slab that is copied in steps
  std::uint16_t announced_ = 0;               // layers
  std::uint16_t message_end_ = 0;             // layers that will be announced when the current message is in
};

}  // namespace kvd::client
