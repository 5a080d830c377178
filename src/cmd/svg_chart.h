// Line and bar charts as self-contained SVG: no scripts, no fonts, nothing from a network. Pure; text out.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kvd::cmd {

struct ChartSeries {
  std::string name;
  std::vector<std::pair<double, double>> points{};  // (x, y); points that are not finite are left out
  bool dashed = false;
  bool dots = false;  // points only
};

struct Chart {
  std::string title;
  std::string x_label{};
  std::string y_label{};
  std::vector<ChartSeries> series{};
  bool x_log = false;  // x above 0
  double y_max = 0;    // 0 = as the series ask for
  // With names every series is bars, one for each name: the point at x = 0, 1, ... belongs to the first, second, ...
  std::vector<std::string> categories{};
};

// One <svg> element of fixed size. Labels are escaped. A chart without points says so.
[[nodiscard]] std::string draw(const Chart& chart);
// One <svg> element with all charts, one below the other: a file by itself.
[[nodiscard]] std::string draw_all(const std::vector<Chart>& charts);
// A page with a heading, a preformatted text (escaped) and charts; opens without a network.
[[nodiscard]] std::string page(const std::string& heading, const std::string& text, const std::vector<Chart>& charts);
[[nodiscard]] std::string escape_html(const std::string& text);

}  // namespace kvd::cmd
