// The table for people. Times in ms, bandwidths in GB/s (1e9), capacities in GB or TB.
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cmd/plan_report.h"

namespace kvd::cmd {
namespace {

using model::ClassAnswer;

constexpr double kWorthIt = 1.02;  // less than 2 % is nothing

std::string gb_per_s(double value) {
  if (!std::isfinite(value)) return "-";
  return value < 1e8 ? fmt::format("{:.3g} MB/s", value * 1e-6) : fmt::format("{:.3g} GB/s", value * 1e-9);
}

std::string bytes(double value) {
  if (!std::isfinite(value)) return "-";
  if (value >= 1e15) return fmt::format("{:.3g} PB", value * 1e-15);
  return value >= 1e12 ? fmt::format("{:.3g} TB", value * 1e-12) : fmt::format("{:.3g} GB", value * 1e-9);
}

std::string ms(double seconds) { return fmt::format("{:.4g}", seconds * 1e3); }

// Three digits, without an exponent.
std::string digits(double value) {
  return value >= 999.5 ? fmt::format("{:.0f}", value) : fmt::format("{:.3g}", value);
}

// "3.1 (2.2-4)"; one number where the ends are the same, "3.1 (2.2..)" where there is no upper end.
std::string range(const model::Range& r, double factor) {
  const std::string low = digits(r.low * factor);
  const std::string mid = std::isfinite(r.mid) ? digits(r.mid * factor) : "-";
  if (!std::isfinite(r.high)) return std::isfinite(r.low) ? fmt::format("{} ({}..)", mid, low) : mid;
  const std::string high = digits(r.high * factor);
  return low == high ? mid : fmt::format("{} ({}-{})", mid, low, high);
}

std::string gb_range(const model::Range& r) {
  const bool small = r.mid < 1e8;
  return std::isfinite(r.mid) ? range(r, small ? 1e-6 : 1e-9) + (small ? " MB/s" : " GB/s") : "-";
}

const char* bound_name(model::Bound bound) {
  switch (bound) {
    case model::Bound::kCompute: return "compute";
    case model::Bound::kRead: return "read";
    case model::Bound::kWrite: return "write";
  }
  return "";
}

std::string heading(const Plan& plan, const model::Answer& answer) {
  const model::Question& q = plan.question;
  const model::Device& d = *q.device;
  const double efficiency = q.compute_efficiency > 0 ? q.compute_efficiency : d.compute_efficiency;
  std::string out = fmt::format("{} on {} x {}, {}: weights {}, KV {:.0f} B a token, memory for KV {}\n", q.model->name,
                                q.gpus, d.name, q.precision, bytes(answer.weight_bytes), answer.kv_token_bytes,
                                bytes(answer.kv_memory_bytes));
  out += fmt::format(
      "prompt {:.0f}, output {:.0f}, reuse {:.4g}; SLA: first token {} ms, each further {} ms; {} requests/s "
      "over {} replica{}\n",
      q.workload.prompt_tokens, q.workload.output_tokens, q.workload.reuse, ms(q.sla.ttft_s), ms(q.sla.tpot_s),
      range(answer.rate_range, 1), q.replicas, q.replicas == 1 ? "" : "s");
  out += fmt::format(
      "{:.4g} TFLOP/s ({:.2g} of peak), {:.3g} TB/s of memory ({:.2g} of peak), one request alone decodes "
      "a token in {} ms\n",
      answer.replica.flops_per_s * 1e-12, efficiency, answer.replica.memory_bytes_per_s * 1e-12, d.memory_efficiency,
      range(answer.tpot_one_range, 1e3));
  const model::PassReduces reduces = model::pass_reduces(q);
  if (reduces.pass_s > 0) {
    out += fmt::format("all-reduces over {}: {:.3g} ms a pass and {:.3g} us a token{}\n", d.reduce_link,
                       reduces.pass_s * 1e3, reduces.token_s * 1e6,
                       q.compute_efficiency > 0 ? " (in prefills part of the efficiency given)" : "");
  }
  return out + fmt::format("({}: {}; ranges: {:.0f} % on these, {})\n\n", d.origin.kind(), d.origin.source,
                           d.error * 100, "10 % on a measured bandwidth, 30 % on one from a data sheet");
}

std::string attention_note(const Plan& plan) {
  return plan.question.attention == model::Attention::kFull
             ? "attention is counted in full (every token with the whole prompt), as in the talk\n"
             : "attention is counted as it is computed (each token with those before it)\n";
}

std::string class_row(const ClassAnswer& c, std::uint32_t gpus) {
  const bool serves = c.batch > 0;
  return fmt::format(
      "{:<8}{:<30} {:>5.1f} {:>11} {:>20} {:>18} {:>8} {:>14}{} {:>18} {:>20} {:>9} {:>14}\n", c.name, c.title,
      c.hit * 100, gb_per_s(c.path.read_bytes_per_s), range(c.ttft_range, 1e3), range(c.speedup_range, 1),
      bound_name(c.prefill.bound), range(c.batch_range, 1), c.memory_binds ? "m" : " ",
      serves ? range(c.tpot_range, 1e3) : "-", serves ? range(c.requests_range, 1.0 / gpus) : "-",
      serves ? fmt::format("{:.4g}", 1 / c.tpot_s) : "-", c.gpus_needed > 0 ? range(c.gpus_range, 1) : "-");
}

std::string classes_table(const Plan& plan, const model::Answer& answer) {
  std::string out = fmt::format("{:<8}{:<30} {:>5} {:>11} {:>20} {:>18} {:>8} {:>14}  {:>18} {:>20} {:>9} {:>14}\n",
                                "class", "", "hit %", "reads at", "first token ms", "prefill speed-up", "bound by",
                                "batch", "TPOT ms", "requests/s/GPU", "tok/s/user", "GPUs");
  out += class_row(answer.vanilla, plan.question.gpus);
  for (const ClassAnswer& c : answer.classes) out += class_row(c, plan.question.gpus);
  return out +
         "batch: largest within the SLA (m: memory for KV binds; 0: not even one request is); GPUs: for the rate "
         "above,\nwith as many stores as they have\n\n";
}

// One sentence on whether a class is worth having.
std::string verdict(const ClassAnswer& c) {
  if (c.hit < 0.001) return "not worth it: it holds next to nothing of what comes again";
  if (c.prefill.speedup < 1 && c.prefill.bound == model::Bound::kWrite) {
    return fmt::format("not worth it: storing takes longer than computing; it would need {} of writes",
                       gb_per_s(c.path.write_bytes_per_s * c.prefill.write_token_s / c.prefill.suffix_token_s));
  }
  if (c.prefill.speedup < 1) {
    return fmt::format("not worth it: reading takes longer than computing; it would need {}",
                       gb_per_s(c.break_even_bytes_per_s));
  }
  if (c.prefill.speedup < kWorthIt) return "not worth it: less than 2 % sooner";
  if (c.speedup_range.low < 1) return "uncertain: within the error of the calibration it could be a loss";
  if (c.prefill.bound == model::Bound::kWrite) {
    return fmt::format("{:.3g}x sooner; writes bind: they take longer than computing what they write",
                       c.prefill.speedup);
  }
  if (c.prefill.bound == model::Bound::kCompute) {
    return fmt::format("{:.3g}x sooner; faster storage gains nothing, a tenth of the misses as hits gives {:.3g}x",
                       c.prefill.speedup, c.speedup_more_hits);
  }
  return fmt::format("{:.3g}x sooner; twice the bandwidth gives {:.3g}x, a tenth of the misses as hits {:.3g}x",
                     c.prefill.speedup, c.speedup_twice_io, c.speedup_more_hits);
}

std::string worth_table(const model::Answer& answer) {
  std::string out =
      fmt::format("{:<8}{:>24} {:>24} {:>16}  {}\n", "class", "break-even", "enough at", "from tokens", "");
  for (const ClassAnswer& c : answer.classes) {
    const bool nothing = c.hit < 0.001;
    out += fmt::format("{:<8}{:>24} {:>24} {:>16}  {}\n", c.name, nothing ? "-" : gb_range(c.break_even_range),
                       nothing ? "-" : gb_range(c.saturating_range),
                       c.shortest_prompt > 0 ? range(c.shortest_prompt_range, 1) : "never", verdict(c));
  }
  return out +
         "break-even: slower reads lose against computing; enough: faster ones gain nothing; from tokens: shortest\n"
         "prompt worth storing\n\n";
}

std::string sizing_table(const model::Answer& answer) {
  std::string out = fmt::format("{:<8}{:>11} {:>13} {:>13} {:>12} {:>12} {:>12} {:>22} {:>15} {:>16}\n", "class",
                                "capacity", "for 90 % hits", "for 99 % hits", "reads", "writes", "write budget",
                                "drive life", "drives/GPU", "links/GPU");
  for (const ClassAnswer& c : answer.classes) {
    const model::Sizing& s = c.sizing;
    out += fmt::format(
        "{:<8}{:>11} {:>13} {:>13} {:>12} {:>12} {:>12} {:>22} {:>15} {:>16}\n", c.name, bytes(s.capacity_bytes),
        bytes(s.capacity_90_bytes), bytes(s.capacity_99_bytes), gb_per_s(s.read_bytes_per_s),
        gb_per_s(s.write_bytes_per_s), s.write_budget_bytes_per_s > 0 ? gb_per_s(s.write_budget_bytes_per_s) : "-",
        s.drive_life_years > 0 ? range(c.drive_life_range, 1) + " years" : "-",
        s.drives_per_gpu > 0 ? range(c.drives_range, 1) : "-", s.links_per_gpu > 0 ? range(c.links_range, 1) : "-");
  }
  return out +
         "for the rate above, all replicas; write budget: what the drives' endurance allows over five years; drives: "
         "the\n"
         "most of reads, writes, endurance and 99 % of the hits; links: to read as fast as gains anything\n";
}

// Which classes have no cost because their storage has no price, and how to give it.
std::string unpriced_lines(const model::Answer& answer) {
  std::map<std::string, std::vector<std::string>> classes;
  for (const ClassAnswer& c : answer.classes) {
    if (!c.unpriced.empty()) classes[c.unpriced].push_back(c.name);
  }
  std::string out;
  for (const auto& [storage, names] : classes) {
    out += fmt::format("no cost for {}: {} has no price; give it with --price {}=DOLLARS for a TB and month\n",
                       fmt::join(names, ", "), storage, storage);
  }
  return out;
}

std::string cost_lines(const Plan& plan, const model::Answer& answer) {
  if (plan.question.prices.gpu_hour <= 0) return "";
  std::string out = "\ncost per million tokens, prompt and output, at the batch above: ";
  const auto one = [&](const ClassAnswer& c) {
    if (c.cost_per_million > 0) out += fmt::format("{} ${}  ", c.name, range(c.cost_range, 1));
  };
  one(answer.vanilla);
  for (const ClassAnswer& c : answer.classes) one(c);
  return out + "\n" + unpriced_lines(answer);
}

std::string talk_lines(const model::Answer& answer) {
  const model::Prefill& t = answer.talk;
  return fmt::format(
      "With S3 and all of the reuse found: T {:.3f} us to compute a token, R {:.3f} us to read one, acceleration e = "
      "{:.4g};\n"
      "crossover a* = {:.4g}, where the speed-up is largest. {}\n\n",
      t.compute_token_s * 1e6, t.read_token_s * 1e6, t.acceleration, t.crossover,
      t.bound == model::Bound::kCompute
          ? "Below it, as here, only a higher hit rate helps; faster storage gains nothing."
          : "Beyond it, as here, reads bind: faster storage helps, more hits do not.");
}

std::string trace_lines(const Plan& plan) {
  if (plan.trace == nullptr) return "";
  const PlanTrace& t = *plan.trace;
  std::string out = fmt::format("trace: {} requests over {:.0f} s, mean prompt {:.0f}, mean output {:.0f}\n",
                                t.trace.requests.size(), t.trace.span_s(), t.prompt_mean, t.output_mean);
  if (t.reuse == nullptr) return out + "it has no block ids, so reuse is what --reuse says\n\n";
  out += fmt::format(
      "ideal hit rate {:.4f} of prompt tokens ({:.4f} of blocks of {}); {} distinct blocks, {:.0f} % used once; time "
      "between uses p50 {:.0f} s, p90 {:.0f} s\nLRU, one store:",
      t.reuse->ideal_hit_rate(), t.reuse->ideal_hit_rate_blocks(), t.trace.block_tokens, t.reuse->distinct_blocks(),
      100.0 * static_cast<double>(t.reuse->blocks_used_once()) / static_cast<double>(t.reuse->distinct_blocks()),
      t.reuse->reuse_time_quantile_s(0.5), t.reuse->reuse_time_quantile_s(0.9));
  if (!t.of_replica.empty()) {
    out += fmt::format(" (private stores without a limit, requests dealt in turn to {} replicas: {:.4f})",
                       t.of_replica.size(), private_ideal_hit_rate(t));
  }
  const double kv = plan.question.model->kv_token_bytes(plan.question.kv_bytes_per_element);
  out += fmt::format("\n{:>12} {:>12} {:>10} {:>9}\n", "blocks", "M tokens", "bytes", "hit rate");
  for (const std::uint64_t blocks : kCurveBlocks) {
    const double tokens = static_cast<double>(blocks) * t.trace.block_tokens;
    out += fmt::format("{:>12} {:>12.2f} {:>10} {:>9.4f}\n", blocks, tokens * 1e-6, bytes(tokens * kv),
                       t.reuse->hit_rate(blocks));
  }
  return out + "\n";
}

}  // namespace

std::string plan_table(const Plan& plan, const model::Answer& answer) {
  std::string notes;
  for (const std::string& line : model::reduce_assumptions(plan.question)) notes += line + "\n";
  return heading(plan, answer) + trace_lines(plan) + classes_table(plan, answer) + talk_lines(answer) +
         worth_table(answer) + sizing_table(answer) + cost_lines(plan, answer) + "\n" + attention_note(plan) + notes;
}

}  // namespace kvd::cmd
