#include "model/deployment.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/check.h"

namespace kvd::model {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMeasuredError = 0.1;  // of a bandwidth that was measured
constexpr double kSheetError = 0.3;     // of one from a data sheet
constexpr std::uint64_t kPromptTokensMax = 1'000'000;
constexpr double kReducesPerLayer = 2;    // behind attention and feed-forward
constexpr double kActivationBytes = 2;    // also where weights have fewer
constexpr double kReplicasMax = 1 << 30;  // of an answer to how many are needed

// Copies of a token's KV in a replica's memory: ranks beyond the KV heads, and all ranks of latent attention, hold the
// same.
double copies_in_memory(const Transformer& model, std::uint32_t gpus) {
  if (model.kv_replicated()) return gpus;
  std::uint32_t kv_heads = gpus;
  for (const LayerGroup& group : model.groups) {
    if (group.kv_heads > 0) kv_heads = std::min(kv_heads, group.kv_heads);
  }
  return static_cast<double>(gpus) / kv_heads;
}

// Which way each of the errors goes: -1, 0 (as the catalogue has it) or 1.
struct Corner {
  int compute = 0;
  int memory = 0;
  int io = 0;
};

// One class for one question: the path, the hits and what follows.
class ClassWorker {
 public:
  // `all` holds what is known of every class, for the same corner. All arguments outlive this.
  ClassWorker(const Question& question, const Catalogue& catalogue, const DeploymentClass& made, const Answer& all,
              const Corner& corner)
      : q_(question),
        class_(made),
        all_(all),
        storage_(catalogue.storage(made.storage)),
        link_(catalogue.link(made.link)),
        io_factor_(1 + corner.io * io_error()) {}

  [[nodiscard]] StorePath path() const {
    StorePath path{kInfinity, kInfinity, 0, class_.overlapped};
    if (storage_ == nullptr) return path;  // engine memory: no transfer
    const double gpus = q_.gpus;
    double read = class_.per_gpu * bandwidth_at(storage_->read_bytes_per_s, class_.request_bytes);
    double write = class_.per_gpu * bandwidth_at(storage_->write_bytes_per_s, class_.request_bytes);
    path.latency_s = storage_->latency_s;
    if (link_ != nullptr) {
      read = std::min(read, bandwidth_at(link_->bytes_per_s, class_.request_bytes));
      write = std::min(write, bandwidth_at(link_->bytes_per_s, class_.request_bytes));
      path.latency_s += link_->latency_s;
    }
    if (class_.read_limit > 0) read = std::min(read, class_.read_limit);
    path.read_bytes_per_s = read * gpus;
    path.write_bytes_per_s = write * gpus;
    if (class_.name == "S3" && q_.io_bytes_per_s > 0) path.read_bytes_per_s = q_.io_bytes_per_s;
    path.read_bytes_per_s *= io_factor_;
    path.write_bytes_per_s *= io_factor_;
    return path;
  }

  // Share of prompt tokens found at a rate of requests of all replicas, of which there are so many. The last token is
  // always computed.
  [[nodiscard]] double hit(double requests_per_s, double replicas) const {
    return std::min(found(requests_per_s, replicas), 1 - 1 / q_.workload.prompt_tokens);
  }
  [[nodiscard]] double hit(double requests_per_s) const { return hit(requests_per_s, q_.replicas); }

  [[nodiscard]] ClassAnswer work(double hit) const {
    const Replica& replica = all_.replica;
    ClassAnswer a;
    a.name = class_.name;
    a.title = class_.title;
    a.hit = hit;
    a.path = path();
    Workload workload = q_.workload;
    workload.reuse = hit;
    a.prefill = model::prefill(replica, workload, a.path);
    a.batching = model::batching(replica, workload, a.prefill.ttft_depot_s, q_.growing);
    a.batch = batch_within(a.batching, q_.sla);
    const double room = all_.kv_memory_bytes / request_memory_bytes();
    const auto fits = static_cast<std::uint64_t>(std::min(room, static_cast<double>(kBatchMax)));
    a.memory_binds = fits < a.batch;
    a.batch = std::min(a.batch, fits);
    if (a.batch > 0) {
      const auto b = static_cast<double>(a.batch);
      a.ttft_s = a.batching.ttft_s(b);
      a.tpot_s = a.batching.tpot_s(b);
      a.requests_per_s = a.batching.requests_per_s(b);
    }
    return a;
  }

