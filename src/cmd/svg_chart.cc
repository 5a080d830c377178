#include "cmd/svg_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace kvd::cmd {
namespace {

constexpr double kWidth = 860;
constexpr double kHeight = 400;
constexpr double kLeft = 64;
constexpr double kRight = 236;  // the legend stands there
constexpr double kTop = 36;
constexpr double kBottom = 48;
// Okabe and Ito's colours, which people with colour blindness can tell apart.
constexpr std::array<const char*, 8> kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                              "#e69f00", "#56b4e9", "#666666", "#000000"};

struct Axis {
  double low = 0;
  double high = 1;
  bool log = false;
  // 0 to 1.
  [[nodiscard]] double place(double value) const {
    return log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  }
};

// Steps of 1, 2 or 5 times a power of ten, at most eight of them.
std::vector<double> ticks(const Axis& axis) {
  std::vector<double> at;
  if (axis.log) {
    for (double decade = std::pow(10, std::floor(std::log10(axis.low))); decade <= axis.high * 1.001; decade *= 10) {
      for (const double step : {1.0, 2.0, 5.0}) {
        if (decade * step >= axis.low * 0.999 && decade * step <= axis.high * 1.001) at.push_back(decade * step);
      }
    }
    return at;
  }
  const double raw = (axis.high - axis.low) / 8;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  const double step = power * (raw / power <= 1 ? 1 : raw / power <= 2 ? 2 : raw / power <= 5 ? 5 : 10);
  for (double value = std::ceil(axis.low / step) * step; value <= axis.high + step * 1e-6; value += step) {
    at.push_back(std::abs(value) < step * 1e-9 ? 0 : value);
  }
  return at;
}

std::string show_tick(double value) {
  if (std::abs(value) >= 1e9) return fmt::format("{:g}G", value * 1e-9);
  if (std::abs(value) >= 1e6) return fmt::format("{:g}M", value * 1e-6);
  if (std::abs(value) >= 1e4) return fmt::format("{:g}k", value * 1e-3);
  return fmt::format("{:g}", value);
}

bool drawable(const std::pair<double, double>& point, bool x_log) {
  return std::isfinite(point.first) && std::isfinite(point.second) && (!x_log || point.first > 0);
}

struct Axes {
  Axis x;
  Axis y;
  bool any = false;
  [[nodiscard]] double px(double value) const { return kLeft + x.place(value) * (kWidth - kLeft - kRight); }
  [[nodiscard]] double py(double value) const {
    return kHeight - kBottom - y.place(value) * (kHeight - kTop - kBottom);
  }
};

Axes axes_of(const Chart& chart) {
  Axes axes;
  double x_low = std::numeric_limits<double>::infinity();
  double x_high = -x_low;
  double y_high = 0;
  for (const ChartSeries& series : chart.series) {
    for (const auto& point : series.points) {
      if (!drawable(point, chart.x_log)) continue;
      axes.any = true;
      x_low = std::min(x_low, point.first);
      x_high = std::max(x_high, point.first);
      y_high = std::max(y_high, point.second);
    }
  }
  if (!axes.any) return axes;
  if (!chart.categories.empty()) {
    x_low = -0.5;
    x_high = static_cast<double>(chart.categories.size()) - 0.5;
  } else if (!chart.x_log) {
    x_low = std::min(0.0, x_low);
  }
  if (!(x_high > x_low)) x_high = x_low + (x_low == 0 ? 1 : std::abs(x_low));
  axes.x = {x_low, x_high, chart.x_log};
  axes.y = {0, chart.y_max > 0 ? chart.y_max : std::max(y_high * 1.08, 1e-9), false};
  return axes;
}

std::string grid(const Chart& chart, const Axes& axes) {
  std::string out;
  for (std::size_t i = 0; i < chart.categories.size(); ++i) {
    out += fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='middle'>{}</text>\n", axes.px(static_cast<double>(i)),
                       kHeight - kBottom + 16, escape_html(chart.categories[i]));
  }
  for (const double tick : chart.categories.empty() ? ticks(axes.x) : std::vector<double>{}) {
    out += fmt::format(
        "<line x1='{0:.1f}' y1='{1:.1f}' x2='{0:.1f}' y2='{2:.1f}' stroke='#ddd'/>"
        "<text x='{0:.1f}' y='{3:.1f}' text-anchor='middle'>{4}</text>\n",
        axes.px(tick), kTop, kHeight - kBottom, kHeight - kBottom + 16, show_tick(tick));
  }
  for (const double tick : ticks(axes.y)) {
    out += fmt::format(
        "<line x1='{0:.1f}' y1='{1:.1f}' x2='{2:.1f}' y2='{1:.1f}' stroke='#ddd'/>"
        "<text x='{3:.1f}' y='{4:.1f}' text-anchor='end'>{5}</text>\n",
        kLeft, axes.py(tick), kWidth - kRight, kLeft - 6, axes.py(tick) + 4, show_tick(tick));
  }
  return out;
}

