#include "cmd/metrics_sample.h"

#include <limits>
#include <string>

#include <gtest/gtest.h>

namespace kvd::cmd {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

TEST(MetricsSample, ReadsFiguresLabelsAndBuckets) {
  const auto sample = MetricsSample::parse(
      "# HELP kvdepot_ops Unfinished.\n"
      "# TYPE kvdepot_ops gauge\n"
      "kvdepot_ops 3\n"
      "\r\n"
      "kvdepot_build_info{version=\"0.1.0\",other=\"a } \\\" b\"} 1\r\n"
      "kvdepot_get_seconds_bucket{le=\"1e-06\"} 0\n"
      "kvdepot_get_seconds_bucket{le=\"0.5\"} 4 1700000000000\n"
      "kvdepot_get_seconds_bucket{le=\"+Inf\"} 5\n"
      "kvdepot_tenant_bytes{tenant=\"b\"} 2\n"
      "kvdepot_tenant_bytes{tenant=\"a\"} 1\n"
      "kvdepot_tenant_bytes_other{tenant=\"c\"} 1\n"
      "kvdepot_big 1.5e+12");
  ASSERT_TRUE(sample);
  EXPECT_EQ(sample->value("kvdepot_ops"), 3);
  EXPECT_EQ(sample->value("kvdepot_big"), 1.5e12);
  EXPECT_EQ(sample->value("kvdepot_absent"), 0);
  EXPECT_EQ(sample->label("kvdepot_build_info", "version"), "0.1.0");
  EXPECT_EQ(sample->label("kvdepot_build_info", "sion"), "");
  EXPECT_EQ(sample->label("kvdepot_ops", "version"), "");
  EXPECT_EQ(sample->labels("kvdepot_tenant_bytes", "tenant"), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(sample->labels("kvdepot_tenant_bytes", "who").empty());
  EXPECT_EQ(sample->value("kvdepot_tenant_bytes{tenant=\"b\"}"), 2);
  EXPECT_TRUE(sample->contains("kvdepot_tenant_bytes{tenant=\"b\"}"));
  EXPECT_FALSE(sample->contains("kvdepot_tenant_bytes"));
  const auto buckets = sample->buckets("kvdepot_get_seconds");
  ASSERT_EQ(buckets.size(), 3U);
  EXPECT_EQ(buckets[0].upper, 1e-6);
  EXPECT_EQ(buckets[1].count, 4);
  EXPECT_EQ(buckets[2].upper, kInfinite);
  EXPECT_TRUE(sample->buckets("kvdepot_put_seconds").empty());
}

TEST(MetricsSample, RefusesWhatIsNotOfTheFormat) {
  for (const char* bad : {"<html>", "name", "name x", "name 1x", "name 1,5", "name{a=\"b\" 1", "name{a=\"}\" 1", "{} 1",
                          "name ", "name{a=\"b\"}"}) {
    const auto sample = MetricsSample::parse(bad);
    ASSERT_FALSE(sample) << bad;
    EXPECT_EQ(sample.error().code, Code::kInvalid);
  }
  std::string many;
  for (std::size_t i = 0; i <= MetricsSample::kSeriesMax; ++i) many += "a" + std::to_string(i) + " 1\n";
  EXPECT_FALSE(MetricsSample::parse(many));
}

TEST(MetricsSample, QuantilesAreOfWhatCameBetween) {
  using Buckets = std::vector<MetricsSample::Bucket>;
  const Buckets before = {{1, 100}, {2, 100}, {kInfinite, 100}};
  const Buckets now = {{1, 101}, {2, 109}, {kInfinite, 110}};
  EXPECT_EQ(quantile(before, now, 0.1), 1);
  EXPECT_EQ(quantile(before, now, 0.5), 2);
  EXPECT_EQ(quantile(before, now, 1), kInfinite);
  EXPECT_EQ(quantile(before, before, 0.5), 0) << "nothing came";
  EXPECT_EQ(quantile({}, now, 0.5), 1) << "of all";
  EXPECT_EQ(quantile({}, {}, 0.5), 0);
  EXPECT_EQ(quantile(now, before, 0.5), 0) << "a depot that was started again";
}

}  // namespace
}  // namespace kvd::cmd
