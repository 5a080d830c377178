// Reads a Hugging Face config.json into a Transformer: MHA, GQA, MQA, multi-head latent attention, sliding windows,
// hybrids with recurrent layers (Jamba, Bamba, Qwen3-Next, Nemotron-H), mixtures of experts. Pure; text in, value out.
//
// Field names differ between families; those of the families above, of GPT-2, OPT, Falcon and Phi are known. What a
// config does not say is taken as transformers does (KV heads = heads, head size = hidden / heads, window unused).
#pragma once

#include <string_view>

#include "base/input.h"
#include "model/transformer.h"

namespace kvd::model {

// `name` becomes the model's name, `file` is used in faults only. Faults: not JSON (with its line), no number of
// layers, heads or hidden size, sizes that are not positive or absurdly large, a mixture whose experts don't add up.
[[nodiscard]] FromInput<Transformer> read_hf_config(std::string_view text, std::string_view name,
                                                    std::string_view file);

}  // namespace kvd::model
