// The study's files: those that are compiled in can be read, and mistakes in others are answered with their place.
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/study.h"
#include "sim/study_text.h"

namespace kvd::sim {
namespace {

using testing::HasSubstr;
using testing::Not;

nlohmann::json tables_json() { return nlohmann::json::parse(built_in_calibration()); }
nlohmann::json inputs_json() { return nlohmann::json::parse(built_in_workloads()); }

std::string tables_complaint(const std::string& text) {
  const auto read = read_tables(text, "mine.json");
  return read ? "" : read.error().str();
}
std::string inputs_complaint(const std::string& text) {
  const auto read = read_inputs(text, "mine.json");
  return read ? "" : read.error().str();
}

TEST(StudyRead, WhatIsCompiledInIsWhole) {
  const auto read = read_tables(built_in_calibration(), "calibration.json");
  ASSERT_TRUE(read) << read.error().str();
  EXPECT_EQ(read->recompute.size(), 11U);
  EXPECT_EQ(read->decode[model::kOpt].size(), 10U);
  const auto requests = read_inputs(built_in_workloads(), "workloads.json");
  ASSERT_TRUE(requests) << requests.error().str();
  EXPECT_EQ(requests->requests.size(), 6U);
  EXPECT_EQ(requests->prompts_joining.size(), 3U);
}

TEST(StudyRead, TextThatIsNoJsonIsAnsweredWithItsLine) {
  EXPECT_EQ(tables_complaint("{\n\"fig3a\": [1,\n}"), "mine.json:3: not JSON here: expected tables as in data/ipdps25");
  EXPECT_THAT(tables_complaint(""), HasSubstr("mine.json:1: not JSON here"));
  EXPECT_THAT(tables_complaint("[1, 2]"), HasSubstr("mine.json:1: expected an object"));
  EXPECT_THAT(tables_complaint("{\"a\": 1e999}"), HasSubstr("mine.json: a number larger than"));
}

TEST(StudyRead, TablesAreAnsweredWithTheirPlaceAndWhatWasExpected) {
  constexpr const char* k3a = "fig3a_prefill_fixed_tokens_per_s";
  constexpr const char* k3c = "fig3c_decode_tokens_per_s";
  constexpr const char* k8a = "fig8a_overhead_vs_block_size";
  struct Case {
    std::string said;
    std::function<void(nlohmann::json&)> spoil;
  };
  const Case cases[] = {
      {"mine.json: fig3a_prefill_fixed_tokens_per_s: is missing, expected as in data/ipdps25",
       [&](auto& t) { t.erase(k3a); }},
      {"fig3a_prefill_fixed_tokens_per_s.Llama-3.1-8B: expected an object",
       [&](auto& t) { t[k3a]["Llama-3.1-8B"] = 3; }},
      {"Yarn-Llama-2-7B.throughput.prefill-8K[0]: expected a number",
       [&](auto& t) { t[k3a]["Yarn-Llama-2-7B"]["throughput"]["prefill-8K"][0] = "fast"; }},
      {"throughput.long: its name is no length",
       [&](auto& t) { t[k3a]["Yarn-Llama-2-7B"]["throughput"]["long"] = {1}; }},
      {"models.throughput.OPT-13B: 11 values, at most 10 are expected",
       [&](auto& t) { t[k3c]["models"]["throughput"]["OPT-13B"].push_back(3); }},
      {"models.batch_size[2]: expected more than the one before",
       [&](auto& t) { t[k3c]["models"]["batch_size"][2] = 1; }},
      {"fig8a_overhead_vs_block_size.data.Recompute: 5 values, 6 are expected",
       [&](auto& t) { t[k8a]["data"]["Recompute"].erase(0); }},
      {"data.Recompute[1]: expected a number", [&](auto& t) { t[k8a]["data"]["Recompute"][1] = nullptr; }},
      {"recompute: point 2 of 11 is not a number above 0", [&](auto& t) { t[k8a]["data"]["Recompute"][1] = -1; }}};
  for (const Case& c : cases) {
    auto spoilt = tables_json();
    c.spoil(spoilt);
    const std::string said = tables_complaint(spoilt.dump(1));
    EXPECT_THAT(said, HasSubstr(c.said));
    EXPECT_THAT(said, HasSubstr("mine.json"));
    EXPECT_THAT(said, Not(HasSubstr("json.exception")));
  }
}

TEST(StudyRead, RequestsAreAnsweredWithTheirPlace) {
  auto spoilt = inputs_json();
  spoilt["w2"][3] = {7};
  EXPECT_EQ(inputs_complaint(spoilt.dump()), "mine.json: w2[3]: expected [prompt tokens, output tokens]");
  spoilt = inputs_json();
  spoilt["w1"][0][1] = -5;
  EXPECT_THAT(inputs_complaint(spoilt.dump()), HasSubstr("w1[0][1]: expected tokens, a whole number from 1"));
  spoilt = inputs_json();
  spoilt["zipf_128_8192_ratio_0.5"].erase(5);
  EXPECT_THAT(inputs_complaint(spoilt.dump()), HasSubstr("127 requests, at least 128 are expected"));
  spoilt = inputs_json();
  spoilt["w2"] = nlohmann::json::array({{100, 10}});
  EXPECT_THAT(inputs_complaint(spoilt.dump()), HasSubstr("1 requests, at least 4 are expected"));
  spoilt = inputs_json();
  spoilt["fig3b_prompt_lengths_in_order_of_joining"]["order-1"] = 3;
  EXPECT_THAT(inputs_complaint(spoilt.dump()), HasSubstr("order-1: expected a list"));
}

}  // namespace
}  // namespace kvd::sim
