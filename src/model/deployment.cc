#include "model/deployment.h"

#include <algorithm>
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

// Error factors of a corner: each 1, or 1 plus or minus its error.
struct Corner {
  double compute = 1;
  double memory = 1;
  double io = 1;
};

// One class for one question: the path, the hits and what follows.
class ClassWorker {
 public:
  ClassWorker(const Question& question, const Catalogue& catalogue, const DeploymentClass& made, const Answer& all)
      : q_(question),
        class_(made),
        all_(all),
        storage_(catalogue.storage(made.storage)),
        link_(catalogue.link(made.link)) {}

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
    return path;
  }

  // Tokens that all replicas' stores of this class hold together.
  [[nodiscard]] double capacity_tokens() const {
    if (storage_ != nullptr) return capacity_bytes() / all_.kv_token_bytes;
    return memory_tokens() * q_.replicas;
  }

  [[nodiscard]] double capacity_bytes() const {
    if (storage_ == nullptr) return memory_tokens() * all_.kv_token_bytes * q_.replicas;
    return storage_->capacity_bytes * (storage_->service ? 1.0 : class_.per_gpu * q_.gpus * q_.replicas);
  }

  // Share of prompt tokens found at a rate of requests of all replicas. The last token is always computed.
  [[nodiscard]] double hit(double requests_per_s) const {
    return std::min(found(requests_per_s), 1 - 1 / q_.workload.prompt_tokens);
  }

  [[nodiscard]] double found(double requests_per_s) const {
    const double tokens = capacity_tokens();
    if (q_.hit_curve) return q_.hit_curve(tokens, class_.shared || q_.affinity);
    // With affinity all replicas' private stores work like one; without it a replica finds what it stored itself.
    const double reachable = class_.shared || q_.affinity ? 1.0 : 1.0 / q_.replicas;
    double hit = q_.workload.reuse * reachable;
    for (int i = 0; i < 50; ++i) {  // fewer hits, more to store, fewer hits: converges within a few rounds
      const double filled = filled_tokens_per_s(requests_per_s, hit);
      const double kept = filled > 0 ? 1 - std::exp(-tokens / (filled * q_.idle_s)) : 1;
      hit = q_.workload.reuse * reachable * kept;
    }
    return hit;
  }

  [[nodiscard]] ClassAnswer work(double hit, const StorePath& path, const Replica& replica) const {
    ClassAnswer a;
    a.name = class_.name;
    a.title = class_.title;
    a.hit = hit;
    a.path = path;
    Workload workload = q_.workload;
    workload.reuse = hit;
    a.prefill = model::prefill(replica, workload, path);
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

  void finish(ClassAnswer& a) const {
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
    if (a.requests_per_s > 0) {
      a.gpus_needed = std::ceil(all_.requests_per_s / a.requests_per_s - 1e-9) * q_.gpus;
    }
    a.sizing = sizing(a);
    a.cost_per_million = cost(a.requests_per_s, a.sizing);
  }

  // Dollars per million prompt and output tokens at full load. A service is paid for 99 % of the hits.
  [[nodiscard]] double cost(double requests_per_s, const Sizing& s) const {
    if (q_.prices.gpu_hour <= 0 || requests_per_s <= 0) return 0;
    double hour = q_.prices.gpu_hour * q_.gpus;
    const auto price = q_.prices.terabyte_month.find(class_.storage);
    if (storage_ != nullptr && price != q_.prices.terabyte_month.end()) {
      hour += (storage_->service ? s.capacity_99_bytes : s.capacity_bytes) / q_.replicas * 1e-12 * price->second /
              (365.0 * 24 / 12);
    }
    const double tokens = q_.workload.prompt_tokens + q_.workload.output_tokens;
    return hour / (requests_per_s * 3600 * tokens) * 1e6;
  }

  [[nodiscard]] double io_error() const {
    const bool measured =
        (storage_ == nullptr || storage_->origin.measured) && (link_ == nullptr || link_->origin.measured);
    return measured ? kMeasuredError : kSheetError;
  }

 private:
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

  [[nodiscard]] Sizing sizing(const ClassAnswer& a) const {
    Sizing s;
    s.capacity_bytes = capacity_bytes();
    const double filled = filled_tokens_per_s(all_.requests_per_s, a.hit) * all_.kv_token_bytes;
    s.write_bytes_per_s = filled;
    s.read_bytes_per_s = all_.requests_per_s * a.hit * q_.workload.prompt_tokens * all_.kv_token_bytes;
    s.capacity_90_bytes = capacity_for(0.90, filled);
    s.capacity_99_bytes = capacity_for(0.99, filled);
    if (storage_ == nullptr || storage_->service) return s;
    const double gpus = static_cast<double>(q_.gpus) * q_.replicas;
    double drives = std::max({s.read_bytes_per_s / bandwidth_at(storage_->read_bytes_per_s, class_.request_bytes),
                              s.write_bytes_per_s / bandwidth_at(storage_->write_bytes_per_s, class_.request_bytes),
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
      s.links_per_gpu = a.saturating_bytes_per_s / q_.gpus / bandwidth_at(link_->bytes_per_s, class_.request_bytes);
    }
    return s;
  }

  // Bytes that find `share` of the reuse, all replicas, at a fill of `filled` bytes/s.
  [[nodiscard]] double capacity_for(double share, double filled) const {
    if (!q_.hit_curve) return -std::log(1 - share) * q_.idle_s * filled;
    const double wanted = share * q_.hit_curve(kInfinity, class_.shared || q_.affinity);
    double low = 0;
    double high = 1e15 / all_.kv_token_bytes;
    for (int i = 0; i < 60; ++i) {
      const double middle = (low + high) / 2;
      (q_.hit_curve(middle, class_.shared || q_.affinity) >= wanted ? high : low) = middle;
    }
    return high * all_.kv_token_bytes;
  }

  const Question& q_;
  const DeploymentClass& class_;
  const Answer& all_;
  const Storage* storage_;
  const Link* link_;
};

void widen(Range& range, double value) {
  range.low = std::min(range.low, value);
  range.high = std::max(range.high, value);
}

// Works out all corners of the errors around `a`.
void add_ranges(const Question& q, const ClassWorker& worker, ClassAnswer& a) {
  const auto start = [](double value) { return Range{value, value, value}; };
  a.ttft_range = start(a.prefill.ttft_depot_s);
  a.speedup_range = start(a.prefill.speedup);
  a.requests_range = start(a.requests_per_s);
  a.cost_range = start(a.cost_per_million);
  const double device = q.device->error;
  const double io = worker.io_error();
  for (int corner = 0; corner < 8; ++corner) {
    const auto factor = [corner](int bit, double error) { return (corner >> bit & 1) != 0 ? 1 + error : 1 - error; };
    StorePath path = a.path;
    path.read_bytes_per_s *= factor(2, io);
    const ClassAnswer c = worker.work(a.hit, path, replica_of(q, factor(0, device), factor(1, device)));
    widen(a.ttft_range, c.prefill.ttft_depot_s);
    widen(a.speedup_range, c.prefill.speedup);
    widen(a.requests_range, c.requests_per_s);
    if (c.requests_per_s > 0) widen(a.cost_range, worker.cost(c.requests_per_s, a.sizing));
  }
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
  const double memory = q.device->memory_bytes * q.gpus * kMemoryUsed;
  const double tokens = q.workload.prompt_tokens + q.workload.output_tokens;
  const double request = q.model->kv_bytes(tokens, q.kv_bytes_per_element) * copies_in_memory(*q.model, q.gpus);
  all.kv_memory_bytes = memory - all.weight_bytes;
  if (all.kv_memory_bytes < request) {
    const double needed = (all.weight_bytes + request) / (q.device->memory_bytes * kMemoryUsed);
    return std::unexpected(
        fmt::format("{} does not fit {} x {}: weights {:.3g}e9 parameters x {:g} B = {}, KV of one request {} tokens = "
                    "{}, together {}; "
                    "memory {} x {} x {:g} = {}. Use at least {:.0f} GPUs, or a smaller --precision",
                    q.model->name, q.gpus, q.device->name, q.model->params() * 1e-9, q.weight_bytes_per_param,
                    show_gb(all.weight_bytes), tokens, show_gb(request), show_gb(all.weight_bytes + request), q.gpus,
                    show_gb(q.device->memory_bytes), kMemoryUsed, show_gb(memory), std::ceil(needed)));
  }
  if (q.model->context_tokens > 0 && tokens > static_cast<double>(q.model->context_tokens)) {
    return std::unexpected(fmt::format(
        "prompt {:.0f} + output {:.0f} = {:.0f} tokens, but the context of {} is {}: expected "
        "shorter requests or a model with a longer context",
        q.workload.prompt_tokens, q.workload.output_tokens, tokens, q.model->name, q.model->context_tokens));
  }
  return all;
}

}  // namespace

