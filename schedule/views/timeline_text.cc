#include "pipewright/schedule/views/timeline_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/views/table.h"

namespace pipewright::schedule {
namespace {

using ir::Action;
using ir::ActionKind;
using ir::ActionPart;

// One line: its characters, and for each the kind of action that it belongs to.
struct Line {
  std::string text;
  std::vector<ActionKind> kinds;

  explicit Line(size_t columns) : text(columns, ' '), kinds(columns, ActionKind::kIdle) {}
};

// What a cell shows, from the longest to the shortest: "2F10", "F10", "10", "F".
enum class Form { kStage, kKind, kMicrobatch, kLetter };

std::string label_of(const Action& action, Form form, int slices) {
  if (form == Form::kLetter)
    return std::string(1, action.is_compound() ? '&' : ir::info(action.kind()).token[0]);
  std::string text;
  for (const ActionPart part : action.parts()) {
    if (!text.empty()) text += '&';
    if (form == Form::kStage) text += std::to_string(part.stage());
    if (form != Form::kMicrobatch) text += ir::info(part.kind()).token;
    if (ir::info(part.kind()).has_microbatch) text += microbatch_text(part.microbatch(), slices);
  }
  return text;
}

class TimelineText {
 public:
  TimelineText(const ir::Schedule& schedule, const ir::Timeline& timeline,
               const TimelineTextOptions& options)
      : schedule_(schedule), timeline_(timeline), options_(options) {
    has_waits_ = (ir::kinds_in(schedule.rows) & ir::kWaits) != 0;
    label_width_ =
        fmt::format("rank {}", schedule.rows.empty() ? 0 : schedule.rows.size() - 1).size();
    for (const ir::Row& row : schedule.rows) {
      std::vector<int> stages;
      for (const Action& action : row) {
        for (const ActionPart part : action.parts()) stages.push_back(part.stage());
      }
      std::ranges::sort(stages);
      with_stage_ = with_stage_ || (!stages.empty() && stages.front() != stages.back());
    }
    for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
      for_each_row(rank, [&](std::string_view, const auto& shown) {
        mark_width_ = std::max(mark_width_, mark_of(rank, shown).size());
      });
    }
    choose_scale();
    choose_form();
  }

  void print(std::ostream& out) const {
    for (size_t rank = 0; rank < schedule_.rows.size(); ++rank) {
      for_each_row(rank, [&](std::string_view label, const auto& shown) {
        print_row(label, rank, out, shown);
      });
    }
  }

 private:
  // Calls visit(label, shown) for each row of a rank; `shown` says which actions it has.
  template <typename Visit>
  void for_each_row(size_t rank, const Visit& visit) const {
    visit(fmt::format("rank {}", rank),
          [](const Action& action) { return ir::is_compute(action.kind()); });
    if (!options_.comms) return;
    const auto in_group = [](ir::ActionGroup group) {
      return [group](const Action& action) {
        return !action.is_compound() && ir::info(action.kind()).group == group;
      };
    };
    visit("  send", in_group(ir::ActionGroup::kSend));
    visit("  recv", in_group(ir::ActionGroup::kReceive));
    visit("  data", in_group(ir::ActionGroup::kDataParallel));
    if (has_waits_) visit("  wait", in_group(ir::ActionGroup::kWait));
  }

  bool runs(size_t rank, size_t step) const {
    return options_.standstill == nullptr ||
           !options_.standstill->blocked[timeline_.index(rank, step)];
  }
  // " !1F1": the first action of a row that never runs; empty if all run.
  template <typename Shown>
  std::string mark_of(size_t rank, const Shown& shown) const {
    if (options_.standstill == nullptr) return "";
    for (size_t step = 0; step < schedule_.rows[rank].size(); ++step) {
      const Action& action = schedule_.rows[rank][step];
      if (!action.is_idle() && shown(action) && !runs(rank, step))
        return " !" + ir::to_string(action);
    }
    return "";
  }

  template <typename Visit>
  void for_each_compute(Visit visit) const {
    for (size_t rank = 0; rank < schedule_.rows.size(); ++rank) {
      for (size_t step = 0; step < schedule_.rows[rank].size(); ++step) {
        const Action& action = schedule_.rows[rank][step];
        if (!ir::is_compute(action.kind())) continue;
        const ir::Interval& interval = timeline_.at(rank, step);
        if (interval.duration() > 0) visit(action, interval);
      }
    }
  }

  // Columns per unit of time: enough for the label of every compute, or fewer to fit the width. The
  // shortest compute gets a whole number of columns, so that equal times look equal.
  void choose_scale() {
    end_ = ir::span_of(schedule_.rows, timeline_).end;
    const Form full = with_stage_ ? Form::kStage : Form::kKind;
    double columns_per_unit = 0, shortest = std::numeric_limits<double>::infinity();
    for_each_compute([&](const Action& action, const ir::Interval& interval) {
      const auto columns = static_cast<double>(label_of(action, full, schedule_.slices).size() + 1);
      columns_per_unit = std::max(columns_per_unit, columns / interval.duration());
      shortest = std::min(shortest, interval.duration());
    });
    if (columns_per_unit == 0) columns_per_unit = 1;
    // One very short action must not make the line excessively long.
    constexpr double kMostColumns = 1e6;
    if (end_ > 0) columns_per_unit = std::min(columns_per_unit, kMostColumns / end_);
    const size_t before = label_width_ + 2 + mark_width_;
    if (options_.width > 0 && end_ > 0) {
      const size_t room = options_.width > before ? options_.width - before : 1;
      columns_per_unit = std::min(columns_per_unit, static_cast<double>(room) / end_);
    }
    scale_ = columns_per_unit;
    if (shortest * scale_ >= 1 && std::isfinite(shortest))
      scale_ = std::floor(shortest * scale_ + 1e-9) / shortest;
    columns_ = static_cast<size_t>(std::ceil(end_ * scale_ - 1e-9));
  }

