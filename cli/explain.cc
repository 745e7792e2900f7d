#include <fmt/format.h>

#include <charconv>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command_table.h"
#include "cli/commands.h"
#include "cli/input.h"
#include "cli/simulation.h"
#include "cli/usage_error.h"
#include "ir/action_text.h"
#include "ir/diagnostic.h"
#include "ir/read.h"
#include "ir/rules.h"
#include "schedule/simulate.h"

namespace pipewright::cli {
namespace {

struct Cell {
  size_t rank;
  size_t step;
};

// "2:14"
Cell parse_cell(std::string_view text, const ir::Schedule& schedule) {
  const size_t colon = text.find(':');
  const auto number = [](std::string_view part, size_t* value) {
    const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), *value);
    return error == std::errc() && stop == part.data() + part.size();
  };
  Cell cell{};
  if (colon == std::string_view::npos || !number(text.substr(0, colon), &cell.rank) ||
      !number(text.substr(colon + 1), &cell.step))
    throw UsageError(
        fmt::format("--at wants RANK:STEP, as in 2:14, found {}", ir::backticked(text)));
  if (cell.rank >= schedule.rows.size())
    throw UsageError(fmt::format("--at names rank {}, and there are ranks 0 to {}", cell.rank,
                                 schedule.rows.size() - 1));
  if (cell.step >= schedule.rows[cell.rank].size())
    throw UsageError(fmt::format("--at names step {} of rank {}, which has steps 0 to {}",
                                 cell.step, cell.rank, schedule.rows[cell.rank].size() - 1));
  return cell;
}

class CellExplanation {
 public:
  CellExplanation(const ir::Schedule& schedule, const Simulation& simulation, std::ostream& out)
      : schedule_(schedule), simulation_(simulation), out_(out), places_(schedule.rows) {}

  void print(const Cell& cell) {
    const ir::Action& action = schedule_.rows[cell.rank][cell.step];
    if (action.is_idle()) {
      out_ << fmt::format("rank {}, step {} is an idle slot\n", cell.rank, cell.step);
      return;
    }
    const size_t number = places_.index(cell.rank, cell.step);
    const ir::Interval& interval = simulation_.timeline[number];
    const double slack = schedule::slack_of(simulation_.graph, schedule_, simulation_.costs,
                                            simulation_.timeline)[number];
    out_ << fmt::format("`{}` on rank {}, step {}: from {} to {}\n", ir::to_string(action),
                        cell.rank, cell.step, number_text(interval.start),
                        number_text(interval.end));
    out_ << (slack <= 1e-9 * simulation_.report.makespan
                 ? std::string("slack 0: it is critical, all ends later if it does\n")
                 : fmt::format(
                       "slack {}: it could end so much later, and all would end as it does\n",
                       number_text(slack)));
    print_before(number, interval);
    print_behind(number);
  }

 private:
  std::string name(size_t number) const {
    size_t rank = 0;
    while (rank + 1 < schedule_.rows.size() && places_.index(rank + 1, 0) <= number) ++rank;
    const size_t step = number - places_.index(rank, 0);
    return fmt::format("`{}` (rank {}, step {})", ir::to_string(schedule_.rows[rank][step]), rank,
                       step);
  }

  double transfer(const schedule::Before& before) const {
    const schedule::CostTable table(simulation_.costs, schedule_.placement);
    const int stage = static_cast<int>(before.stage);
    if (before.bond == schedule::Before::kOutput) return table.output_transfer(stage);
    if (before.bond == schedule::Before::kGradient) return table.gradient_transfer(stage);
    return 0;
  }

  void print_before(size_t number, const ir::Interval& interval) {
    for (size_t position = 0; position < simulation_.graph.order().size(); ++position) {
      if (simulation_.graph.order()[position] != number) continue;
      if (simulation_.graph.before(position).empty()) out_ << "waits for nothing\n";
      for (const schedule::Before& before : simulation_.graph.before(position)) {
        const double end = simulation_.timeline[before.action].end, way = transfer(before);
        const std::string_view what = before.bond == schedule::Before::kOutput ? "the output of "
                                      : before.bond == schedule::Before::kGradient
                                          ? "the gradient of "
                                      : before.bond == schedule::Before::kSend ? "its SEND, "
                                                                               : "";
        // A RECV is ruled by what lets it start, or by the end of its SEND.
        const double limit = before.bond == schedule::Before::kSend ? interval.end : interval.start;
        const bool decides = end + way >= limit - 1e-9 * simulation_.report.makespan;
        out_ << fmt::format("waits for {}{}: {}{}\n", what, name(before.action),
                            way > 0 ? fmt::format("there at {}", number_text(end + way))
                                    : fmt::format("ends at {}", number_text(end)),
                            decides ? ", which decides" : "");
      }
    }
  }

  void print_behind(size_t number) {
    for (size_t position = 0; position < simulation_.graph.order().size(); ++position) {
      for (const schedule::Before& before : simulation_.graph.before(position)) {
        if (before.action == number)
          out_ << fmt::format("{} waits for it\n", name(simulation_.graph.order()[position]));
      }
    }
  }

  const ir::Schedule& schedule_;
  const Simulation& simulation_;
  std::ostream& out_;
  ir::Timeline places_;
};

int explain_cell(const Invocation& invocation, Console& console) {
  Input input;
  read_input(invocation, console, &input);
  lower_input(
      invocation,
      input.source && input.schedule ? ir::level_of(*input.schedule) : ir::Level::kComputeComms,
      nullptr, &input);
  const std::optional<Simulation> simulation =
      simulate_input(invocation, read_costs(invocation, console), &input);
  if (!simulation) {
    print_diagnostics(input, console);
    return kExitInvalid;
  }
  const ir::Schedule& schedule = ir::schedule_of(*input.schedule);
  CellExplanation(schedule, *simulation, console.out)
      .print(parse_cell(*invocation.text("--at"), schedule));
  return kExitOk;
}

}  // namespace

int run_explain(const Invocation& invocation, Console& console) {
  const std::string& word = invocation.arguments[0];
  if (invocation.has("--at")) return explain_cell(invocation, console);
  for (const auto& [option, value] : invocation.options) {
    if (option != "--color" && option != "--width")
      throw UsageError(fmt::format("{} goes with --at", option));
  }
  if (const std::optional<ir::Rule> rule = ir::rule_of_code(word)) {
    console.out << fmt::format("{}: {}\n\n{}", ir::code(*rule), ir::info(*rule).summary,
                               ir::info(*rule).text);
    return kExitOk;
  }
  std::vector<std::string> codes;
  for (const ir::RuleInfo& row : ir::rules()) codes.push_back(ir::code(row.rule));
  print_trouble(fmt::format("there is no rule {}; rules are {}; a schedule is explained with --at "
                            "RANK:STEP",
                            ir::backticked(word), fmt::join(codes, ", ")),
                console);
  return kExitTrouble;
}

}  // namespace pipewright::cli