Replica replica_of(const Question& q, double compute_factor, double memory_factor) {
  const double efficiency = q.compute_efficiency > 0 ? q.compute_efficiency : q.device->compute_efficiency;
  Replica replica;
  replica.flops_per_s = q.device->peak_flops_per_s(q.precision) * efficiency * q.gpus * compute_factor;
  replica.memory_bytes_per_s = q.device->memory_bytes_per_s * q.device->memory_efficiency * q.gpus * memory_factor;
  replica.token_flops = q.model->token_flops();
  replica.attention = q.model->attention();
  replica.mode = q.attention;
  replica.kv_token_bytes = q.model->kv_token_bytes(q.kv_bytes_per_element) * copies_in_memory(*q.model, q.gpus);
  const double weights_s = q.model->params_active() * q.weight_bytes_per_param / replica.memory_bytes_per_s;
  replica.tpot_one_s =
      q.tpot_one_s > 0 ? q.tpot_one_s : weights_s + q.device->layer_s * q.model->layers() + q.device->step_s;
  return replica;
}

std::expected<Answer, std::string> answer(const Question& q, const Catalogue& catalogue) {
  KVD_CHECK(q.model != nullptr && q.device != nullptr && q.gpus > 0 && q.replicas > 0);
  auto checked = check(q);
  if (!checked) return checked;
  Answer all = std::move(*checked);
  all.replica = replica_of(q);
  all.requests_per_s = q.requests_per_s;
  static const DeploymentClass kNothing{.name = "vanilla", .title = "nothing kept", .storage = "hbm", .link = ""};
  const ClassWorker vanilla(q, catalogue, kNothing, all);
  all.vanilla = vanilla.work(0, vanilla.path(), all.replica);
  const auto depot = std::ranges::find(catalogue.classes(), "S3", &DeploymentClass::name);
  const double reuse = q.hit_curve ? q.hit_curve(kInfinity, true) : q.workload.reuse;
  if (depot != catalogue.classes().end()) {
    const ClassWorker worker(q, catalogue, *depot, all);
    const ClassAnswer whole =
        worker.work(std::min(reuse, 1 - 1 / q.workload.prompt_tokens), worker.path(), all.replica);
    all.talk = whole.prefill;
    if (all.requests_per_s <= 0) all.requests_per_s = whole.requests_per_s * q.replicas;
  }
  if (all.requests_per_s <= 0) all.requests_per_s = all.vanilla.requests_per_s * q.replicas;
  vanilla.finish(all.vanilla);
  add_ranges(q, vanilla, all.vanilla);
  for (const DeploymentClass& made : catalogue.classes()) {
    const ClassWorker worker(q, catalogue, made, all);
    ClassAnswer a = worker.work(worker.hit(all.requests_per_s), worker.path(), all.replica);
    worker.finish(a);
    add_ranges(q, worker, a);
    all.classes.push_back(std::move(a));
  }
  return all;
}

}  // namespace kvd::model
