// kvdepot.LoadChoice: the vLLM connector asks it how to load, and tells it what passes and loads took.
#include "model.h"

#include "model/load_choice.h"

namespace kvd::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;
using model::LoadAnswer;
using model::LoadChoice;
using model::LoadMode;

const char* mode_name(LoadMode mode) {
  switch (mode) {
    case LoadMode::kLayerwise: return "layerwise";
    case LoadMode::kAsync: return "async";
    case LoadMode::kNone: break;
  }
  return "none";
}

LoadAnswer choose(const LoadChoice& self, std::uint64_t prompt_tokens, std::uint64_t local_tokens,
                  std::uint64_t hit_tokens, std::uint64_t flash_tokens, std::uint64_t token_bytes,
                  std::uint64_t pass_tokens_max, std::uint32_t others, double others_tokens, double others_pairs) {
  return self.choose({.prompt_tokens = prompt_tokens,
                      .local_tokens = local_tokens,
                      .hit_tokens = hit_tokens,
                      .flash_tokens = flash_tokens,
                      .token_bytes = token_bytes,
                      .pass_tokens_max = pass_tokens_max,
                      .others = others,
                      .others_work = {others_tokens, others_pairs}});
}

}  // namespace

void add_model(nb::module_& module) {
  nb::class_<LoadAnswer>(module, "LoadAnswer", "How to load, and the predictions behind it, in seconds.")
      .def_prop_ro(
          "mode", [](const LoadAnswer& self) { return mode_name(self.mode); }, "'layerwise', 'async' or 'none'.")
      .def_ro("load_s", &LoadAnswer::load_s)
      .def_ro("pass_s", &LoadAnswer::pass_s)
      .def_ro("layerwise_s", &LoadAnswer::layerwise_s)
      .def_ro("async_s", &LoadAnswer::async_s)
      .def_ro("cold_s", &LoadAnswer::cold_s)
      .def_ro("saved_s", &LoadAnswer::saved_s);

  nb::class_<LoadChoice>(module, "LoadChoice", "Learns what passes and loads cost and chooses how to load.")
      .def(
          "__init__",
          [](LoadChoice* self, double fixed_s, double token_s, double pair_s, bool spare_core) {
            new (self) LoadChoice({fixed_s, token_s, pair_s}, spare_core);
          },
          "fixed_s"_a, "token_s"_a, "pair_s"_a, "spare_core"_a,
          "Begins with a believed cost of a pass; spare_core: a core is free for loading while a pass computes.")
      .def("choose", &choose, nb::kw_only(), "prompt_tokens"_a, "local_tokens"_a, "hit_tokens"_a, "flash_tokens"_a,
           "token_bytes"_a, "pass_tokens_max"_a, "others"_a, "others_tokens"_a, "others_pairs"_a)
      .def(
          "prompt_seconds",
          [](const LoadChoice& self, std::uint64_t tokens, std::uint64_t context, std::uint64_t pass_tokens_max) {
            return self.pass().prompt_seconds(tokens, context, pass_tokens_max);
          },
          nb::kw_only(), "tokens"_a, "context"_a, "pass_tokens_max"_a,
          "Predicted compute of `tokens` behind `context` cached ones.")
      .def(
          "observe_pass",
          [](LoadChoice& self, double tokens, double pairs, double seconds) {
            self.observe_pass({tokens, pairs}, seconds);
          },
          nb::kw_only(), "tokens"_a, "pairs"_a, "seconds"_a)
      .def("observe_load", &LoadChoice::observe_load, nb::kw_only(), "pool_bytes"_a, "flash_bytes"_a, "seconds"_a,
           "contended"_a)
      .def(
          "observe_overlap",
          [](LoadChoice& self, double tokens, double pairs, std::uint64_t pool_bytes, std::uint64_t flash_bytes,
             double seconds) { self.observe_overlap({tokens, pairs}, pool_bytes, flash_bytes, seconds); },
          nb::kw_only(), "tokens"_a, "pairs"_a, "pool_bytes"_a, "flash_bytes"_a, "seconds"_a)
      .def_prop_ro("overlap_loss", &LoadChoice::overlap_loss)
      .def_prop_ro("load_bytes_per_s", [](const LoadChoice& self) { return self.load().pool_bytes_per_s(); })
      .def_prop_ro("pass_coefficients", [](const LoadChoice& self) {
        const auto& c = self.pass().coefficients();
        return nb::make_tuple(c.fixed_s, c.token_s, c.pair_s);
      });
}

}  // namespace kvd::python
