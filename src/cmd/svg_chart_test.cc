// Tests of charts: well-formed, escaped, self-contained, and true to their points.
#include "cmd/svg_chart.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvd::cmd {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(SvgChart, DrawsALineWithinItsFrame) {
  const Chart chart{
      .title = "t", .x_label = "x", .y_label = "y", .series = {{.name = "s", .points = {{0, 0}, {10, 5}}}}};
  const std::string svg = draw(chart);
  EXPECT_THAT(svg, testing::StartsWith("<svg "));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
  EXPECT_THAT(svg, HasSubstr("points='64.0,352.0 624.0,"));  // origin bottom left, the last point at the right edge
}

TEST(SvgChart, LeavesOutWhatCannotBeDrawn) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Chart chart{.title = "t", .series = {{.name = "s", .points = {{0, 1}, {1, infinity}, {2, 1}}}}};
  EXPECT_THAT(draw(chart), Not(HasSubstr("inf")));
  EXPECT_THAT(draw({.title = "t", .series = {{.name = "s", .points = {{1, infinity}}}}}), HasSubstr("nothing to draw"));
  EXPECT_THAT(draw({.title = "t"}), HasSubstr("nothing to draw"));
}

TEST(SvgChart, StacksChartsInOneFile) {
  const Chart chart{.title = "t", .series = {{.name = "s", .points = {{0, 1}, {1, 2}}}}};
  const std::string svg = draw_all({chart, chart});
  EXPECT_THAT(svg, testing::StartsWith("<svg "));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
  EXPECT_THAT(svg, HasSubstr("height='800'"));
  EXPECT_THAT(svg, HasSubstr("<g transform='translate(0 400)'>\n" + draw(chart) + "</g>\n"));
}

TEST(SvgChart, EscapesNames) {
  const Chart chart{.title = "<b>&", .series = {{.name = "'q'", .points = {{0, 1}, {1, 2}}}}};
  EXPECT_THAT(draw(chart), HasSubstr("&lt;b&gt;&amp;"));
  EXPECT_THAT(draw(chart), HasSubstr("&#39;q&#39;"));
}

TEST(SvgChart, LogarithmicAxesPutDecadesAtEqualSteps) {
  const Chart chart{.title = "t", .series = {{.name = "s", .points = {{1, 1}, {10, 1}, {100, 1}}}}, .x_log = true};
  const std::string svg = draw(chart);
  EXPECT_THAT(svg, HasSubstr("points='64.0,"));
  EXPECT_THAT(svg, HasSubstr(" 344.0,"));
  EXPECT_THAT(svg, HasSubstr(" 624.0,"));
}

TEST(SvgChart, BarsStandSideBySideAboveTheirNames) {
  const Chart chart{.title = "t",
                    .series = {{.name = "a", .points = {{0, 1}, {1, 2}}}, {.name = "b", .points = {{0, 4}, {1, 0}}}},
                    .y_max = 4,
                    .categories = {"first <1>", "second"}};
  const std::string svg = draw(chart);
  EXPECT_THAT(svg, HasSubstr("first &lt;1&gt;"));
  EXPECT_THAT(svg, Not(HasSubstr("<polyline")));
  // 560 wide for two names: each has 280, of which 224 are bars; 316 high for 4.
  EXPECT_THAT(svg,
              HasSubstr("<rect x='92.0' y='273.0' width='112.0' height='79.0' fill='#0072b2'><title>a: 1</title>"));
  EXPECT_THAT(svg,
              HasSubstr("<rect x='204.0' y='36.0' width='112.0' height='316.0' fill='#d55e00'><title>b: 4</title>"));
}

TEST(SvgChart, APageNeedsNoNetwork) {
  const std::string html = page("h", "a < b", {{.title = "t"}});
  EXPECT_THAT(html, HasSubstr("a &lt; b"));
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("src=")));
  EXPECT_THAT(html, Not(HasSubstr("url(")));
}

}  // namespace
}  // namespace kvd::cmd
