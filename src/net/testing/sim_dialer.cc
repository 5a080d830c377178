#include "net/testing/sim_dialer.h"

#include <utility>

#include "base/check.h"

namespace kvd::net {

SimDialer::SimDialer(io::Loop& loop, io::SimNet& net, std::string name)
    : net_(net), name_(std::move(name)), deadline_(loop, [this] {
        net_.cancel(attempt_);
        finish(fail(Code::kTimeout, "connect to the depot"));
      }) {}

void SimDialer::connect(const Endpoint&, Time deadline, OnDone on_done) {
  KVD_CHECK(!busy());
  on_done_ = std::move(on_done);
  if (deadline != kNever) deadline_.arm(deadline);
  attempt_ = net_.connect(name_, [this](Result<std::unique_ptr<io::Stream>> stream) { finish(std::move(stream)); });
}

void SimDialer::cancel() {
  net_.cancel(attempt_);
  deadline_.disarm();
  on_done_ = nullptr;
}

// The last thing done with this object: on_done may destroy it.
void SimDialer::finish(Result<std::unique_ptr<io::Stream>> result) {
  deadline_.disarm();
  std::exchange(on_done_, nullptr)(std::move(result));
}

MakeDialer make_sim_dialer(io::SimNet& net, const std::string& name) {
  return [&net, name](io::Loop& loop) { return std::make_unique<SimDialer>(loop, net, name); };
}

}  // namespace kvd::net
