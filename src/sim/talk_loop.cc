#include "sim/talk_loop.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "sched/v1_engine.h"

namespace kvd::sim {
namespace {

constexpr std::uint32_t kPromptMax = 16'384;
constexpr std::uint32_t kOutputMax = 4096;
constexpr double kLittleErrorMax = 0.01;

// The depot behind one replica: loads go over one link, one after the other, or inside the pass that needs them.
class Link final : public sched::OtherTier {
 public:
  // `stored`: by request, the tokens of its prompt that the depot has. All arguments outlive this.
  Link(const TalkEngine& engine, const std::vector<sched::V1Request>& requests,
       const std::vector<std::uint32_t>& stored, const double& now)
      : engine_(engine), requests_(requests), stored_(stored), now_(now) {}

  std::uint32_t match(const sched::V1Request& request, std::uint32_t have, std::uint32_t most) override {
    const auto id = static_cast<std::size_t>(&request - requests_.data());
    return std::max(have, std::min(stored_[id] / kTalkBlockTokens, most));
  }
  void fetch(sched::V1Id id, std::uint32_t have, std::uint32_t to) override {
    const double seconds = (to - have) * kTalkBlockTokens * engine_.read_token_s;
    if (layerwise()) {
      pass_load_s_ += seconds;
      return;
    }
    free_at_ = std::max(free_at_, now_) + seconds;
    loads.push_back({free_at_, id});
  }
  [[nodiscard]] bool layerwise() const override { return engine_.layers > 0; }

  // How long the pass takes that computes for `compute_s`, with the loads that were asked for when it was decided: the
  // longer of the two, and a layer of the other.
  double overlap(double compute_s) {
    const double load_s = std::exchange(pass_load_s_, 0);
    return load_s > 0 ? std::max(compute_s, load_s) + std::min(compute_s, load_s) / engine_.layers : compute_s;
  }

  struct Load {
    double ready;
    sched::V1Id id;
  };
  std::deque<Load> loads;

 private:
  const TalkEngine& engine_;
  const std::vector<sched::V1Request>& requests_;
  const std::vector<std::uint32_t>& stored_;
  const double& now_;
  double free_at_ = 0;
  double pass_load_s_ = 0;
};

class Loop {
 public:
  Loop(const TalkEngine& engine, const TalkTraffic& traffic, std::uint64_t seed)
      : costs_(engine), traffic_(traffic), link_(engine, requests_, stored_, now_) {
    KVD_CHECK(traffic.clients > 0 && traffic.clients * 2 <= traffic.requests && traffic.prompt_max <= kPromptMax);
    KVD_CHECK(traffic.turns_min > 0 && traffic.turns_min <= traffic.turns_max);
    KVD_CHECK(!engine.constant_context || (traffic.prompt_min == traffic.prompt_max && traffic.turns_max == 1));
    draw(seed);
    // One unit of the prefix cache is a whole prompt: no two share any.
    sched::V1Config config = sched::vllm_v1(engine.blocks, kTalkBlockTokens);
    config.unit_blocks = kPromptMax / kTalkBlockTokens;
    config.chunk_tokens = engine.chunk_tokens;
    engine_ = std::make_unique<sched::V1Engine>(config, requests_, engine.reuse > 0 ? &link_ : nullptr);
  }

  TalkPoint run() {
    for (std::uint32_t i = 0; i < traffic_.clients; ++i) begin_conversation();
    while (done_ < traffic_.requests) pass();
    TalkPoint point;
    point.requests_per_s = counted_ / (now_ - counted_from_);
    point.tpot_s = decode_s_ / decoded_;
    point.ttft_s = first_s_ / counted_;
    point.preemptions = engine_->preemptions();
    point.prompt_mean = prompt_tokens_ / counted_;
    point.loaded_share = loaded_tokens_ / prompt_tokens_;
    closing_ = true;
    while (done_ < asked_count_) pass();
    point.little_error = check();
    return point;
  }

 private:
  // What every run must hold when its last request has left; returns the error of Little's law.
  [[nodiscard]] double check() const {
    KVD_CHECK(made_tokens_ == asked_tokens_);
    KVD_CHECK(engine_->cache().used() == 0 && engine_->waiting() == 0 && engine_->running() == 0);
    const double little_error = std::fabs(present_s_ - latency_s_) / latency_s_;
    KVD_CHECK(little_error < kLittleErrorMax);
    return little_error;
  }

