#include "client/loan.h"

#include <unistd.h>

#include <algorithm>

namespace kvd::client {

LoanDesk::LoanDesk(io::Loop& loop, std::function<void()> on_returned)
    : pid_(::getpid()), on_returned_(std::move(on_returned)), loop_(&loop) {}

bool LoanDesk::forked() const noexcept { return ::getpid() != pid_; }

// Under the lock the clock says whether the loop has yet to look: it takes what is there kSoon behind the loan.
void LoanDesk::give_back(Returned returned, Time lent_at) {
  if (returned.views.empty()) return;
  const std::lock_guard lock(mutex_);
  if (loop_ == nullptr) return;  // with the keeper it is given back all the same
  returned_.push_back(std::move(returned));
  has_returned_.store(true, std::memory_order_relaxed);
  if (loop_->now() - lent_at >= kSoon) wake();
}

void LoanDesk::report(Damaged damaged) {
  damaged_slabs_.add();
  const std::lock_guard lock(mutex_);
  if (loop_ == nullptr || damaged_.size() >= kDamagedMax) return;
  damaged_.push_back(std::move(damaged));
  wake();
}

// Under the mutex, which keeps the loop.
void LoanDesk::wake() {
  if (std::exchange(woken_, true)) return;
  loop_->post([self = shared_from_this()] { self->tell(); });
}

void LoanDesk::tell() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = false;
    if (loop_ == nullptr) return;
  }
  on_returned_();
}

std::vector<LoanDesk::Returned> LoanDesk::take() {
  const std::lock_guard lock(mutex_);
  has_returned_.store(false, std::memory_order_relaxed);
  return std::exchange(returned_, {});
}

std::vector<LoanDesk::Damaged> LoanDesk::take_damaged() {
  const std::lock_guard lock(mutex_);
  return std::exchange(damaged_, {});
}

void LoanDesk::close() {
  const std::lock_guard lock(mutex_);
  loop_ = nullptr;
  returned_.clear();
  damaged_.clear();
}

Loan::Loan(std::shared_ptr<LoanDesk> desk, SharedMapping mapping, SharedKeeper keeper, Time lent_at)
    : desk_(std::move(desk)),
      lent_at_(lent_at),
      mapping_(std::move(mapping)),
      held_{.keeper = std::move(keeper), .views = {}} {}

Loan::~Loan() {
  if (desk_->forked()) {
    // The mapping is not there: what has its place in the child is the child's.
    static_cast<void>(new SharedMapping(std::move(mapping_)));
    return;
  }
  desk_->give_back(take(), lent_at_);
}

void Loan::add(std::uint64_t view, const std::vector<Bytes>& parts) {
  held_.views.push_back(view);
  parts_.insert(parts_.end(), parts.begin(), parts.end());
}

bool Loan::held() const {
  const std::lock_guard lock(mutex_);
  return !held_.views.empty();
}

LoanDesk::Returned Loan::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(held_, {});
}

Result<bool> Loan::end_some(std::size_t& bytes_max) {
  while (parts_cut_ < parts_.size() && bytes_max > 0) {
    const Bytes left = parts_[parts_cut_].subspan(bytes_cut_);
    const Bytes some = left.first(std::min(left.size(), bytes_max));
    if (const Status cut = mapping_->cut_loose(some); !cut) return fail(cut.error());
    bytes_max -= some.size();
    bytes_cut_ += some.size();
    if (bytes_cut_ == parts_[parts_cut_].size()) ++parts_cut_, bytes_cut_ = 0;
  }
  if (parts_cut_ < parts_.size()) return false;
  desk_->give_back(take(), lent_at_);
  return true;
}

}  // namespace kvd::client