  // The rest of the answer; `rate` is what stores are sized for.
  void finish(ClassAnswer& a, double rate) const {
    const Replica& replica = all_.replica;
    Workload workload = q_.workload;
    workload.reuse = a.hit;
    a.break_even_bytes_per_s = break_even_bytes_per_s(replica, workload);
    a.saturating_bytes_per_s = saturating_bytes_per_s(replica, workload);
    const std::uint64_t context = q_.model->context_tokens == 0 ? kPromptTokensMax : q_.model->context_tokens;
    a.shortest_prompt = a.hit > 0 ? model::shortest_prompt(replica, workload, a.path, context) : 0;
    StorePath twice = a.path;
    twice.read_bytes_per_s *= 2;
    a.speedup_twice_io = model::prefill(replica, workload, twice).speedup;
    workload.reuse = a.hit + (1 - a.hit) / 10;
    a.speedup_more_hits = model::prefill(replica, workload, a.path).speedup;
    a.gpus_needed = replicas_for(all_.requests_per_s) * q_.gpus;
    a.sizing = sizing(a, rate);
    a.cost_per_million = cost(a.requests_per_s, a.sizing);
    if (storage_ != nullptr && !q_.prices.terabyte_month.contains(class_.storage)) a.unpriced = class_.storage;
  }

 private:
  [[nodiscard]] double io_error() const {
    const bool measured = (storage_ == nullptr || storage_->origin.measured_value("read_bytes_per_s")) &&
                          (link_ == nullptr || link_->origin.measured_value("bytes_per_s"));
    return measured ? kMeasuredError : kSheetError;
  }

  // Every replica finds what any of them stored: the store is one, or requests go where their prefix is.
  [[nodiscard]] bool pooled() const { return class_.shared || q_.affinity; }
  // Share of the reuse that can be found at all: otherwise a replica finds what it stored itself.
  [[nodiscard]] double reachable(double replicas) const { return pooled() ? 1 : 1 / replicas; }

  // What the stores of so many replicas hold together.
  [[nodiscard]] double capacity_bytes(double replicas) const {
    if (storage_ == nullptr) return memory_tokens() * all_.kv_token_bytes * replicas;
    return storage_->capacity_bytes * (storage_->service ? 1.0 : class_.per_gpu * q_.gpus * replicas);
  }

  [[nodiscard]] double found(double requests_per_s, double replicas) const {
    if (class_.per_gpu <= 0) return 0;  // nothing is kept
    const double tokens = capacity_bytes(replicas) / all_.kv_token_bytes;
    if (q_.hit_curve) return q_.hit_curve(tokens, pooled());
    double hit = q_.workload.reuse * reachable(replicas);
    for (int i = 0; i < 50; ++i) {  // fewer hits, more to store, fewer hits: converges within a few rounds
      const double filled = filled_tokens_per_s(requests_per_s, hit);
      const double kept = filled > 0 ? 1 - std::exp(-tokens / (filled * q_.idle_s)) : 1;
      hit = q_.workload.reuse * reachable(replicas) * kept;
    }
    return hit;
  }

