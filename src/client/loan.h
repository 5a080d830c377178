// Loan: what a borrow holds of the depot's memory: views that the depot keeps for this client until they are given
// back, and the two things that make it so: the mapping and the keeper (docs/formats/wire.md). LoanDesk: where loans
// come back from whatever thread lets go of them.
//
// A loan belongs to the I/O thread until its operation ends, then to a View, whose owner may destroy it on any thread,
// also after the client. While anybody has the keeper the depot keeps everything that this connection was to keep, also
// beyond the connection's end; so a loan that cannot be given back by a message any more is given back by letting go.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/metric.h"
#include "base/time.h"
#include "io/loop.h"
#include "io/private_fd.h"
#include "kvdepot/types.h"
#include "net/shared_memory.h"

namespace kvd::client {

// Owners: the channel while it is connected, and loans of that connection.
using SharedKeeper = std::shared_ptr<const io::PrivateFd>;
// Owners: the channel until it maps the file anew, views that are being copied, and loans.
using SharedMapping = std::shared_ptr<const net::SharedMemory>;

class LoanDesk : public std::enable_shared_from_this<LoanDesk> {
 public:
  struct Returned {
    SharedKeeper keeper;  // of the connection that they were lent on
    std::vector<std::uint64_t> views;
  };

  // A record of which a reader has found a slab damaged.
  struct Damaged {
    std::uint32_t ns = 0;  // NamespaceId
    std::uint16_t shard = 0;
    std::uint16_t group = 0;
    std::vector<std::byte> key;
    bool native = false;
  };
  // A loan that comes back sooner than this wakes nobody: the next request, or the loop's own timer, finds it.
  static constexpr Duration kSoon = Millis(2);
  // More of them wait for the loop than the depot needs to know of at a time; they are counted only.
  static constexpr std::size_t kDamagedMax = 256;

  // `on_returned` comes on the loop's thread when something has come back, or is damaged. What was lent kSoon ago and
  // less comes back without it: the loop looks by itself, kSoon behind the last loan at the latest.
  LoanDesk(io::Loop& loop, std::function<void()> on_returned);

  // Any thread.
  void give_back(Returned returned, Time lent_at);
  void report(Damaged damaged);
  [[nodiscard]] std::uint64_t damaged_slabs() const noexcept { return damaged_slabs_.value(); }
  // This process is not the one that borrowed: nothing is its to give back.
  [[nodiscard]] bool forked() const noexcept;
  // Whether something has come back that take() would give.
  [[nodiscard]] bool has_returned() const noexcept { return has_returned_.load(std::memory_order_relaxed); }
  // Loop thread.
  std::vector<Returned> take();
  std::vector<Damaged> take_damaged();
  // The client ends: on_returned does not come any more. Loop thread.
  void close();

 private:
  void wake();
  void tell();

  const pid_t pid_;
  const std::function<void()> on_returned_;
  SharedCounter damaged_slabs_;
  std::atomic<bool> has_returned_{false};
  std::mutex mutex_;  // guards the rest
  io::Loop* loop_;    // null: closed
  bool woken_ = false;
  std::vector<Returned> returned_;
  std::vector<Damaged> damaged_;
};

class Loan {
 public:
  // Owners of the desk: the client and its loans.
  Loan(std::shared_ptr<LoanDesk> desk, SharedMapping mapping, SharedKeeper keeper, Time lent_at);
  ~Loan();  // gives back what was not
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  // One more view and where its slabs lie in the mapping. Before the loan is shared.
  void add(std::uint64_t view, const std::vector<Bytes>& parts);
  [[nodiscard]] const SharedMapping& mapping() const noexcept { return mapping_; }
  [[nodiscard]] LoanDesk& desk() const noexcept { return *desk_; }
  [[nodiscard]] bool held() const;
  // Ends the loan under its reader, a step at a time: the next bytes, at most `bytes_max` of them, which is less by
  // these afterwards, are copies at the same addresses from now on. True: all are, and it has been given back. Requires
  // that nothing else reads the mapping but loans that hold what they show. kNoSpace: not now; it is held as before.
  // Loop thread.
  Result<bool> end_some(std::size_t& bytes_max);

 private:
  LoanDesk::Returned take();

  const std::shared_ptr<LoanDesk> desk_;
  const Time lent_at_;
  SharedMapping mapping_;
  std::vector<Bytes> parts_;
  std::size_t parts_cut_ = 0;  // of them, cut loose
  std::size_t bytes_cut_ = 0;  // of the next one
  mutable std::mutex mutex_;   // guards the next one
  LoanDesk::Returned held_;
};

}  // namespace kvd::client
