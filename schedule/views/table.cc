#include "pipewright/schedule/views/table.h"

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "pipewright/ir/text/action_text.h"

namespace pipewright::schedule {
namespace {

constexpr std::array<std::string_view, 3> all(std::string_view color) {
  return {color, color, color};
}

enum Index {
  kForward,
  kBackward,
  kInput,
  kWeight,
  kCompound,
  kSend,
  kReceive,
  kData,
  kWait,
  kIdle
};
constexpr Paint kPalette[] = {
    {"F forward", "34", {"#8fb8e8", "#bcd7f5", "#6d9ed6"}},           // blue
    {"B backward", "32", {"#94cf94", "#c3e6c1", "#6fb56f"}},          // green
    {"I backward, input", "36", {"#7fd0c8", "#b5e6e0", "#57b3aa"}},   // teal
    {"W backward, weight", "33", {"#f2d479", "#f9e8b4", "#dcb84f"}},  // yellow
    {"F and B overlapped", "35", all("#d6a8d6")},                     // magenta
    {"SEND", "2", all("#9a9a9a")},                                    // dim; grey
    {"RECV", "2", all("#c46a6a")},                                    // dim; red
    {"UNSHARD, RESHARD, REDUCE_GRAD", "", all("#b79ad6")},            // violet in figures
    {"WAIT", "", all("#e0c9a6")},                                     // tan in figures
    {"idle", "", all("#ffffff")},
};

}  // namespace

std::span<const Paint> palette() { return kPalette; }

std::string microbatch_text(int microbatch, int slices) {
  if (slices == 1) return std::to_string(microbatch);
  return std::to_string(microbatch / slices) + "." + std::to_string(microbatch % slices);
}

const Paint& paint_of(ir::ActionKind kind) {
  switch (kind) {
    case ir::ActionKind::kForward:
      return kPalette[kForward];
    case ir::ActionKind::kBackward:
      return kPalette[kBackward];
    case ir::ActionKind::kBackwardInput:
      return kPalette[kInput];
    case ir::ActionKind::kBackwardWeight:
      return kPalette[kWeight];
    case ir::ActionKind::kOverlapFB:
      return kPalette[kCompound];
    case ir::ActionKind::kSendF:
    case ir::ActionKind::kSendB:
      return kPalette[kSend];
    case ir::ActionKind::kRecvF:
    case ir::ActionKind::kRecvB:
      return kPalette[kReceive];
    case ir::ActionKind::kUnshard:
    case ir::ActionKind::kReshard:
    case ir::ActionKind::kReduceGrad:
      return kPalette[kData];
    case ir::ActionKind::kWaitSendF:
    case ir::ActionKind::kWaitSendB:
    case ir::ActionKind::kWaitReduceGrad:
      return kPalette[kWait];
    case ir::ActionKind::kIdle:
      break;
  }
  return kPalette[kIdle];
}

namespace {

std::string rank_label(size_t rank) { return "Rank " + std::to_string(rank); }

std::vector<size_t> column_widths(const ir::Rows& rows) {
  std::vector<size_t> widths;
  std::string text;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    size_t width = rank_label(rank).size();
    for (const ir::Action& action : rows[rank]) {
      text.clear();
      ir::append_action(action, &text);
      width = std::max(width, text.size());
    }
    widths.push_back(width);
  }
  return widths;
}

// Prints one table, of the ranks [first, last).
void print_block(const ir::Rows& rows, const std::vector<size_t>& widths, size_t first, size_t last,
                 size_t num_steps, const TableOptions& options, std::ostream& out) {
  const size_t digits = std::to_string(num_steps == 0 ? 0 : num_steps - 1).size();
  std::string line;
  std::string text;
  size_t blanks = 0;  // due before the next text, so that no line ends in blanks
  const auto add = [&](const std::string& shown, std::string_view color, size_t width) {
    if (!shown.empty()) {
      line.append(blanks, ' ');
      blanks = 0;
      if (color.empty()) {
        line += shown;
      } else {
        line.append("\x1B[").append(color).append("m").append(shown).append("\x1B[0m");
      }
    }
    blanks += width - shown.size();
  };
  const auto end_line = [&] {
    out << line << '\n';
    line.clear();
    blanks = 0;
  };

  blanks = std::string_view("Step ").size() + digits + 1;
  for (size_t rank = first; rank < last; ++rank) {
    ++blanks;
    add(rank_label(rank), "", widths[rank]);
  }
  end_line();
  for (size_t step = 0; step < num_steps; ++step) {
    const std::string number = std::to_string(step);
    line = "Step " + std::string(digits - number.size(), '0') + number + ":";
    for (size_t rank = first; rank < last; ++rank) {
      const ir::Action action = step < rows[rank].size() ? rows[rank][step] : ir::Action();
      text.clear();
      ir::append_action(action, &text);
      ++blanks;
      add(text, options.color ? paint_of(action.kind()).ansi : "", widths[rank]);
    }
    end_line();
  }
}

}  // namespace

void print_table(const ir::Schedule& schedule, const TableOptions& options, std::ostream& out) {
  const ir::Rows& rows = schedule.rows;
  const std::vector<size_t> widths = column_widths(rows);
  size_t num_steps = 0;
  for (const ir::Row& row : rows) num_steps = std::max(num_steps, row.size());
  const size_t label =
      std::string_view("Step :").size() + std::to_string(num_steps == 0 ? 0 : num_steps - 1).size();
  for (size_t first = 0; first < rows.size();) {
    size_t columns = label + 1 + widths[first];
    size_t last = first + 1;
    while (last < rows.size() &&
           (options.width == 0 || columns + 1 + widths[last] <= options.width)) {
      columns += 1 + widths[last++];
    }
    if (first > 0) out << '\n';
    print_block(rows, widths, first, last, num_steps, options, out);
    first = last;
  }
}

}  // namespace pipewright::schedule
