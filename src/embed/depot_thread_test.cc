// The end of an embedded depot whose node ends, and of one whose device never answers.
#include "embed/depot_thread.h"

#include <cstdlib>
#include <latch>

#include <gtest/gtest.h>

namespace kvd::embed {
namespace {

// What a test sees of a node and does to it.
struct Script {
  bool drains = true;
  io::Callback late;         // the end of a drain that takes longer; the loop's thread
  io::Loop* loop = nullptr;  // the node's
  std::latch answer{1};      // the device does: the node can end
  std::latch gone{1};
};

// A node that keeps nothing, and ends when its device answers.
class ScriptedNode final : public node::Node {
 public:
  explicit ScriptedNode(std::shared_ptr<Script> script) : script_(std::move(script)) {}
  ~ScriptedNode() override {
    script_->answer.wait();
    script_->gone.count_down();
  }
  [[nodiscard]] std::vector<std::string> addresses() const override { return {}; }
  [[nodiscard]] std::vector<std::string> resp_addresses() const override { return {}; }
  [[nodiscard]] std::string http_address() const override { return {}; }
  Status adopt(std::unique_ptr<io::Stream>) override { return fail(Code::kUnavailable, "it takes no clients"); }
  Status adopt_resp(std::unique_ptr<io::Stream>) override { return fail(Code::kUnavailable, "it takes no clients"); }
  void set_authority(std::shared_ptr<const auth::Authority>) override {}
  void judge_certificates() override {}
  Status recover(std::string*) override { return {}; }
  void drain(Duration, io::Callback on_done) override {
    if (script_->drains) return on_done();
    script_->late = std::move(on_done);
  }
  [[nodiscard]] std::string stats_json() const override { return "{}"; }
  [[nodiscard]] store::Store& store() noexcept override { std::abort(); }

 private:
  std::shared_ptr<Script> script_;  // owners: the test and the node, either of which may go first
};

std::unique_ptr<DepotThread> start(const std::shared_ptr<Script>& script, const DepotLimits& limits) {
  auto depot = std::make_unique<Depot>();
  depot->loop = std::move(*io::make_real_loop());
  script->loop = depot->loop.get();
  depot->node = std::make_unique<ScriptedNode>(script);
  return std::move(*DepotThread::start(std::move(depot), limits));
}

constexpr DepotLimits kShort{.drain = Millis(20), .close = Millis(20)};

TEST(DepotThread, EndsItsNode) {
  const auto script = std::make_shared<Script>();
  script->answer.count_down();
  auto thread = start(script, {});
  thread.reset();
  EXPECT_TRUE(script->gone.try_wait());
}

TEST(DepotThread, LeavesANodeBehindWhoseDeviceHangs) {
  const auto script = std::make_shared<Script>();
  auto thread = start(script, kShort);
  thread.reset();
  EXPECT_FALSE(script->gone.try_wait());
  script->answer.count_down();
  script->gone.wait();  // late, and in order
}

TEST(DepotThread, LeavesANodeBehindThatIsNotDrainedInTime) {
  const auto script = std::make_shared<Script>();
  script->drains = false;
  script->answer.count_down();
  auto thread = start(script, kShort);
  thread.reset();
  EXPECT_FALSE(script->gone.try_wait());
  script->loop->post([script] { script->late(); });
  script->gone.wait();
}

}  // namespace
}  // namespace kvd::embed
