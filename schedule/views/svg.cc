#include "pipewright/schedule/views/svg.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/views/table.h"

namespace pipewright::schedule {
namespace {

using ir::Action;
using ir::ActionPart;

// Sizes in pixels.
constexpr double kLeft = 62, kTop = 34, kRow = 26, kComms = 8, kGap = 6, kAxis = 34, kLegend = 26,
                 kRight = 16;
constexpr double kDigitWidth = 6.2;             // width of a digit in a label
constexpr double kLongestBend = 90;             // of an arrow, to the right of the boxes
constexpr std::string_view kAlarm = "#c03030";  // where a rank stops

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    if (c == '<') {
      safe += "&lt;";
    } else if (c == '>') {
      safe += "&gt;";
    } else if (c == '&') {
      safe += "&amp;";
    } else {
      safe += c;
    }
  }
  return safe;
}

// Pixels to one decimal: "12.5", "12".
std::string px(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

class SvgWriter {
 public:
  SvgWriter(const ir::Schedule& schedule, const ir::Timeline& timeline, const std::string& unit,
            const Standstill* standstill, std::ostream& out)
      : schedule_(schedule), timeline_(timeline), unit_(unit), out_(out), standstill_(standstill) {
    end_ = ir::span_of(schedule.rows, timeline).end;
    double shortest = std::numeric_limits<double>::infinity();
    for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
      for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
        const Action& action = schedule.rows[rank][step];
        if (action.is_idle()) continue;
        const ir::Interval& interval = timeline.at(rank, step);
        if (interval.duration() <= 0) continue;
        if (ir::is_compute(action.kind())) {
          shortest = std::min(shortest, interval.duration());
        } else {
          has_comms_ = true;
        }
        for (const ActionPart part : action.parts()) shown_.insert(&paint_of(part.kind()));
      }
    }
    const double room = schedule.slices > 1 ? 26 : 20;  // for the label of a compute
    const double wide_enough = end_ > 0 && std::isfinite(shortest) ? room * end_ / shortest : 0;
    plot_ = std::clamp(wide_enough, 640.0, 6000.0);
    scale_ = end_ > 0 ? plot_ / end_ : 1;
    pitch_ = kRow + (has_comms_ ? kComms : 0) + kGap;
    if (standstill_ != nullptr) find_stops();
  }

  void print(const std::string& title) {
    const auto ranks = static_cast<double>(schedule_.rows.size());
    const double width = kLeft + plot_ + stops_width_ + kRight;
    const double bottom = kTop + ranks * pitch_;
    const double height = bottom + kAxis + kLegend;
    out_ << fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
        "{1}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"11\">\n",
        px(width), px(height));
    out_ << fmt::format("<title>{}</title>\n", escaped(title));
    out_ << fmt::format("<rect width=\"{}\" height=\"{}\" fill=\"white\"/>\n", px(width),
                        px(height));
    out_ << fmt::format("<text x=\"{}\" y=\"20\" font-size=\"13\">{}</text>\n", px(kLeft),
                        escaped(title));
    print_axis(bottom);
    for (size_t rank = 0; rank < schedule_.rows.size(); ++rank) print_rank(rank);
    for (size_t rank = 0; rank < stops_.size(); ++rank) print_stop(rank);
    if (standstill_ != nullptr) print_waits();
    print_legend(bottom + kAxis);
    out_ << "</svg>\n";
  }

 private:
  // The box where a rank stops.
  struct StopBox {
    Stop stop;
    double left, right;
  };

  double x(double time) const { return kLeft + time * scale_; }
  double top_of(size_t rank) const { return kTop + static_cast<double>(rank) * pitch_; }

  void find_stops() {
    for (Stop& stop : stops_of(schedule_, timeline_, *standstill_)) {
      const double left = x(stop.time) + 2;
      const double right = left + kDigitWidth * static_cast<double>(stop.label.size()) + 12;
      if (!stop.label.empty())
        stops_width_ = std::max(stops_width_, right - kLeft - plot_ + kLongestBend);
      stops_.push_back({std::move(stop), left, right});
    }
  }

  void print_stop(size_t rank) {
    const auto& [stop, left, right] = stops_[rank];
    if (stop.label.empty()) return;
    std::string waits;
    for (const std::string& wait : stop.waits) waits += "\n" + wait;
    out_ << fmt::format(
        "<g><title>rank {} stops before {}{}</title><rect x=\"{}\" y=\"{}\" width=\"{}\" "
        "height=\"{}\" fill=\"white\" stroke=\"{}\" stroke-dasharray=\"4 2\"/><text x=\"{}\" "
        "y=\"{}\" text-anchor=\"middle\" fill=\"{}\">{}</text></g>\n",
        rank, escaped(stop.label), escaped(waits), px(left), px(top_of(rank) + 1), px(right - left),
        px(kRow - 2), kAlarm, px((left + right) / 2), px(top_of(rank) + kRow / 2 + 4), kAlarm,
        escaped(stop.label));
  }

  // Arrows leave a box above its middle and arrive below it, so that opposite ones do not cover
  // each other.
  void print_waits() {
    std::set<std::pair<size_t, size_t>> drawn;
    for (const Standstill::Edge& wait : standstill_->waits) {
      const size_t from = wait.waiting.rank, to = wait.blocking.rank;
      if (from == to || !drawn.emplace(from, to).second) continue;
      const double y1 = top_of(from) + kRow / 2 - 5, y2 = top_of(to) + kRow / 2 + 5;
      const double x1 = stops_[from].right, x2 = stops_[to].right;
      const double ranks =
          from < to ? static_cast<double>(to - from) + 0.5 : static_cast<double>(from - to);
      const double bend = std::max(x1, x2) + std::min(kLongestBend, 14 + 12 * ranks);
      out_ << fmt::format(
          "<g><title>{0}</title><path d=\"M{1} {2}C{3} {2} {3} {4} {5} {4}\" fill=\"none\" "
          "stroke=\"{6}\"/><path d=\"M{7} {4}l7 -3.5v7z\" fill=\"{6}\"/></g>\n",
          escaped(wait.text), px(x1), px(y1), px(bend), px(y2), px(x2 + 6), kAlarm, px(x2));
    }
  }

  void print_axis(double bottom) {
    // Ticks at 1, 2 or 5 times a power of ten, at least 80 pixels apart.
    const double rough = end_ > 0 ? 80 / scale_ : 1;
    const double power = std::pow(10, std::floor(std::log10(rough)));
    double tick = 10 * power;
    for (const double times : {1.0, 2.0, 5.0}) {
      if (times * power >= rough) {
        tick = times * power;
        break;
      }
    }
    for (int count = 0; count * tick <= end_ * (1 + 1e-9); ++count) {
      const double at = count * tick;
      out_ << fmt::format(
          "<line x1=\"{0}\" y1=\"{1}\" x2=\"{0}\" y2=\"{2}\" stroke=\"#e3e3e3\"/>\n", px(x(at)),
          px(kTop - 4), px(bottom));
      out_ << fmt::format(
          "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{:.6g}{}</text>\n",
          px(x(at)), px(bottom + 13), at, count > 0 && !unit_.empty() ? " " + escaped(unit_) : "");
    }
  }

  void print_rank(size_t rank) {
    const double top = top_of(rank);
    out_ << fmt::format(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#333\">rank {}</text>\n", px(kLeft - 8),
        px(top + kRow / 2 + 4), rank);
    const std::vector<int> stages = schedule_.placement.stages_of(static_cast<int>(rank));
    for (size_t step = 0; step < schedule_.rows[rank].size(); ++step) {
      const Action& action = schedule_.rows[rank][step];
      const ir::Interval& interval = timeline_.at(rank, step);
      if (action.is_idle() || interval.duration() <= 0) continue;
      const bool compute = ir::is_compute(action.kind());
      const auto parts = action.parts();
      out_ << fmt::format("<g><title>{}, rank {}, {:.6g} to {:.6g}</title>", ir::to_string(action),
                          rank, interval.start, interval.end);
      const double height = compute ? kRow / static_cast<double>(parts.size()) : kComms / 2 - 1;
      double y = compute ? top : top + kRow + 1 + (ir::is_receive(action.kind()) ? kComms / 2 : 0);
      for (const ActionPart part : parts) {
        print_part(part, interval, y, height, compute, stages);
        y += height;
      }
      out_ << "</g>\n";
    }
  }

  void print_part(ActionPart part, const ir::Interval& interval, double y, double height,
                  bool compute, const std::vector<int>& stages) {
    const auto nth = std::ranges::find(stages, part.stage()) - stages.begin();
    const double width = std::max(0.5, interval.duration() * scale_);
    out_ << fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"{}/>",
                        px(x(interval.start)), px(y), px(width), px(height),
                        paint_of(part.kind()).shades[static_cast<size_t>(nth % 3)],
                        compute ? " stroke=\"white\" stroke-width=\"0.8\"" : "");
    const std::string number = microbatch_text(part.microbatch(), schedule_.slices);
    if (!compute || static_cast<double>(number.size()) * kDigitWidth > width - 2) return;
    out_ << fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\"{}>{}</text>",
                        px(x(interval.start) + width / 2), px(y + height / 2 + 4),
                        height < 16 ? " font-size=\"9.5\"" : "", number);
  }

  void print_legend(double y) {
    double at = kLeft;
    for (const Paint& paint : palette()) {
      if (!shown_.contains(&paint)) continue;
      out_ << fmt::format("<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/>",
                          px(at), px(y), paint.shades[0]);
      out_ << fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", px(at + 17), px(y + 10),
                          paint.legend);
      at += 17 + static_cast<double>(paint.legend.size()) * kDigitWidth + 20;
    }
    std::vector<std::string> notes;
    if (schedule_.placement.num_replicas() > 1) {
      notes.push_back("shades: replicas 0 and 1");
    } else if (schedule_.placement.num_stages() > schedule_.placement.num_ranks()) {
      notes.push_back("shades: stages of a rank");
    }
    if (schedule_.slices > 1) notes.push_back("1.0: slice 0 of microbatch 1");
    if (!notes.empty())
      out_ << fmt::format("<text x=\"{}\" y=\"{}\" fill=\"#555\">{}</text>\n", px(at), px(y + 10),
                          fmt::join(notes, "; "));
  }

  const ir::Schedule& schedule_;
  const ir::Timeline& timeline_;
  std::string unit_;
  std::ostream& out_;
  std::set<const Paint*> shown_;  // the colours used, for the legend
  bool has_comms_ = false;
  double end_ = 0, plot_ = 0, scale_ = 1, pitch_ = 0;
  // For a schedule that cannot run to its end.
  const Standstill* standstill_;
  std::vector<StopBox> stops_;  // by rank
  double stops_width_ = 0;      // beyond the plot
};

}  // namespace

void print_svg(const ir::Schedule& schedule, const ir::Timeline& timeline, const std::string& title,
               const std::string& unit, std::ostream& out, const Standstill* standstill) {
  SvgWriter(schedule, timeline, unit, standstill, out).print(title);
}

}  // namespace pipewright::schedule
