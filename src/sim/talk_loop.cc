#include "sim/talk_loop.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "sched/v1_engine.h"

namespace kvd::sim {
namespace {

constexpr std::uint32_t kPromptMax = 16'384;
constexpr std::uint32_t kOutputMax = 4096;
constexpr double kLittleErrorMax = 0.01;

// The depot behind one replica: loads go over one link, one after the other.
class Link final : public sched::OtherTier {
 public:
  Link(const TalkEngine& engine, const double& now) : engine_(engine), now_(now) {}

  std::uint32_t match(const sched::V1Request& request, std::uint32_t have, std::uint32_t most) override {
    const auto stored = static_cast<std::uint32_t>(engine_.reuse * request.prompt) / kTalkBlockTokens;
    return std::max(have, std::min(stored, most));
  }
  void fetch(sched::V1Id id, std::uint32_t have, std::uint32_t to) override {
    free_at_ = std::max(free_at_, now_) + (to - have) * kTalkBlockTokens * engine_.read_token_s;
    loads.push_back({free_at_, id});
  }

  struct Load {
    double ready;
    sched::V1Id id;
  };
  std::deque<Load> loads;

 private:
  const TalkEngine& engine_;
  const double& now_;
  double free_at_ = 0;
};

class Loop {
 public:
  Loop(const TalkEngine& engine, const TalkTraffic& traffic, std::uint64_t seed)
      : costs_(engine), traffic_(traffic), link_(engine, now_) {
    KVD_CHECK(traffic.clients > 0 && traffic.clients * 2 <= traffic.requests && traffic.prompt_max <= kPromptMax);
    KVD_CHECK(!engine.constant_context || traffic.prompt_min == traffic.prompt_max);
    draw(seed);
    // One unit of the prefix cache is a whole prompt: no two share any.
    const sched::V1Config config{.blocks = engine.blocks,
                                 .block_tokens = kTalkBlockTokens,
                                 .unit_blocks = kPromptMax / kTalkBlockTokens,
                                 .chunk_tokens = engine.chunk_tokens};
    engine_ = std::make_unique<sched::V1Engine>(config, requests_, engine.reuse > 0 ? &link_ : nullptr);
  }

  TalkPoint run() {
    for (std::uint32_t i = 0; i < traffic_.clients; ++i) ask();
    while (next_ < traffic_.requests) pass();
    TalkPoint point;
    point.requests_per_s = counted_ / (now_ - counted_from_);
    point.tpot_s = decode_s_ / decoded_;
    point.ttft_s = first_s_ / counted_;
    point.preemptions = engine_->preemptions();
    while (done_ < traffic_.requests) pass();
    point.little_error = check();
    return point;
  }

 private:
  // What every run must hold when its last request has left; returns the error of Little's law.
  [[nodiscard]] double check() const {
    for (const sched::V1Request& r : requests_) KVD_CHECK(r.generated == r.output);
    KVD_CHECK(engine_->cache().used() == 0 && engine_->waiting() == 0 && engine_->running() == 0);
    const double little_error = std::fabs(present_s_ - latency_s_) / latency_s_;
    KVD_CHECK(little_error < kLittleErrorMax);
    return little_error;
  }

  void draw(std::uint64_t seed) {
    Random random(seed);
    const std::uint32_t spread = traffic_.prompt_max - traffic_.prompt_min + 1;
    const double log_more = std::log1p(-1 / std::max(traffic_.output_mean, 1.0001));
    units_.resize(traffic_.requests);
    requests_.resize(traffic_.requests);
    asked_.resize(traffic_.requests);
    first_.resize(traffic_.requests);
    for (std::uint32_t i = 0; i < traffic_.requests; ++i) {
      units_[i] = i;
      sched::V1Request& r = requests_[i];
      r.units = {&units_[i], 1, 0};
      r.prompt = traffic_.prompt_min + static_cast<std::uint32_t>(random.below(spread));
      const double output = std::ceil(std::log1p(-random.uniform()) / log_more);
      r.output = static_cast<std::uint32_t>(std::clamp(output, 1.0, static_cast<double>(kOutputMax)));
    }
  }

  void ask() {
    if (next_ == traffic_.requests) return;
    asked_[next_] = now_;
    KVD_CHECK(engine_->enqueue(next_++));
  }

  void pass() {
    while (!link_.loads.empty() && link_.loads.front().ready <= now_) {
      engine_->loaded(link_.loads.front().id);
      link_.loads.pop_front();
    }
    const sched::V1Pass pass = engine_->schedule();
    if (pass.run == 0) {
      KVD_CHECK(!link_.loads.empty());
      go_to(link_.loads.front().ready);
      return;
    }
    const std::uint64_t run = link_.loads.empty() ? pass.run : 1;  // a load may end during a longer run
    const auto passes = static_cast<double>(run);
    go_to(now_ + passes * costs_.step_s + static_cast<double>(pass.prefill_tokens) * costs_.token_s +
          static_cast<double>(pass.pairs) * costs_.pair_s + context_read(pass, passes) * costs_.context_token_s);
    began_.clear();
    ended_.clear();
    engine_->complete(run, began_, ended_);
    for (const sched::V1Id id : began_) first_[id] = now_;
    for (const sched::V1Id id : ended_) finish(id);
  }

  // Tokens whose KV the decodes of `passes` passes read.
  [[nodiscard]] double context_read(const sched::V1Pass& pass, double passes) const {
    const auto decodes = static_cast<double>(pass.decodes);
    if (costs_.constant_context) return passes * decodes * traffic_.prompt_min;
    return passes * static_cast<double>(pass.context) + decodes * passes * (passes - 1) / 2;
  }

  void go_to(double time) {
    present_s_ += (engine_->waiting() + engine_->running()) * (time - now_);
    now_ = time;
  }

  void finish(sched::V1Id id) {
    latency_s_ += now_ - asked_[id];
    if (++done_ == traffic_.requests / 4) counted_from_ = now_;
    if (done_ > traffic_.requests / 4) {
      ++counted_;
      first_s_ += first_[id] - asked_[id];
      decode_s_ += now_ - first_[id];
      decoded_ += requests_[id].output - 1;
    }
    ask();
  }

  const TalkEngine& costs_;
  const TalkTraffic& traffic_;
  double now_ = 0;
  Link link_;
  std::vector<sched::UnitId> units_;
  std::vector<sched::V1Request> requests_;
  std::unique_ptr<sched::V1Engine> engine_;
  std::vector<double> asked_;
  std::vector<double> first_;
  std::vector<sched::V1Id> began_;
  std::vector<sched::V1Id> ended_;
  std::uint32_t next_ = 0;
  std::uint32_t done_ = 0;
  double counted_ = 0;
  double counted_from_ = 0;
  double first_s_ = 0;
  double decode_s_ = 0;
  double decoded_ = 0;
  double present_s_ = 0;  // requests that the engine has, over time
  double latency_s_ = 0;  // of all requests, from the moment they were asked
};

}  // namespace

TalkPoint talk_loop(const TalkEngine& engine, const TalkTraffic& traffic, std::uint64_t seed) {
  return Loop(engine, traffic, seed).run();
}

}  // namespace kvd::sim
