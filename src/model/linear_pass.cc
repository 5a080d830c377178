#include "model/linear_pass.h"

namespace kvd::model {

LinearPass roofline(const RooflineInput& in) noexcept {
  const double flops = in.gpus * in.peak_flops * in.flops_efficiency;
  const double bytes = in.gpus * in.memory_bytes_per_s * in.memory_efficiency;
  LinearPass pass;
  pass.base = picoseconds(in.weights_bytes / bytes + in.pass_overhead_s);
  pass.token = picoseconds(2 * in.parameters / flops);
  pass.pair = picoseconds(4 * in.layers * in.attention_width / flops);
  pass.seq = picoseconds(in.seq_overhead_s);
  pass.context = picoseconds(in.kv_bytes_per_token / bytes);
  return pass;
}

RooflineInput qwen3_32b_h100x2() noexcept {
  RooflineInput in;
  in.parameters = 31.2e9;
  in.weights_bytes = 65.5e9;
  in.layers = 64;
  in.attention_width = 64 * 128;
  in.kv_bytes_per_token = 2.0 * 64 * 8 * 128 * 2;
  in.gpus = 2;
  in.peak_flops = 989e12;
  in.memory_bytes_per_s = 3.35e12;
  in.flops_efficiency = 0.45;
  in.memory_efficiency = 0.8;
  in.pass_overhead_s = 126e-6 + 64 * 32.1e-6;
  in.seq_overhead_s = 4.4e-6;
  return in;
}

}  // namespace kvd::model
