#include "io/sim/sim_net.h"

#include <cerrno>
#include <utility>

#include "base/check.h"
#include "io/sim/sim_link.h"

namespace kvd::io {
namespace {

constexpr std::uint64_t kMillion = 1'000'000;
constexpr std::size_t kRepeatedBytesMax = std::size_t{64} << 10;
constexpr Duration kRepeatDelayMax = std::chrono::seconds(2);

Duration up_to(Random& random, Duration max) {
  return Duration(static_cast<Duration::rep>(random.below(static_cast<std::uint64_t>(max.count()) + 1)));
}

}  // namespace

SimNet::SimNet(Loop& loop, std::uint64_t seed, const SimNetModel& model) : loop_(loop), random_(seed), model_(model) {}

SimNet::~SimNet() = default;

void SimNet::listen(const std::string& name, OnAccept on_accept) {
  KVD_CHECK(!listeners_.contains(name));
  listeners_.emplace(name, std::move(on_accept));
}

void SimNet::unlisten(const std::string& name) { listeners_.erase(name); }

bool SimNet::draw(std::uint32_t rate, std::uint64_t& counter) {
  if (rate == 0 || !random_.chance(rate, kMillion)) return false;
  ++counter;
  return true;
}

std::uint64_t SimNet::connect(const std::string& name, OnConnect on_done) {
  const std::uint64_t id = next_attempt_++;
  Attempt& attempt = attempts_[id];
  attempt.name = name;
  attempt.on_done = std::move(on_done);
  attempt.timer = std::make_unique<Timer>(loop_, [this, id] { arrive(id); });
  if (draw(rates_.ignore, counters_.ignored)) return id;
  attempt.timer->arm_in(2 * (model_.latency_min + up_to(random_, model_.latency_max)));
  return id;
}

void SimNet::cancel(std::uint64_t attempt) { attempts_.erase(attempt); }

// The last thing done: both callbacks may do anything.
void SimNet::arrive(std::uint64_t id) {
  forget_unused();
  auto node = attempts_.extract(id);
  OnConnect on_done = std::move(node.mapped().on_done);
  const std::string& name = node.mapped().name;
  const auto listener = listeners_.find(name);
  if (listener == listeners_.end() || draw(rates_.refuse, counters_.refused)) {
    return on_done(fail(Code::kUnavailable, "connect to the depot", ECONNREFUSED));
  }
  SimLink& link = make_link(name);
  std::unique_ptr<Stream> near = link.stream(SimLink::kNear);
  if (draw(rates_.repeat, counters_.repeated)) repeat_later(link, name);
  listener->second(link.stream(SimLink::kFar));
  on_done(std::move(near));
}

SimLink& SimNet::make_link(const std::string& name) {
  ++counters_.connections;
  return *links_.emplace_back(std::make_unique<SimLink>(*this, name, random_.next()));
}

void SimNet::repeat_later(SimLink& link, const std::string& name) {
  Repeat& repeat = repeats_.emplace_back();
  repeat.name = name;
  repeat.bytes_max = random_.below(kRepeatedBytesMax);
  repeat.timer = std::make_unique<Timer>(loop_, [this, &repeat] { on_repeat(repeat); });
  repeat.timer->arm_in(up_to(random_, kRepeatDelayMax));
  repeat.bytes.reserve(repeat.bytes_max);
  link.set_tap(&repeat.bytes, repeat.bytes_max);
}

// First the second arrival, then its end.
void SimNet::on_repeat(Repeat& repeat) {
  if (repeat.stream != nullptr) {
    repeat.stream.reset();
    repeat.over = true;
    return;
  }
  for (const auto& link : links_) link->drop_tap(&repeat.bytes);
  const auto listener = listeners_.find(repeat.name);
  if (listener == listeners_.end()) {
    repeat.over = true;
    return;
  }
  SimLink& link = make_link(repeat.name);
  repeat.stream = link.stream(SimLink::kNear);
  const std::vector<iovec> pieces{{repeat.bytes.data(), repeat.bytes.size()}};
  if (!repeat.bytes.empty()) static_cast<void>(repeat.stream->send(pieces, -1));
  repeat.timer->arm_in(up_to(random_, 2 * kRepeatDelayMax));
  listener->second(link.stream(SimLink::kFar));
}

void SimNet::forget_unused() {
  std::erase_if(repeats_, [](const Repeat& repeat) { return repeat.over; });
  std::erase_if(links_, [](const auto& link) { return link->unused(); });
}

void SimNet::vanish(const std::string& name) {
  for (const auto& link : links_) {
    if (link->name() == name && !link->closed()) link->go_silent();
  }
}

void SimNet::reset(const std::string& name) {
  for (const auto& link : links_) {
    if (link->name() == name && !link->closed()) link->reset();
  }
}

std::size_t SimNet::open_links() const noexcept {
  std::size_t open = 0;
  for (const auto& link : links_) open += !link->closed();
  return open;
}

}  // namespace kvd::io