  // So many conversations that no client runs out of them: of those that are begun, `requests` and what ends in the
  // same pass as the last of these has been asked, and every client has one that goes on.
  void draw(std::uint64_t seed) {
    Random random(seed);
    const std::size_t most = traffic_.requests + std::size_t{traffic_.clients} * (std::size_t{traffic_.turns_max} + 1);
    while (requests_.size() < most) draw_conversation(random);
    units_.resize(requests_.size());
    for (std::uint32_t i = 0; i < requests_.size(); ++i) {
      units_[i] = i;
      requests_[i].units = {&units_[i], 1, 0};
    }
    asked_.resize(requests_.size());
    first_.resize(requests_.size());
  }

  void draw_conversation(Random& random) {
    conversations_.push_back(static_cast<std::uint32_t>(requests_.size()));
    const std::uint32_t spread = traffic_.turns_max - traffic_.turns_min;
    const auto turns = traffic_.turns_min + (spread > 0 ? static_cast<std::uint32_t>(random.below(spread + 1)) : 0);
    std::uint32_t prompt =
        traffic_.prompt_min + static_cast<std::uint32_t>(random.below(traffic_.prompt_max - traffic_.prompt_min + 1));
    std::uint32_t before = 0;  // the prompt of the turn before
    for (std::uint32_t turn = 0; turn < turns && prompt <= kPromptMax; ++turn) {
      sched::V1Request r;
      r.prompt = prompt;
      r.output = draw_output(random);
      const bool alone = traffic_.turns_max == 1;
      stored_.push_back(alone ? static_cast<std::uint32_t>(costs_.reuse * prompt) : before);
      last_.push_back(false);
      requests_.push_back(r);
      before = prompt;
      prompt += r.output + traffic_.user_tokens;
    }
    last_.back() = true;
  }

  std::uint32_t draw_output(Random& random) const {
    if (traffic_.output_max > 0) {
      return traffic_.output_min +
             static_cast<std::uint32_t>(random.below(traffic_.output_max - traffic_.output_min + 1));
    }
    const double log_more = std::log1p(-1 / std::max(traffic_.output_mean, 1.0001));
    const double output = std::ceil(std::log1p(-random.uniform()) / log_more);
    return static_cast<std::uint32_t>(std::clamp(output, 1.0, static_cast<double>(kOutputMax)));
  }

  void begin_conversation() {
    KVD_CHECK(next_ < conversations_.size());
    ask(conversations_[next_++]);
  }

  void ask(sched::V1Id id) {
    ++asked_count_;
    asked_tokens_ += requests_[id].output;
    asked_[id] = now_;
    KVD_CHECK(engine_->enqueue(id));
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
    const double compute_s = passes * costs_.step_s + static_cast<double>(pass.prefill_tokens) * costs_.token_s +
                             static_cast<double>(pass.pairs) * costs_.pair_s +
                             context_read(pass, passes) * costs_.context_token_s;
    go_to(now_ + link_.overlap(compute_s));
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
    const sched::V1Request& r = requests_[id];
    latency_s_ += now_ - asked_[id];
    made_tokens_ += r.generated;
    if (++done_ == traffic_.requests / 4) counted_from_ = now_;
    if (done_ > traffic_.requests / 4) {
      ++counted_;
      first_s_ += first_[id] - asked_[id];
      decode_s_ += now_ - first_[id];
      decoded_ += r.output - 1;
      prompt_tokens_ += r.prompt;
      loaded_tokens_ += r.loaded_tokens;
    }
    if (closing_) return;
    if (last_[id]) {
      begin_conversation();
    } else {
      ask(id + 1);
    }
  }

  const TalkEngine& costs_;
  const TalkTraffic& traffic_;
  double now_ = 0;
  std::vector<sched::UnitId> units_;
  std::vector<sched::V1Request> requests_;    // turn after turn, conversation after conversation
  std::vector<std::uint32_t> stored_;         // by request: what the depot has of its prompt
  std::vector<bool> last_;                    // by request: the conversation's last turn
  std::vector<std::uint32_t> conversations_;  // by their first request
  Link link_;
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
  double prompt_tokens_ = 0;
  double loaded_tokens_ = 0;
  // The run's own books.
  bool closing_ = false;  // nobody asks any more
  std::uint32_t asked_count_ = 0;
  std::uint64_t asked_tokens_ = 0;
  std::uint64_t made_tokens_ = 0;
  double present_s_ = 0;  // requests that the engine has, over time
  double latency_s_ = 0;  // of all requests, from the moment they were asked
};

}  // namespace

TalkPoint talk_loop(const TalkEngine& engine, const TalkTraffic& traffic, std::uint64_t seed) {
  return Loop(engine, traffic, seed).run();
}

}  // namespace kvd::sim
