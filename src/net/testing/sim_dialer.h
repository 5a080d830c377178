// SimDialer: connects within a simulated network, to the one name that it was made for, whatever the endpoint says. For
// tests; belongs to the network's loop.
#pragma once

#include <memory>
#include <string>

#include "io/sim/sim_net.h"
#include "net/dialer.h"

namespace kvd::net {

class SimDialer final : public Dialer {
 public:
  SimDialer(io::Loop& loop, io::SimNet& net, std::string name);
  ~SimDialer() override { cancel(); }
  SimDialer(const SimDialer&) = delete;
  SimDialer& operator=(const SimDialer&) = delete;

  void connect(const Endpoint& endpoint, Time deadline, OnDone on_done) override;
  void cancel() override;
  [[nodiscard]] bool busy() const noexcept override { return on_done_ != nullptr; }

 private:
  void finish(Result<std::unique_ptr<io::Stream>> result);

  io::SimNet& net_;
  const std::string name_;
  io::Timer deadline_;
  std::uint64_t attempt_ = 0;
  OnDone on_done_;
};

// For a client whose connections go there.
MakeDialer make_sim_dialer(io::SimNet& net, const std::string& name);

}  // namespace kvd::net
