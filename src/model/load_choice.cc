#include "model/load_choice.h"

#include <algorithm>
#include <cmath>

namespace kvd::model {
namespace {

// An asynchronous load costs a step of the engine without a pass and a second round of scheduling. vLLM 0.32 sleeps
// 1 ms after such a step; the rest are messages between its processes.
constexpr double kAsyncStepSeconds = 0.0025;
constexpr double kLossWithSpareCore = 0.1;
constexpr double kLossWithoutSpareCore = 0.5;
constexpr double kLossWeight = 0.3;
constexpr double kLossForget = 0.02;  // a loss that is too bad to try again is forgotten over some fifty loads
constexpr double kLossMax = 1.5;      // worse than one after the other: compute threads that wait for a core spin

double overlapped(double load_s, double pass_s, double loss) noexcept {
  return std::max(load_s, pass_s) + loss * std::min(load_s, pass_s);
}

}  // namespace

LoadChoice::LoadChoice(const PassCoefficients& prior, bool spare_core) noexcept
    : pass_(prior),
      overlap_loss_(spare_core ? kLossWithSpareCore : kLossWithoutSpareCore),
      overlap_loss_assumed_(overlap_loss_) {}

LoadAnswer LoadChoice::choose(const LoadQuestion& q) const noexcept {
  LoadAnswer answer;
  if (q.hit_tokens == 0 || q.prompt_tokens <= q.local_tokens) return answer;
  const std::uint64_t missing = q.prompt_tokens - q.local_tokens;
  const std::uint64_t hit = std::min(q.hit_tokens, missing);
  const std::uint64_t left = std::max<std::uint64_t>(missing - hit, 1);  // the last token is always computed
  const std::uint64_t context = q.prompt_tokens - left;
  const std::uint64_t flash = std::min(q.flash_tokens, hit) * q.token_bytes;
  const std::uint64_t chunk = q.pass_tokens_max == 0 ? left : std::min(left, q.pass_tokens_max);
  // What the other requests of the pass add is paid in any case; their share only makes a load easier to hide.
  const auto with_others = [&](PassWork work) {
    return pass_.seconds({work.tokens + q.others_work.tokens, work.pairs + q.others_work.pairs});
  };

  const std::uint64_t pool = hit * q.token_bytes - flash;
  answer.load_s = load_.seconds(pool, flash);
  answer.pass_s = with_others(chunk_work(static_cast<double>(chunk), static_cast<double>(context)));
  const double rest_s = pass_.prompt_seconds(left - chunk, context + chunk, q.pass_tokens_max);
  answer.layerwise_s = overlapped(answer.load_s, answer.pass_s, overlap_loss_) + rest_s;
  answer.async_s = kAsyncStepSeconds + answer.load_s + answer.pass_s + rest_s;
  answer.cold_s = pass_.prompt_seconds(missing, q.local_tokens, q.pass_tokens_max);
  answer.saved_s = std::max(answer.cold_s - pass_.prompt_seconds(left, context, q.pass_tokens_max), 0.0);

  // A load of unknown speed holds up nobody else. Comparing with cold leaves out the others on both sides.
  const bool layerwise = q.others == 0 ? answer.layerwise_s <= answer.async_s
                                       : load_.measured(pool, flash) && answer.load_s <= answer.pass_s;
  if (answer.load_s >= answer.saved_s && !(layerwise && answer.layerwise_s < answer.cold_s)) return answer;
  answer.mode = layerwise ? LoadMode::kLayerwise : LoadMode::kAsync;
  return answer;
}

void LoadChoice::observe_load(std::uint64_t pool_bytes, std::uint64_t flash_bytes, double seconds,
                              bool contended) noexcept {
  load_.observe(pool_bytes, flash_bytes, seconds, contended);
  if (!contended) overlap_loss_ += kLossForget * (overlap_loss_assumed_ - overlap_loss_);
}

void LoadChoice::observe_overlap(PassWork work, std::uint64_t pool_bytes, std::uint64_t flash_bytes,
                                 double seconds) noexcept {
  const double load_s = load_.seconds(pool_bytes, flash_bytes);
  const double pass_s = pass_.seconds(work);
  const double shorter = std::min(load_s, pass_s);
  const double longer = std::max(load_s, pass_s);
  if (!(seconds > 0) || !(shorter > 0)) return;
  const double loss = std::clamp((seconds - longer) / shorter, 0.0, kLossMax);
  // Beside a much longer one what is hidden of the shorter is lost in the error of the longer one's prediction.
  overlap_loss_ += kLossWeight * (shorter / longer) * (loss - overlap_loss_);
}

}  // namespace kvd::model
