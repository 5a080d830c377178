// Slabs that lie in the depot's memory: copied by this thread in bounded steps, between which callers are heard and no
// further message of the depot is taken, as while payload comes in, and by callers who wait for them; then given back.
// See core.h.
#include <algorithm>
#include <utility>

#include "client/core.h"

namespace kvd::client {
namespace {

// Until what helpers have is looked for again: they have lost their core.
constexpr Duration kHelpersAgain = std::chrono::microseconds(50);
constexpr Duration kLoanAgain = std::chrono::seconds(1);
// Of views whose time is over, in one turn of the loop: a copied page takes up to a microsecond.
constexpr std::size_t kLoanBytesPerTurn = std::size_t{2} << 20;
// Views are told of together with the next request of that time: a message of their own costs both sides a system call
// and wakes the depot. So many are not kept back, of the 4,096 that a connection may have.
constexpr Duration kReleaseDelay = std::chrono::microseconds(200);
constexpr std::size_t kReleasesMax = 256;

}  // namespace

Status Core::on_get_view(Running& running, const wire::Header& header, Bytes meta) {
  const SharedMapping& memory = running.channel->memory();
  if (memory == nullptr || header.status != Code::kOk) return fail(Code::kCorrupt, "a view of memory nobody has");
  const auto view = wire::decode<wire::GetView>(header, meta);
  if (!view) return fail(view.error());
  if (Status begun = running.get->begin_view(header, *view, memory); !begun) {
    if (begun.error().code == Code::kNoSpace) release_view(view->view);
    return end_unless_corrupt(running, header, begun);
  }
  receiving_ = &running;
  receiving_last_ = header.last();
  view_ = view->view;
  copy_view();
  return {};
}

// A view of a get that has ended here: nobody reads it.
Status Core::on_stray_view(Side& side, const wire::Header& header, Bytes meta) {
  if (side.channel.memory() == nullptr) return fail(Code::kCorrupt, "a view of memory nobody has");
  const auto view = wire::decode<wire::GetView>(header, meta);
  if (!view) return fail(view.error());
  release_view(view->view);
  return {};
}

// A turn of copying. Commands may end the get between two steps: nothing lands then.
void Core::copy_view() {
  const auto copying = [this] { return receiving_ != nullptr && receiving_->get->left() > 0; };
  bool moves = true;
  for (std::size_t step = 0; step < kCopiesPerTurn && copying() && moves; ++step) {
    moves = receiving_->get->copy(kReceiveBytesMax);
    data_.channel.note_body();
    run_commands();
  }
  net::Connection& connection = data_.channel.connection();
  if (copying()) {
    connection.hold();
    return moves ? copy_timer_.arm(loop_.now()) : copy_timer_.arm_in(kHelpersAgain);
  }
  connection.resume();
  Running* const running = std::exchange(receiving_, nullptr);
  const std::uint64_t view = std::exchange(view_, 0);
  if (running != nullptr && running->get->keeps()) {
    lent_at_ = loop_.now();
    running->get->keep(view, lent_at_);
    if (!returns_timer_.armed()) returns_timer_.arm(after(lent_at_, LoanDesk::kSoon));
  } else {
    release_view(view);
  }
  if (running != nullptr) finish_get(*running, receiving_last_);
}

void Core::release_view(std::uint64_t view) {
  releases_.push_back(view);
  if (releases_.size() >= kReleasesMax) return release_timer_.arm(loop_.now());
  if (!release_timer_.armed()) release_timer_.arm_in(kReleaseDelay);
}

// In front of what is flushed next.
void Core::queue_releases() {
  release_timer_.disarm();
  const std::vector<std::uint64_t> views = std::exchange(releases_, {});
  if (views.empty() || !data_.channel.ready()) return;  // with its connection the depot has taken them all back
  for (std::size_t at = 0; at < views.size(); at += wire::kViewsPerReleaseMax) {
    const std::span some = std::span(views).subspan(at, std::min(wire::kViewsPerReleaseMax, views.size() - at));
    const wire::Header header{.request_id = kReleaseIds};
    data_.channel.connection().send(
        {.head = wire::frame(header, wire::Release{wire::U64View(some)}), .body = {}, .on_done = {}});
  }
}

void Core::send_releases() {
  queue_releases();
  if (data_.channel.ready()) data_.channel.connection().flush();
}

// What a borrow has is given back when its time is over, at the latest.
void Core::note_loans(const Running& running) {
  const OpRequest& request = op_of(running).request;
  const Time until = after(request.submitted, request.hold);
  for (const auto& loan : running.get->loans()) loans_.push_back({.until = until, .loan = loan});
  if (!running.get->loans().empty() && (!loan_timer_.armed() || until < loan_timer_at_)) {
    loan_timer_at_ = until;
    loan_timer_.arm(until);
  }
}

// What views have given back, on whichever thread, and what readers have found damaged. Views of a former connection
// went with their keeper.
void Core::take_back() {
  for (const LoanDesk::Damaged& damaged : desk_->take_damaged()) {
    report_damage(
        damaged.ns, damaged.shard, damaged.group,
        {.bytes = damaged.key, .key_bytes = static_cast<std::uint16_t>(damaged.key.size()), .native = damaged.native});
  }
  for (const LoanDesk::Returned& returned : desk_->take()) {
    if (returned.keeper != data_.channel.keeper()) continue;
    for (const std::uint64_t view : returned.views) release_view(view);
  }
  std::erase_if(loans_, [](const TimedLoan& timed) { return timed.loan.expired(); });
}

// What came back soon woke nobody.
void Core::look_for_returns() {
  take_back();
  const Time next = after(lent_at_, LoanDesk::kSoon);
  if (next > loop_.now()) returns_timer_.arm(next);
}

// Views whose time is over turn into copies, some bytes in a turn.
void Core::end_loans() {
  Time next = kNever;
  std::size_t bytes_left = kLoanBytesPerTurn;
  for (TimedLoan& timed : loans_) {
    const std::shared_ptr<Loan> loan = timed.loan.lock();
    if (loan == nullptr || !loan->held()) continue;
    if (timed.until <= loop_.now()) timed.until = end_loan(*loan, bytes_left);
    next = std::min(next, timed.until);
  }
  std::erase_if(loans_, [](const TimedLoan& timed) { return timed.loan.expired(); });
  loan_timer_at_ = next;
  if (next != kNever) loan_timer_.arm(next);
}

// When it is to go on; kNever: it has ended. Its mapping is no more good for what comes: that is made anew before.
Time Core::end_loan(Loan& loan, std::size_t& bytes_left) {
  if (bytes_left == 0) return loop_.now();
  const Time later = after(loop_.now(), kLoanAgain);  // there is no memory now: the depot waits
  if (loan.mapping() == data_.channel.memory()) {
    if (!data_.channel.renew_memory()) return later;
    prefault_.start(data_.channel.memory());
  }
  const Result<bool> ended = loan.end_some(bytes_left);
  if (!ended) return later;
  if (!*ended) return loop_.now();
  state_.get.loans_ended.add();
  return kNever;
}

// Somebody waits for a lookup or a get.
bool Core::has_waiters() const noexcept {
  return control_.running > 0 || std::ranges::any_of(running_, [](const Running& r) { return r.get != nullptr; });
}

void Core::forget_views() {
  prefault_.stop();
  view_ = 0;
  releases_.clear();
  copy_timer_.disarm();
  release_timer_.disarm();
}

}  // namespace kvd::client
