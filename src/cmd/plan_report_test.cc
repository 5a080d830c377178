// Tests of the answer's forms: a table, JSON and CSV of the same numbers, figures, and files that are whole or absent.
#include "cmd/plan_report.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cmd/testing/plan_flags.h"
#include "cmd/text_file.h"

namespace kvd::cmd {
namespace {

using testing::HasSubstr;

struct Worked {
  Plan plan;
  model::Answer answer;
};

Worked work(const PlanFlags& flags) {
  auto plan = make_plan(flags);
  EXPECT_TRUE(plan.has_value()) << plan.error();
  auto answer = model::answer(plan->question, plan->catalogue);
  EXPECT_TRUE(answer.has_value()) << answer.error();
  return {std::move(*plan), std::move(*answer)};
}

TEST(PlanReport, TheTableNamesEveryClassAndSaysWhatHelps) {
  const Worked w = work(chat());
  const std::string table = plan_table(w.plan, w.answer);
  for (const char* name :
       {"vanilla", "S0", "S1a", "S1b", "S2a", "S2b", "S3", "break-even", "drive life", "worth storing"}) {
    EXPECT_THAT(table, HasSubstr(name));
  }
  EXPECT_THAT(table, HasSubstr("faster storage gains nothing"));
}

TEST(PlanReport, SaysWhatIsAssumedBetweenGpus) {
  const auto assumed = [](const char* gpu) {
    PlanFlags flags = chat();
    flags.gpu = gpu;
    const Worked w = work(flags);
    const auto json = nlohmann::json::parse(plan_json(w.plan, w.answer));
    std::string all;
    for (const auto& line : json["assumptions"]) {
      EXPECT_THAT(plan_table(w.plan, w.answer), HasSubstr(line.get<std::string>() + "\n"));
      all += line.get<std::string>();
    }
    return all;
  };
  EXPECT_EQ(assumed("h100:2"), "");
  EXPECT_THAT(assumed("h100:4"), HasSubstr("an all-reduce of 4 GPUs has the latency of one of two over nvlink-h100"));
  EXPECT_THAT(assumed("h100-pcie:2"),
              HasSubstr("all-reduces between the 2 GPUs take no time: h100-pcie names no reduce_link"));
}

TEST(PlanReport, SlowReadsAreNotWorthIt) {
  PlanFlags flags = chat();
  flags.io = "100MB/s";
  const Worked w = work(flags);
  EXPECT_LT(w.answer.classes.back().prefill.speedup, 1);
  EXPECT_THAT(plan_table(w.plan, w.answer), HasSubstr("not worth it: reading takes longer than computing"));
  const auto json = nlohmann::json::parse(plan_json(w.plan, w.answer));
  EXPECT_FALSE(json["classes"].back()["worth_it"].get<bool>());
}

TEST(PlanReport, JsonAndCsvHoldTheSameNumbers) {
  const Worked w = work(chat());
  const auto json = nlohmann::json::parse(plan_json(w.plan, w.answer));
  const auto& depot = json["classes"].back();
  EXPECT_EQ(depot["class"], "S3");
  EXPECT_TRUE(json["classes"][0]["read_bytes_per_s"].is_null());  // engine memory needs no reads
  const std::string csv = plan_csv(w.answer);
  EXPECT_EQ(std::ranges::count(csv, '\n'), 8);
  const std::string last = csv.substr(csv.rfind("S3,"));
  EXPECT_NEAR(std::stod(last.substr(3)), depot["hit_rate"].get<double>(), 1e-8);
  EXPECT_EQ(std::ranges::count(last, ','), std::ranges::count(csv.substr(0, csv.find('\n')), ','));
}

TEST(PlanReport, CostsAppearWithPrices) {
  PlanFlags flags = chat();
  EXPECT_EQ(plan_table(work(flags).plan, work(flags).answer).find("cost per million"), std::string::npos);
  flags.price_gpu = "2.5";
  flags.price_flash = "20";
  const Worked w = work(flags);
  EXPECT_THAT(plan_table(w.plan, w.answer), HasSubstr("cost per million"));
  const model::ClassAnswer& s3 = w.answer.classes.back();
  const double hour = 2 * 2.5 + 4 * 7.68 * 20 / 730;
  EXPECT_NEAR(s3.cost_per_million, hour / (s3.requests_per_s * 3600 * 2370) * 1e6, 1e-9);
  EXPECT_THAT(plan_table(w.plan, w.answer), HasSubstr("no cost for S1a, S2a: dram has no price"));
  EXPECT_LT(s3.cost_range.low, s3.cost_per_million);
  EXPECT_GT(s3.cost_range.high, s3.cost_per_million);
}

TEST(PlanReport, FiguresHaveALineForEveryClassThatReads) {
  const Worked w = work(chat());
  const auto charts = plan_charts(w.plan, w.answer);
  ASSERT_EQ(charts.size(), 3U);
  EXPECT_EQ(charts[0].series.size(), 6U);  // five classes that read, and the limit
  EXPECT_EQ(charts[1].series.size(), 7U);
  for (const Chart& chart : charts) EXPECT_THAT(draw(chart), HasSubstr("<polyline"));
}

TEST(PlanReport, AFileIsWrittenWholeOrNotAtAll) {
  std::string folder = (std::filesystem::temp_directory_path() / "kvd_plan_XXXXXX").string();
  const std::filesystem::path at = mkdtemp(folder.data());
  EXPECT_EQ(write_text((at / "a.html").string(), "text"), "");
  EXPECT_EQ(*read_text((at / "a.html").string()), "text");
  EXPECT_EQ(write_text((at / "a.html").string(), ""), "");
  EXPECT_THAT(read_text((at / "a.html").string()).error(), testing::EndsWith("a.html is empty"));
  EXPECT_THAT(read_text((at / "none").string()).error(), HasSubstr("none cannot be read: No such file"));
  std::filesystem::create_directory(at / "taken");
  std::ofstream(at / "taken" / "file") << "x";
  EXPECT_NE(write_text((at / "taken").string(), "text"), "");
  EXPECT_NE(write_text((at / "missing" / "a.html").string(), "text"), "");
  for (const char* const bad : {"taken", "missing/b.html", "b.csv"}) {  // of several files none, or all
    TextFiles files;
    EXPECT_EQ(files.add((at / "b.csv").string(), "text"), "");
    EXPECT_NE(files.add((at / bad).string(), "text"), "");
  }
  {
    TextFiles files;
    const std::string here = std::filesystem::relative(at / "b.csv").string();
    EXPECT_EQ(files.add(here, "text"), "");
    std::filesystem::create_directory_symlink(at, at / "taken" / "link");
    for (const std::string& other : {"./" + here, (at / "b.csv").string(), (at / "taken" / ".." / "b.csv").string(),
                                     (at / "taken" / "link" / "b.csv").string()}) {
      EXPECT_THAT(files.add(other, "other"), HasSubstr("is named for two files")) << other;
    }
  }
  for (const bool first : {false, true}) {
    TextFiles files;
    EXPECT_EQ(files.add((at / (first ? "c" : "c.part")).string(), "text"), "");
    EXPECT_THAT(files.add((at / (first ? "c.part" : "c")).string(), "text"), HasSubstr("cannot be written together"));
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(at), {}), 2);  // nothing half-written is left
  TextFiles files;
  EXPECT_EQ(files.add((at / "b.csv").string(), "text"), "");
  EXPECT_EQ(files.add("", "text"), "");
  EXPECT_FALSE(std::filesystem::exists(at / "b.csv"));
  EXPECT_EQ(files.commit(), "");
  EXPECT_EQ(*read_text((at / "b.csv").string()), "text");
  std::filesystem::remove_all(at);
}

}  // namespace
}  // namespace kvd::cmd