  // The fewest replicas that serve the rate with the hits of as many stores; 0 when the SLA can't be met. A trace's
  // private stores were dealt their requests for the question's replicas: their hits are taken as they are.
  [[nodiscard]] double replicas_for(double rate) const {
    const auto each = [&](double replicas) { return work(hit(rate, replicas)).requests_per_s; };
    const auto enough = [&](double replicas) {
      const double served = each(replicas);
      return served > 0 && replicas * served >= rate * (1 - 1e-9);
    };
    if (!pooled()) {
      // More replicas find less each: steps up from one reach the fewest.
      const double dealt = q_.replicas;
      for (double replicas = 1; replicas < kReplicasMax;) {
        const double served = each(q_.hit_curve ? dealt : replicas);
        if (served <= 0) return 0;
        const double needed = std::max(1.0, std::ceil(rate / served - 1e-9));
        if (needed <= replicas || q_.hit_curve) return needed;
        replicas = needed;
      }
      return 0;
    }
    double high = 1;  // more replicas store more: what is enough stays so
    while (!enough(high)) {
      if (high >= kReplicasMax) return 0;
      high *= 2;
    }
    for (double low = std::floor(high / 2); high - low > 1;) {
      const double middle = std::floor((low + high) / 2);
      (enough(middle) ? high : low) = middle;
    }
    return high;
  }

  // Dollars per million prompt and output tokens at full load; 0 where a price is missing. A service is paid for 99 %
  // of the hits.
  [[nodiscard]] double cost(double requests_per_s, const Sizing& s) const {
    if (q_.prices.gpu_hour <= 0 || requests_per_s <= 0) return 0;
    double hour = q_.prices.gpu_hour * q_.gpus;
    if (storage_ != nullptr) {
      const auto price = q_.prices.terabyte_month.find(class_.storage);
      if (price == q_.prices.terabyte_month.end()) return 0;
      hour += (storage_->service ? s.capacity_99_bytes : s.capacity_bytes) / q_.replicas * 1e-12 * price->second /
              (365.0 * 24 / 12);
    }
    const double tokens = q_.workload.prompt_tokens + q_.workload.output_tokens;
    return hour / (requests_per_s * 3600 * tokens) * 1e6;
  }

  [[nodiscard]] double request_memory_bytes() const {
    return q_.model->kv_bytes(q_.workload.prompt_tokens + q_.workload.output_tokens, q_.kv_bytes_per_element) *
           copies_in_memory(*q_.model, q_.gpus);
  }
  // Tokens of engine memory that the running requests leave, one replica.
  [[nodiscard]] double memory_tokens() const {
    const double running = static_cast<double>(all_.vanilla.batch) * request_memory_bytes();
    return std::max(0.0, all_.kv_memory_bytes - running) / all_.replica.kv_token_bytes;
  }
  [[nodiscard]] double filled_tokens_per_s(double requests_per_s, double hit) const {
    return requests_per_s * (q_.workload.prompt_tokens * (1 - hit) + q_.workload.output_tokens);
  }

  // Bandwidth in requests of the class's size, in this corner.
  [[nodiscard]] double rate_of(const Bandwidth& bandwidth) const {
    return bandwidth_at(bandwidth, class_.request_bytes) * io_factor_;
  }

  [[nodiscard]] Sizing sizing(const ClassAnswer& a, double rate) const {
    Sizing s;
    s.capacity_bytes = capacity_bytes(q_.replicas);
    const double filled = filled_tokens_per_s(rate, a.hit) * all_.kv_token_bytes;
    s.write_bytes_per_s = filled;
    s.read_bytes_per_s = rate * a.hit * q_.workload.prompt_tokens * all_.kv_token_bytes;
    s.capacity_90_bytes = capacity_for(0.90, rate);
    s.capacity_99_bytes = capacity_for(0.99, rate);
    if (storage_ == nullptr || storage_->service) return s;
    const double gpus = static_cast<double>(q_.gpus) * q_.replicas;
    double drives = std::max({s.read_bytes_per_s / rate_of(storage_->read_bytes_per_s),
                              s.write_bytes_per_s / rate_of(storage_->write_bytes_per_s),
                              s.capacity_99_bytes / storage_->capacity_bytes});
    if (storage_->drive_writes_per_day > 0 && filled > 0) {
      s.write_budget_bytes_per_s =
          storage_->capacity_bytes * storage_->drive_writes_per_day / 86'400 * class_.per_gpu * gpus;
      const double endurance_bytes_per_s = storage_->capacity_bytes * storage_->drive_writes_per_day / 86'400;
      drives = std::max(drives, filled / endurance_bytes_per_s);
      s.drive_life_years = kEnduranceYears * s.write_budget_bytes_per_s / filled;
    }
    s.drives_per_gpu = drives / gpus;
    if (link_ != nullptr && std::isfinite(a.saturating_bytes_per_s)) {
      s.links_per_gpu = a.saturating_bytes_per_s / q_.gpus / rate_of(link_->bytes_per_s);
    }
    return s;
  }