  // The longest form that fits into every compute.
  void choose_form() {
    const Form most = with_stage_ ? Form::kStage : Form::kKind;
    for (const Form form : {Form::kStage, Form::kKind, Form::kMicrobatch}) {
      // Bare numbers need colours to show their kind.
      if (form < most || (form == Form::kMicrobatch && !options_.color)) continue;
      bool fits = true;
      for_each_compute([&](const Action& action, const ir::Interval& interval) {
        // A label that starts with a letter needs no blank before it.
        const size_t blank = form == Form::kKind && !options_.color ? 0 : 1;
        fits = fits && label_of(action, form, schedule_.slices).size() + blank <=
                           column_of(interval.end) - column_of(interval.start);
      });
      form_ = form;
      if (fits) return;
    }
    form_ = Form::kLetter;
  }

  size_t column_of(double time) const {
    return std::min(columns_, static_cast<size_t>(std::llround(time * scale_)));
  }

  template <typename Shown>
  void print_row(std::string_view label, size_t rank, std::ostream& out, Shown shown) const {
    Line line(columns_);
    bool any = false;
    size_t stop = 0;  // the column where the last action that runs ends
    for (size_t step = 0; step < schedule_.rows[rank].size(); ++step) {
      const Action& action = schedule_.rows[rank][step];
      if (action.is_idle() || !shown(action)) continue;
      any = true;
      if (runs(rank, step)) stop = std::max(stop, draw(action, timeline_.at(rank, step), &line));
    }
    if (!any && label[0] == ' ') return;
    std::string text = fmt::format("{:<{}}  ", label, label_width_);
    size_t end = columns_;
    while (end > 0 && line.kinds[end - 1] == ActionKind::kIdle) --end;
    ActionKind current = ActionKind::kIdle;
    for (size_t column = 0; column < end; ++column) {
      if (options_.color && line.kinds[column] != current) {
        current = line.kinds[column];
        const std::string_view color = paint_of(current).ansi;
        text += color.empty() ? "\x1B[0m" : fmt::format("\x1B[0;7;{}m", color);
      }
      text += line.text[column];
    }
    if (options_.color && current != ActionKind::kIdle) text += "\x1B[0m";
    const std::string mark = mark_of(rank, shown);
    if (!mark.empty()) {
      // After the gap that the last action leaves, if it does.
      text.append(stop - end, ' ');
      if (text.back() == ' ') text.pop_back();
      text += options_.color ? "\x1B[0;31m" + mark + "\x1B[0m" : mark;
    }
    while (!text.empty() && text.back() == ' ') text.pop_back();
    out << text << '\n';
  }

  // Returns the column after the action.
  size_t draw(const Action& action, const ir::Interval& interval, Line* line) const {
    const size_t first = std::min(column_of(interval.start), columns_ == 0 ? 0 : columns_ - 1);
    const size_t last = std::max(first + 1, column_of(interval.end));
    const size_t room = last - first;
    std::string text = label_of(action, form_, schedule_.slices);
    if (!ir::is_compute(action.kind())) {
      // The name of the row shows the kind.
      text = ir::info(action.kind()).has_microbatch
                 ? label_of(action, Form::kMicrobatch, schedule_.slices)
                 : label_of(action, Form::kLetter, schedule_.slices);
      if (text.size() > room) text = label_of(action, Form::kLetter, schedule_.slices);
    }
    for (size_t column = first; column < last && column < columns_; ++column) {
      const size_t at = column - first;
      // Leaves a gap between neighbours.
      const bool is_gap = column + 1 == last && room > text.size() && room > 1;
      line->kinds[column] = is_gap ? ActionKind::kIdle : action.kind();
      line->text[column] = at < text.size() ? text[at] : is_gap || options_.color ? ' ' : '-';
    }
    return std::min(last, columns_);
  }

  const ir::Schedule& schedule_;
  const ir::Timeline& timeline_;
  TimelineTextOptions options_;
  size_t label_width_ = 0, mark_width_ = 0;
  bool with_stage_ = false;  // labels have stages: a rank has several
  bool has_waits_ = false;
  double end_ = 0, scale_ = 1;
  Form form_ = Form::kLetter;
  size_t columns_ = 0;
};

}  // namespace

void print_timeline(const ir::Schedule& schedule, const ir::Timeline& timeline,
                    const TimelineTextOptions& options, std::ostream& out) {
  TimelineText(schedule, timeline, options).print(out);
}

}  // namespace pipewright::schedule
