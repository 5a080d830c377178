#include "net/movers.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "net/socket_stream.h"

namespace kvd::net {
namespace {

constexpr std::size_t kListsPerThread = 2;

// What is left of `pieces` behind their first `bytes`.
std::span<iovec> behind(std::span<iovec> pieces, std::size_t bytes) noexcept {
  while (!pieces.empty() && bytes >= pieces.front().iov_len) {
    bytes -= pieces.front().iov_len;
    pieces = pieces.subspan(1);
  }
  if (bytes > 0) {
    pieces.front().iov_base = static_cast<std::byte*>(pieces.front().iov_base) + bytes;
    pieces.front().iov_len -= bytes;
  }
  return pieces;
}

}  // namespace

// One list. free -> handed -> running -> done -> free; the loop's thread touches it when it is free or done, a thread
// while it is running.
struct Movers::Move {
  std::array<iovec, kPiecesMax> pieces;
  std::size_t count = 0;
  int socket = -1;
  User* user = nullptr;  // the loop's thread only
  Moved moved;
  bool done = false;  // guarded by the mutex
  std::atomic<bool> recalled{false};
};

Result<std::unique_ptr<Movers>> Movers::start(io::Loop& loop, std::uint32_t threads, Send send) {
  KVD_CHECK(threads > 0 && threads <= kThreadsMax);
  if (!send) send = [](int socket, std::span<const iovec> pieces) { return send_to_socket(socket, pieces); };
  std::unique_ptr<Movers> movers(new Movers(loop, std::move(send)));
  movers->threads_.reserve(threads);
  try {
    while (movers->threads_.size() < threads) movers->threads_.emplace_back([m = movers.get()] { m->run(); });
  } catch (const std::system_error& error) {
    if (movers->threads_.empty()) return fail(Code::kIo, "start a thread that moves bodies", error.code().value());
  }
  const std::size_t count = movers->threads_.size() * kListsPerThread;
  const std::lock_guard lock(movers->mutex_);
  for (auto* list : {&movers->free_, &movers->handed_, &movers->done_}) list->reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    movers->moves_.push_back(std::make_unique<Move>());
    movers->free_.push_back(movers->moves_.back().get());
  }
  return movers;
}

Movers::Movers(io::Loop& loop, Send send)
    : loop_(loop), send_(std::move(send)), back_(std::make_shared<Back>(this)), timer_(loop, [this] { serve(); }) {}

Movers::~Movers() {
  KVD_CHECK(free_.size() == moves_.size() && line_.empty());  // who uses it is gone
  back_->movers = nullptr;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool Movers::is_alone(const User& user) {
  const Time now = loop_.now();
  if (last_ != &user && last_ != nullptr) alone_from_ = after(now, kQuiet);
  last_ = &user;
  return now >= alone_from_;
}

// For somebody beside whom so many stand in line.
bool Movers::has_list(std::size_t others) const noexcept {
  const bool idle = moves_.size() - free_.size() < threads_.size();
  return !free_.empty() && (idle || others > 0);
}

std::span<iovec> Movers::ask(User& user) {
  KVD_CHECK(user.move_ == nullptr);
  const bool waits = user.place_.waits();
  const bool first = line_.empty() || serving_ == &user || &line_.front() == &user;
  if (!first || !has_list(line_.size() - (waits ? 1 : 0))) {
    enter(user);
    return {};
  }
  if (waits) line_.take(user.place_);
  if (!line_.empty() && serving_ == nullptr) timer_.arm(loop_.now());  // it may leave the list to others
  return free_.back()->pieces;
}

void Movers::move(User& user, int socket, std::size_t pieces) {
  KVD_CHECK(!free_.empty() && user.move_ == nullptr && pieces > 0 && pieces <= kPiecesMax);
  Move& move = *free_.back();
  free_.pop_back();
  move.count = pieces;
  move.socket = socket;
  move.user = &user;
  move.moved = {};
  move.done = false;
  move.recalled.store(false, std::memory_order_relaxed);
  user.move_ = &move;
  {
    const std::lock_guard lock(mutex_);
    handed_.push_back(&move);
  }
  wake_.notify_one();
}

Movers::Moved Movers::recall(User& user) {
  Move& move = *user.move_;
  {
    std::unique_lock lock(mutex_);
    if (std::erase(handed_, &move) == 0) {
      move.recalled.store(true, std::memory_order_relaxed);
      ended_.wait(lock, [&move] { return move.done; });
      std::erase(done_, &move);
    }
  }
  if (!line_.empty()) timer_.arm(loop_.now());
  return give_back(user);
}

Movers::Moved Movers::give_back(User& user) {
  Move& move = *std::exchange(user.move_, nullptr);
  move.user = nullptr;
  free_.push_back(&move);
  return move.moved;
}

void Movers::enter(User& user) {
  if (user.place_.waits()) return;
  line_.enter(user.place_);
  if (!free_.empty() && !timer_.armed()) timer_.arm(loop_.now());
}

void Movers::leave(User& user) noexcept { user.place_.leave(); }

void Movers::serve() {
  while (!line_.empty() && has_list(line_.size() - 1)) {
    User& user = line_.front();
    line_.take(user.place_);
    serving_ = &user;
    user.on_mover();
    serving_ = nullptr;
  }
}

// What was done when this began; what is done meanwhile posts anew.
void Movers::deliver() {
  for (std::size_t i = 0; i < moves_.size(); ++i) {
    Move* move = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (i == 0) posted_ = false;
      if (done_.empty()) break;
      move = done_.front();
      done_.erase(done_.begin());
    }
    User& user = *move->user;
    user.on_moved(give_back(user));
  }
  serve();
}

// One of the threads.
void Movers::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopped_ || !handed_.empty(); });
    if (stopped_) return;
    Move& move = *handed_.front();
    handed_.erase(handed_.begin());
    lock.unlock();
    send_all(move);
    lock.lock();
    move.done = true;
    done_.push_back(&move);
    if (move.recalled.load(std::memory_order_relaxed)) ended_.notify_one();
    if (std::exchange(posted_, true)) continue;
    loop_.post([back = back_] {
      if (back->movers != nullptr) back->movers->deliver();
    });
  }
}

void Movers::send_all(Move& move) const {
  std::span<iovec> left = std::span(move.pieces).first(move.count);
  Moved& moved = move.moved;
  while (!left.empty() && !move.recalled.load(std::memory_order_relaxed)) {
    std::size_t count = 0;
    std::size_t bytes = 0;
    while (count < left.size() && bytes < kCallBytes) bytes += left[count++].iov_len;
    const std::size_t beyond = bytes > kCallBytes ? bytes - kCallBytes : 0;
    left[count - 1].iov_len -= beyond;
    const Result<std::size_t> sent = send_(move.socket, left.first(count));
    left[count - 1].iov_len += beyond;
    ++moved.calls;
    if (!sent) {
      moved.error = sent.error();
      return;
    }
    moved.bytes += *sent;
    if (*sent < bytes - beyond) moved.error = Error{Code::kBusy, 0, "send to the peer"};
    if (moved.error) return;
    left = behind(left, *sent);
  }
}

}  // namespace kvd::net