  // Bytes that find `share` of the reuse, all replicas: they fill as they do with that share found, not with what the
  // class finds now.
  [[nodiscard]] double capacity_for(double share, double rate) const {
    if (!q_.hit_curve) {
      const double hit = share * q_.workload.reuse * reachable(q_.replicas);
      return -std::log(1 - share) * q_.idle_s * filled_tokens_per_s(rate, hit) * all_.kv_token_bytes;
    }
    const double wanted = share * q_.hit_curve(kInfinity, pooled());
    double low = 0;
    double high = 1e15 / all_.kv_token_bytes;
    for (int i = 0; i < 60; ++i) {
      const double middle = (low + high) / 2;
      (q_.hit_curve(middle, pooled()) >= wanted ? high : low) = middle;
    }
    return high * all_.kv_token_bytes;
  }

  const Question& q_;
  const DeploymentClass& class_;
  const Answer& all_;
  const Storage* storage_;
  const Link* link_;
  double io_factor_;
};

// What has a range, and its value in one corner.
struct Ranged {
  Range ClassAnswer::* range;
  double (*value)(const ClassAnswer& a);
};
constexpr double or_infinity(double value) { return value > 0 ? value : kInfinity; }
constexpr std::array<Ranged, 13> kRanged{{
    {&ClassAnswer::ttft_range, [](const ClassAnswer& a) { return a.prefill.ttft_depot_s; }},
    {&ClassAnswer::speedup_range, [](const ClassAnswer& a) { return a.prefill.speedup; }},
    {&ClassAnswer::tpot_range, [](const ClassAnswer& a) { return a.batch > 0 ? a.tpot_s : a.batching.tpot_one_s; }},
    {&ClassAnswer::batch_range, [](const ClassAnswer& a) { return static_cast<double>(a.batch); }},
    {&ClassAnswer::requests_range, [](const ClassAnswer& a) { return a.requests_per_s; }},
    {&ClassAnswer::gpus_range, [](const ClassAnswer& a) { return or_infinity(a.gpus_needed); }},
    {&ClassAnswer::break_even_range, [](const ClassAnswer& a) { return a.break_even_bytes_per_s; }},
    {&ClassAnswer::saturating_range, [](const ClassAnswer& a) { return a.saturating_bytes_per_s; }},
    {&ClassAnswer::shortest_prompt_range,
     [](const ClassAnswer& a) { return or_infinity(static_cast<double>(a.shortest_prompt)); }},
    {&ClassAnswer::cost_range, [](const ClassAnswer& a) { return or_infinity(a.cost_per_million); }},
    {&ClassAnswer::drive_life_range, [](const ClassAnswer& a) { return a.sizing.drive_life_years; }},
    {&ClassAnswer::drives_range, [](const ClassAnswer& a) { return a.sizing.drives_per_gpu; }},
    {&ClassAnswer::links_range, [](const ClassAnswer& a) { return a.sizing.links_per_gpu; }},
}};

Range start(double value) { return {value, value, value}; }
void widen(Range& range, double value) {
  range.low = std::min(range.low, value);
  range.high = std::max(range.high, value);
}
void start_ranges(ClassAnswer& a) {
  for (const Ranged& each : kRanged) a.*each.range = start(each.value(a));
}
void widen_ranges(ClassAnswer& a, const ClassAnswer& corner) {
  for (const Ranged& each : kRanged) widen(a.*each.range, each.value(corner));
}

std::string show_gb(double bytes) { return fmt::format("{:.1f} GB", bytes * 1e-9); }

std::expected<Answer, std::string> check(const Question& q) {
  Answer all;
  all.kv_token_bytes = q.model->kv_token_bytes(q.kv_bytes_per_element);
  if (all.kv_token_bytes <= 0) {
    return std::unexpected(q.model->name +
                           " keeps no KV for its tokens (recurrent layers only): there is nothing to store");
  }
  all.weight_bytes = q.model->params() * q.weight_bytes_per_param;
  const double tokens = q.workload.prompt_tokens + q.workload.output_tokens;
  const double request = q.model->kv_bytes(tokens, q.kv_bytes_per_element) * copies_in_memory(*q.model, q.gpus);
  const auto room = kv_memory_bytes(q, request, fmt::format("one request {} tokens", tokens), "--precision");
  if (!room) return std::unexpected(room.error());
  all.kv_memory_bytes = *room;
  if (q.model->context_tokens > 0 && tokens > static_cast<double>(q.model->context_tokens)) {
    return std::unexpected(fmt::format(
        "prompt {:.0f} + output {:.0f} = {:.0f} tokens, but the context of {} is {}: expected "
        "shorter requests or a model with a longer context",
        q.workload.prompt_tokens, q.workload.output_tokens, tokens, q.model->name, q.model->context_tokens));
  }
  return all;
}

}  // namespace

