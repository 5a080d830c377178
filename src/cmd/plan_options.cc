#include "cmd/plan_options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>

#include <fmt/format.h>

#include "base/sizes.h"
#include "cmd/text_file.h"
#include "model/catalogue_engine.h"
#include "model/hf_config.h"

namespace kvd::cmd {
namespace {

constexpr std::uint32_t kReplicasMax = 4096;

std::optional<double> number_of(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

bool has_unit(const std::string& text) {
  return !text.empty() && std::isalpha(static_cast<unsigned char>(text.back())) != 0;
}

// Reads flags into numbers; the first bad one is the complaint.
class FlagReader {
 public:
  [[nodiscard]] const std::string& complaint() const { return complaint_; }

  double number(const char* flag, const std::string& text, double low, double high, double fallback) {
    if (text.empty()) return fallback;
    const auto value = number_of(text);
    if (!value || *value < low || *value > high) {
      return complain(fmt::format("--{} is '{}': expected a number from {:g} to {:g}", flag, text, low, high),
                      fallback);
    }
    return *value;
  }

  std::uint32_t count(const char* flag, const std::string& text, std::uint32_t high, std::uint32_t fallback) {
    const double value = number(flag, text, 1, high, fallback);
    if (value != std::floor(value)) complain(fmt::format("--{} is '{}': expected a whole number", flag, text), 0);
    return static_cast<std::uint32_t>(value);
  }

  // A unit is asked for: whoever writes 40 means ms as often as s.
  double seconds(const char* flag, const std::string& text, double fallback) {
    if (text.empty()) return fallback;
    const auto value = parse_duration(text);
    if (!value || !has_unit(text)) {
      return complain(fmt::format("--{} is '{}': expected a time with its unit, such as 40ms or 2s", flag, text),
                      fallback);
    }
    return std::chrono::duration<double>(*value).count();
  }

  double bytes_per_s(const char* flag, std::string text, double fallback) {
    if (text.empty()) return fallback;
    const std::string given = text;
    if (text.ends_with("/s")) text.resize(text.size() - 2);
    const auto value = parse_size(text);
    if (!value || *value == 0 || !has_unit(text)) {
      return complain(fmt::format("--{} is '{}': expected bytes per second with a unit, such as 40GB/s", flag, given),
                      fallback);
    }
    return static_cast<double>(*value);
  }

  template <class T>
  T choice(const char* flag, const std::string& text, const std::vector<std::pair<std::string, T>>& known) {
    std::vector<std::string> names;
    for (const auto& [name, value] : known) {
      if (name == text) return value;
      names.push_back(name);
    }
    complain(fmt::format("--{} is '{}': expected one of {}", flag, text, fmt::join(names, ", ")), 0);
    return known.front().second;
  }

  double complain(std::string text, double fallback) {
    if (complaint_.empty()) complaint_ = std::move(text);
    return fallback;
  }

 private:
  std::string complaint_;
};

OrComplaint<void> take_model(const std::string& name, Plan& plan) {
  if (name.empty()) {
    return std::unexpected(fmt::format("say which model: --model NAME or --model FOLDER/config.json; known are {}",
                                       fmt::join(plan.catalogue.model_names(), ", ")));
  }
  const auto found = find_model(plan.catalogue, name, "add one with --model FOLDER/config.json or --catalogue FILE");
  if (!found) return std::unexpected(found.error());
  plan.question.model = *found;
  return {};
}

OrComplaint<void> find_device(const std::string& text, Plan& plan, FlagReader& reader) {
  if (text.empty()) {
    return std::unexpected(fmt::format("say which GPUs one replica has: --gpu NAME[:COUNT]; known are {}",
                                       fmt::join(plan.catalogue.device_names(), ", ")));
  }
  const std::size_t colon = text.rfind(':');
  const std::string name = text.substr(0, colon);
  if (colon != std::string::npos) plan.question.gpus = reader.count("gpu", text.substr(colon + 1), kGpusMax, 1);
  plan.question.device = plan.catalogue.device(name);
  if (plan.question.device != nullptr) return {};
  return std::unexpected(unknown_name("GPU", name, plan.catalogue.device_names(), "add one with --catalogue FILE"));
}

void read_workload(const PlanFlags& flags, FlagReader& reader, Plan& plan) {
  model::Question& q = plan.question;
  const double most = trace::kRequestTokensMax;
  if (plan.trace != nullptr) {
    q.workload = {plan.trace->prompt_mean, std::max(1.0, plan.trace->output_mean), 0};
    if (plan.trace->reuse != nullptr) q.workload.reuse = plan.trace->reuse->ideal_hit_rate();
  }
  q.workload.prompt_tokens = reader.number("prompt", flags.prompt, 1, most, q.workload.prompt_tokens);
  q.workload.output_tokens = reader.number("output", flags.output, 1, most, q.workload.output_tokens);
  q.workload.reuse = reader.number("reuse", flags.reuse, 0, 1, q.workload.reuse);
  if (q.workload.prompt_tokens <= 0) reader.complain("say how long prompts are: --prompt TOKENS, or --trace FILE", 0);
  if (plan.trace == nullptr && flags.output.empty()) reader.complain("say how long answers are: --output TOKENS", 0);
  const bool known_reuse = !flags.reuse.empty() || (plan.trace != nullptr && plan.trace->reuse != nullptr);
  if (!known_reuse) reader.complain("say which share of a prompt was seen before: --reuse SHARE, 0 to 1", 0);
}

void read_deployment(const PlanFlags& flags, FlagReader& reader, model::Question& q) {
  if (const auto done = set_precision(q, flags.precision, flags.kv_precision); !done) {
    const std::string& typed = done.error() == "precision" ? flags.precision : flags.kv_precision;
    reader.complain(
        fmt::format("--{} is '{}': expected one of {}", done.error(), typed, fmt::join(model::precision_names(), ", ")),
        0);
  }
  q.attention = reader.choice<model::Attention>(
      "attention", flags.attention, {{"causal", model::Attention::kCausal}, {"full", model::Attention::kFull}});
  q.affinity = reader.choice<bool>("routing", flags.routing, {{"affinity", true}, {"any", false}});
  q.growing = flags.growing;
  q.io_bytes_per_s = reader.bytes_per_s("io", flags.io, 0);
  q.sla.ttft_s = reader.seconds("sla-ttft", flags.sla_ttft, 0);
  q.sla.tpot_s = reader.seconds("sla-tpot", flags.sla_tpot, 0);
  q.tpot_one_s = reader.seconds("tpot1", flags.tpot_one, 0);
  q.compute_efficiency = reader.number("efficiency", flags.efficiency, 0.001, 1, 0);
  q.requests_per_s = reader.number("rate", flags.rate, 1e-9, 1e9, 0);
  q.idle_s = reader.seconds("idle", flags.idle, 120);
}

// A storage without a price gets no cost: what nobody said is not free.
void read_prices(const PlanFlags& flags, FlagReader& reader, Plan& plan) {
  model::Prices& prices = plan.question.prices;
  prices.gpu_hour = reader.number("price-gpu", flags.price_gpu, 0, 1e6, 0);
  const auto set = [&](const char* flag, const std::string& text, std::initializer_list<const char*> storage) {
    if (text.empty()) return;
    for (const char* name : storage) prices.terabyte_month[name] = reader.number(flag, text, 0, 1e9, 0);
  };
  set("price-dram", flags.price_dram, {"dram"});
  set("price-flash", flags.price_flash, {"nvme-gen4", "nvme-gen5"});
  set("price-fs", flags.price_fs, {"shared-fs"});
  for (const std::string& text : flags.prices) {
    const std::size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    const model::Storage* storage = plan.catalogue.storage(name);
    if (equals == std::string::npos || equals + 1 == text.size()) {
      reader.complain(fmt::format("--price is '{}': expected NAME=DOLLARS for a TB and month, as in dram=150", text),
                      0);
    } else if (storage == nullptr) {
      reader.complain(
          "--price: " + unknown_name("storage", name, plan.catalogue.storage_names(), "add one with --catalogue FILE"),
          0);
    } else {
      prices.terabyte_month[storage->name] = reader.number("price", text.substr(equals + 1), 0, 1e9, 0);
    }
  }
  const bool any = !prices.terabyte_month.empty();
  if (any && flags.price_gpu.empty()) reader.complain("say what a GPU costs, too: --price-gpu DOLLARS an hour", 0);
}

OrComplaint<std::shared_ptr<PlanTrace>> read_plan_trace(const PlanFlags& flags, std::uint32_t replicas,
                                                        const trace::ReadOptions& options) {
  const auto text = read_text(flags.trace);
  if (!text) return std::unexpected(text.error());
  auto read = trace::read_trace(*text, flags.trace, options);
  if (!read) return std::unexpected(read.error().str());
  auto made = std::make_shared<PlanTrace>();
  made->trace = std::move(*read);
  for (const trace::Request& request : made->trace.requests) {
    made->prompt_mean += request.prompt_tokens;
    made->output_mean += request.output_tokens;
  }
  const auto count = static_cast<double>(made->trace.requests.size());
  made->prompt_mean /= count;
  made->output_mean /= count;
  if (made->trace.block_tokens == 0) return made;
  made->reuse = std::make_unique<trace::ReuseProfile>(made->trace);
  for (std::uint32_t i = 0; replicas > 1 && i < replicas; ++i) {
    made->of_replica.push_back(std::make_unique<trace::ReuseProfile>(trace::every_nth(made->trace, replicas, i)));
  }
  return made;
}

std::uint64_t blocks_of(double tokens, std::uint32_t block_tokens) {
  return tokens >= 1e18 ? std::numeric_limits<std::uint64_t>::max()
                        : static_cast<std::uint64_t>(std::max(0.0, tokens) / block_tokens);
}

// Share of prompt tokens found by stores of `tokens` in all.
double trace_hit(const PlanTrace& trace, double tokens, bool shared) {
  if (shared || trace.of_replica.empty()) return trace.reuse->hit_rate(blocks_of(tokens, trace.trace.block_tokens));
  double found = 0;
  double all = 0;
  const double each = tokens / static_cast<double>(trace.of_replica.size());  // infinity stays infinity
  for (const auto& profile : trace.of_replica) {
    const auto prompt = static_cast<double>(profile->prompt_tokens());
    found += prompt * profile->hit_rate(blocks_of(each, trace.trace.block_tokens));
    all += prompt;
  }
  return all > 0 ? found / all : 0;
}

}  // namespace

std::string unknown_name(const char* what, const std::string& name, const std::vector<std::string>& known,
                         const char* how_to_add) {
  const auto near = nearest_names(name, known);
  return fmt::format("no {} '{}' is known; {} {}: {}", what, name,
                     near.empty() ? "known are" : "nearest:", fmt::join(near.empty() ? known : near, ", "), how_to_add);
}

OrComplaint<const model::Transformer*> find_model(model::Catalogue& catalogue, const std::string& name,
                                                  const char* how_to_add) {
  if (name.ends_with(".json")) {
    const auto text = read_text(name);
    if (!text) return std::unexpected(text.error());
    auto model = model::read_hf_config(*text, name, name);
    if (!model) return std::unexpected(model.error().str());
    catalogue.add_model(std::move(*model));
  }
  const model::Transformer* const found = catalogue.model(name);
  if (found != nullptr) return found;
  return std::unexpected(unknown_name("model", name, catalogue.model_names(), how_to_add));
}

OrComplaint<void> set_precision(model::Question& question, const std::string& precision,
                                const std::string& kv_precision) {
  question.precision = precision;
  if (precision.empty()) question.precision = question.device->flops_per_s.contains("fp8") ? "fp8" : "bf16";
  const double weights = model::precision_bytes(question.precision);
  if (weights == 0) return std::unexpected("precision");
  question.weight_bytes_per_param = std::min(weights, std::max(0.5, question.model->weight_bytes_per_param));
  question.kv_bytes_per_element = model::precision_bytes(kv_precision.empty() ? question.precision : kv_precision);
  if (question.kv_bytes_per_element == 0) return std::unexpected("kv-precision");
  return {};
}

double private_ideal_hit_rate(const PlanTrace& trace) {
  return trace_hit(trace, std::numeric_limits<double>::infinity(), false);
}

OrComplaint<model::Catalogue> read_catalogue(const std::vector<std::string>& files) {
  model::Catalogue catalogue = model::Catalogue::built_in();
  for (const std::string& file : files) {
    const auto text = read_text(file);
    if (!text) return std::unexpected(text.error());
    if (const auto added = catalogue.add(*text, file); !added) return std::unexpected(added.error().str());
  }
  return catalogue;
}

OrComplaint<Plan> make_plan(const PlanFlags& flags) {
  auto catalogue = read_catalogue(flags.catalogue);
  if (!catalogue) return std::unexpected(catalogue.error());
  Plan plan;
  plan.catalogue = std::move(*catalogue);
  FlagReader reader;
  if (auto found = take_model(flags.model, plan); !found) return std::unexpected(found.error());
  if (auto found = find_device(flags.gpu, plan, reader); !found) return std::unexpected(found.error());
  plan.question.replicas = reader.count("replicas", flags.replicas, kReplicasMax, 1);
  const std::uint32_t block_tokens = reader.count("block-tokens", flags.block_tokens, 1U << 20, 512);
  const std::uint32_t context = reader.count("context", flags.context, 1U << 30, 0);
  if (!reader.complaint().empty()) return std::unexpected(reader.complaint());
  if (context > 0) {
    model::Transformer longer = *plan.question.model;
    longer.context_tokens = context;
    plan.catalogue.add_model(std::move(longer));
  }
  if (!flags.trace.empty()) {
    auto read = read_plan_trace(flags, plan.question.replicas, {block_tokens, plan.question.model->context_tokens});
    if (!read) return std::unexpected(read.error());
    plan.trace = *read;
    if (plan.trace->reuse != nullptr && flags.reuse.empty()) {
      plan.question.hit_curve = [trace = plan.trace](double tokens, bool shared) {
        return trace_hit(*trace, tokens, shared);
      };
    }
  }
  read_workload(flags, reader, plan);
  read_deployment(flags, reader, plan.question);
  read_prices(flags, reader, plan);
  if (plan.trace != nullptr && plan.trace->trace.timed && flags.rate.empty() && plan.trace->trace.span_s() > 0) {
    plan.question.requests_per_s = static_cast<double>(plan.trace->trace.requests.size()) / plan.trace->trace.span_s();
  }
  if (!reader.complaint().empty()) return std::unexpected(reader.complaint());
  return plan;
}

}  // namespace kvd::cmd