std::string curve(const ChartSeries& series, const Axes& axes, const char* colour) {
  std::string points;
  std::string dots;
  for (const auto& point : series.points) {
    if (!drawable(point, axes.x.log) || point.second > axes.y.high * 1.0001) continue;
    points += fmt::format("{:.1f},{:.1f} ", axes.px(point.first), axes.py(point.second));
    dots += fmt::format("<circle cx='{:.1f}' cy='{:.1f}' r='3.5' fill='{}'/>", axes.px(point.first),
                        axes.py(point.second), colour);
  }
  if (series.dots) return dots + "\n";
  return fmt::format("<polyline fill='none' stroke='{}' stroke-width='2'{} points='{}'/>\n", colour,
                     series.dashed ? " stroke-dasharray='6 4'" : "", points);
}

// The bars of series `at` of `count` that stand side by side at each category.
std::string bars(const ChartSeries& series, std::size_t at, std::size_t count, const Axes& axes, const char* colour) {
  constexpr double kShare = 0.8;  // of a category's width
  std::string out;
  for (const auto& point : series.points) {
    if (!drawable(point, false)) continue;
    const double width = kShare / static_cast<double>(count);
    const double left = axes.px(point.first - kShare / 2 + width * static_cast<double>(at));
    const double right = axes.px(point.first - kShare / 2 + width * static_cast<double>(at + 1));
    const double top = axes.py(std::min(point.second, axes.y.high));
    out += fmt::format(
        "<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' fill='{}'><title>{}: {:g}</title></rect>", left,
        top, right - left, axes.py(0) - top, colour, escape_html(series.name), point.second);
  }
  return out + "\n";
}

std::string legend(const Chart& chart) {
  std::string out;
  double y = kTop + 10;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    out += fmt::format(
        "<rect x='{:.1f}' y='{:.1f}' width='14' height='3' fill='{}'/>"
        "<text x='{:.1f}' y='{:.1f}'>{}</text>\n",
        kWidth - kRight + 14, y - 4, kColours.at(i % kColours.size()), kWidth - kRight + 34, y,
        escape_html(chart.series[i].name));
    y += 15;
  }
  return out;
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string draw(const Chart& chart) {
  std::string out = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{0:.0f}' height='{1:.0f}' viewBox='0 0 {0:.0f} {1:.0f}' "
      "font-family='sans-serif' font-size='11' role='img'>\n<rect width='100%' height='100%' fill='white'/>\n"
      "<text x='{2:.0f}' y='20' font-size='14' font-weight='bold'>{3}</text>\n",
      kWidth, kHeight, kLeft, escape_html(chart.title));
  const Axes axes = axes_of(chart);
  if (!axes.any)
    return out + fmt::format("<text x='{:.0f}' y='{:.0f}'>nothing to draw</text>\n</svg>\n", kLeft, kHeight / 2);
  out += grid(chart, axes);
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const char* const colour = kColours.at(i % kColours.size());
    out += chart.categories.empty() ? curve(chart.series[i], axes, colour)
                                    : bars(chart.series[i], i, chart.series.size(), axes, colour);
  }
  out += legend(chart);
  out += fmt::format("<text x='{:.0f}' y='{:.0f}' text-anchor='middle'>{}</text>\n", (kLeft + kWidth - kRight) / 2,
                     kHeight - 10, escape_html(chart.x_label));
  out += fmt::format("<text transform='translate(14 {:.0f}) rotate(-90)' text-anchor='middle'>{}</text>\n</svg>\n",
                     (kTop + kHeight - kBottom) / 2, escape_html(chart.y_label));
  return out;
}

std::string draw_all(const std::vector<Chart>& charts) {
  std::string out = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{0:.0f}' height='{1:.0f}' viewBox='0 0 {0:.0f} {1:.0f}'>\n",
      kWidth, kHeight * static_cast<double>(charts.size()));
  double y = 0;
  for (const Chart& chart : charts) {
    out += fmt::format("<g transform='translate(0 {:.0f})'>\n{}</g>\n", y, draw(chart));
    y += kHeight;
  }
  return out + "</svg>\n";
}

std::string page(const std::string& heading, const std::string& text, const std::vector<Chart>& charts) {
  std::string out = fmt::format(
      "<!doctype html>\n<html lang='en'><head><meta "
      "charset='utf-8'><title>{0}</title>\n<style>body{{font-family:sans-serif;"
      "margin:2em;max-width:90em}}pre{{overflow-x:auto;line-height:1.35}}svg{{margin:0 1em 1em 0}}</style></head>\n"
      "<body><h1>{0}</h1>\n",
      escape_html(heading));
  for (const Chart& chart : charts) out += draw(chart);
  return out + "<pre>" + escape_html(text) + "</pre>\n</body></html>\n";
}

}  // namespace kvd::cmd