std::expected<double, std::string> kv_memory_bytes(const Question& q, double kv_bytes, const std::string& kv,
                                                   const char* precision) {
  const double weights = q.model->params() * q.weight_bytes_per_param;
  const double memory = q.device->memory_bytes * q.gpus * kMemoryUsed;
  const double left = memory - weights;
  if (left >= kv_bytes) return left;
  return std::unexpected(fmt::format(
      "{} does not fit {} x {}: weights {:.3g}e9 parameters x {:g} B = {}, KV of {} = {}, together {}; memory {} x {} "
      "x {:g} = {}. Use at least {:.0f} GPUs, or a smaller {}",
      q.model->name, q.gpus, q.device->name, q.model->params() * 1e-9, q.weight_bytes_per_param, show_gb(weights), kv,
      show_gb(kv_bytes), show_gb(weights + kv_bytes), q.gpus, show_gb(q.device->memory_bytes), kMemoryUsed,
      show_gb(memory), std::ceil((weights + kv_bytes) / (q.device->memory_bytes * kMemoryUsed)), precision));
}

PassReduces pass_reduces(const Question& q) noexcept {
  const double reduces = kReducesPerLayer * q.model->layers();
  return {reduces * q.device->all_reduce_latency_s(q.gpus),
          reduces * q.model->hidden * kActivationBytes * q.device->all_reduce_byte_s(q.gpus)};
}

std::vector<std::string> reduce_assumptions(const Question& q) {
  const Device& d = *q.device;
  std::vector<std::string> out;
  if (q.gpus > 1 && d.reduce_link.empty()) {
    out.push_back(fmt::format(
        "all-reduces between the {} GPUs take no time: {} names no reduce_link in the catalogue; {} longer with one",
        q.gpus, d.name, q.compute_efficiency > 0 ? "decode steps are" : "prompts and decode steps are"));
  }
  if (q.gpus > 2 && d.reduce_latency_s > 0) {
    out.push_back(fmt::format("an all-reduce of {} GPUs has the latency of one of two over {}, {:.3g} us", q.gpus,
                              d.reduce_link, d.reduce_latency_s * 1e6));
  }
  return out;
}

