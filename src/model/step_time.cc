#include "model/step_time.h"

#include <algorithm>
#include <cmath>

namespace kvd::model {

double BatchCurve::at(double batch_size) const noexcept {
  if (batch.empty()) return 0;
  if (batch.size() == 1 || batch_size <= batch.front()) return seconds.front();
  const auto above = std::lower_bound(batch.begin() + 1, batch.end() - 1, batch_size);
  const auto i = static_cast<std::size_t>(above - batch.begin());
  const double share = (batch_size - batch[i - 1]) / (batch[i] - batch[i - 1]);
  return seconds[i - 1] + share * (seconds[i] - seconds[i - 1]);
}

double StepTime::seconds(const PassShape& pass) const noexcept {
  double none = 0;
  return seconds(pass, none);
}

double StepTime::seconds(const PassShape& pass, double& warmup_left) const noexcept {
  const double kv_read = pass.decode_context * context_token_s;
  if (pass.prefill_tokens <= 0) return pass.decode_seqs > 0 ? decode_batch.at(pass.decode_seqs) + kv_read : 0;
  const double pairs_s = pass.chunked ? pass.new_pairs * chunked_pair_s + pass.context_pairs * chunked_context_pair_s
                                      : (pass.new_pairs + pass.context_pairs) * pair_s;
  const double floor = pass.chunked ? chunked_floor_s : floor_s;
  double gpu = pass.prefill_tokens * token_s + pairs_s;
  const double extra = std::min(gpu * warmup_share, warmup_left);
  warmup_left -= extra;
  gpu += extra;
  double total = std::sqrt(floor * floor + gpu * gpu) + pass.prefill_seqs * seq_s;
  if (pass.decode_seqs > 0) total += decode_batch.at(pass.decode_seqs + 1) - decode_batch.at(1) + kv_read;
  return total;
}

}  // namespace kvd::model