Replica replica_of(const Question& q, double compute_factor, double memory_factor) {
  const double efficiency = q.compute_efficiency > 0 ? q.compute_efficiency : q.device->compute_efficiency;
  Replica replica;
  replica.flops_per_s = q.device->peak_flops_per_s(q.precision) * efficiency * q.gpus * compute_factor;
  replica.memory_bytes_per_s = q.device->memory_bytes_per_s * q.device->memory_efficiency * q.gpus * memory_factor;
  replica.token_flops = q.model->token_flops();
  replica.attention = q.model->attention();
  replica.mode = q.attention;
  const double kv_bytes = q.kv_bytes_per_element * copies_in_memory(*q.model, q.gpus);  // of an element
  replica.kv_token_bytes = q.model->kv_token_bytes(kv_bytes);
  replica.windows = q.model->windows(kv_bytes);
  replica.state_bytes = q.model->state_bytes(kv_bytes);
  replica.experts = q.model->experts(q.weight_bytes_per_param);
  const PassReduces reduces = pass_reduces(q);
  replica.reduce_decode_s = reduces.token_s / compute_factor;
  if (q.compute_efficiency <= 0) replica.reduce_token_s = replica.reduce_decode_s;
  replica.seq_s = q.device->seq_s;
  const double weights_s = q.model->params_active() * q.weight_bytes_per_param / replica.memory_bytes_per_s;
  replica.tpot_one_s = q.tpot_one_s > 0 ? q.tpot_one_s
                                        : weights_s + q.device->layer_s * q.model->layers() + q.device->step_s +
                                              q.device->seq_s + reduces.pass_s + replica.reduce_decode_s;
  return replica;
}

namespace {

// The whole answer in one corner, without ranges. `rate` is that of the answer; 0 = to be found here.
Answer work_out(const Question& q, const Catalogue& catalogue, const Answer& checked, const Corner& corner,
                double rate) {
  Answer all = checked;
  all.replica = replica_of(q, 1 + corner.compute * q.device->error, 1 + corner.memory * q.device->error);
  static const DeploymentClass kNothing{.name = "vanilla",
                                        .title = "nothing kept",
                                        .storage = "hbm",
                                        .link = "",
                                        .per_gpu = 0,
                                        .source = "what the others are compared with"};
  const ClassWorker vanilla(q, catalogue, kNothing, all, corner);
  all.vanilla = vanilla.work(0);
  double served = q.requests_per_s;
  const auto depot = std::ranges::find(catalogue.classes(), "S3", &DeploymentClass::name);
  const double reuse = q.hit_curve ? q.hit_curve(kInfinity, true) : q.workload.reuse;
  if (depot != catalogue.classes().end()) {
    const ClassWorker worker(q, catalogue, *depot, all, corner);
    const ClassAnswer whole = worker.work(std::min(reuse, 1 - 1 / q.workload.prompt_tokens));
    all.talk = whole.prefill;
    if (served <= 0) served = whole.requests_per_s * q.replicas;
  }
  if (served <= 0) served = all.vanilla.requests_per_s * q.replicas;
  all.requests_per_s = rate > 0 ? rate : served;
  all.rate_range = start(served);
  vanilla.finish(all.vanilla, served);
  for (const DeploymentClass& made : catalogue.classes()) {
    const ClassWorker worker(q, catalogue, made, all, corner);
    ClassAnswer a = worker.work(worker.hit(all.requests_per_s));
    worker.finish(a, served);
    all.classes.push_back(std::move(a));
  }
  return all;
}

}  // namespace

std::expected<Answer, std::string> answer(const Question& q, const Catalogue& catalogue) {
  KVD_CHECK(q.model != nullptr && q.device != nullptr && q.gpus > 0 && q.replicas > 0);
  const auto checked = check(q);
  if (!checked) return checked;
  Answer all = work_out(q, catalogue, *checked, {}, 0);
  all.tpot_one_range = start(all.replica.tpot_one_s);
  start_ranges(all.vanilla);
  for (ClassAnswer& a : all.classes) start_ranges(a);
  for (const int compute : {-1, 1}) {
    for (const int memory : {-1, 1}) {
      for (const int io : {-1, 1}) {
        const Answer corner = work_out(q, catalogue, *checked, {compute, memory, io}, all.requests_per_s);
        widen(all.rate_range, corner.rate_range.mid);
        widen(all.tpot_one_range, corner.replica.tpot_one_s);
        widen_ranges(all.vanilla, corner.vanilla);
        for (std::size_t i = 0; i < all.classes.size(); ++i) widen_ranges(all.classes[i], corner.classes[i]);
      }
    }
  }
  return all;
}

}  // namespace kvd::model
