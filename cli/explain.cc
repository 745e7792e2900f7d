#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/input.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/cli/run.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/simulate/simulate.h"

namespace pipewright::cli {
namespace {

struct Cell {
  size_t rank;
  size_t step;
};

// What --at names: a cell ("2:14") or an action ("0F1").
using At = std::variant<Cell, ir::Action>;

At parse_at(std::string_view text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const auto number = [](std::string_view part, size_t* value) {
    const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), *value);
    return error == std::errc() && stop == part.data() + part.size();
  };
  Cell cell{};
  if (colon < text.size() && number(text.substr(0, colon), &cell.rank) &&
      number(text.substr(colon + 1), &cell.step))
    return cell;
  ir::Action action;
  if (!ir::parse_action(text, &action) && !action.is_idle()) return action;
  throw wrong_value("--at", "RANK:STEP or an action, as in 2:14 or 0F1", text);
}

// "0I1, 0W1": the computes of the action's stage and microbatch, for an action that does not exist.
std::string neighbors_of(const ir::Action& action, const ir::Schedule& schedule) {
  const ir::ActionPart wanted = action.parts().front();
  std::vector<std::string> found;
  for (const ir::Row& row : schedule.rows) {
    for (const ir::Action& other : row) {
      for (const ir::ActionPart part : other.parts()) {
        if (part.stage() == wanted.stage() && part.microbatch() == wanted.microbatch() &&
            ir::is_compute(part.kind()))
          found.push_back(ir::to_string(part));
      }
    }
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

Cell find_action(const ir::Action& action, const ir::Schedule& schedule) {
  std::vector<Cell> cells;
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
      const ir::Action& other = schedule.rows[rank][step];
      const bool is_part = std::ranges::any_of(
          other.parts(), [&](const ir::ActionPart part) { return ir::Action(part) == action; });
      if (other == action || is_part) cells.push_back({rank, step});
    }
  }
  if (cells.size() == 1) return cells.front();
  const std::string token = ir::to_string(action);
  if (cells.empty()) {
    const std::string neighbors = neighbors_of(action, schedule);
    throw UsageError(fmt::format("--at: expected an action of the schedule, got `{}`{}", token,
                                 neighbors.empty() ? "" : "; it has " + neighbors));
  }
  std::string places;
  constexpr size_t kShown = 8;
  for (size_t index = 0; index < std::min(cells.size(), kShown); ++index)
    places += fmt::format("{}{}:{}", index == 0 ? "" : ", ", cells[index].rank, cells[index].step);
  if (cells.size() > kShown) places += ", ...";
  throw UsageError(
      fmt::format("--at: expected RANK:STEP for an action that occurs {} times, got "
                  "`{}`; it is at {}",
                  cells.size(), token, places));
}

Cell check_cell(const Cell& cell, const ir::Schedule& schedule) {
  if (cell.rank >= schedule.rows.size())
    throw UsageError(fmt::format("--at: expected a rank from 0 to {}, got {}",
                                 schedule.rows.size() - 1, cell.rank));
  if (cell.step >= schedule.rows[cell.rank].size())
    throw UsageError(fmt::format("--at: expected a step of rank {} from 0 to {}, got {}", cell.rank,
                                 schedule.rows[cell.rank].size() - 1, cell.step));
  return cell;
}

Cell find_cell(const At& at, const ir::Schedule& schedule) {
  if (const Cell* cell = std::get_if<Cell>(&at)) return check_cell(*cell, schedule);
  return find_action(std::get<ir::Action>(at), schedule);
}

class CellExplanation {
 public:
  CellExplanation(const ir::AnySchedule& schedule, const Simulation& simulation, std::ostream& out)
      : schedule_(ir::schedule_of(schedule)),
        simulation_(simulation),
        graph_(schedule::graph_of(schedule)),
        out_(out) {}

  void print(const Cell& cell) {
    const ir::Action& action = schedule_.rows[cell.rank][cell.step];
    if (action.is_idle()) {
      out_ << fmt::format("rank {}, step {} is an idle slot\n", cell.rank, cell.step);
      return;
    }
    const uint32_t number = graph_.number_of(cell.rank, cell.step);
    const ir::Interval& interval = simulation_.timeline[number];
    const double slack =
        schedule::slack_of(graph_, schedule_, simulation_.costs, simulation_.timeline)[number];
    out_ << fmt::format("`{}` on rank {}, step {}: from {} to {}\n", ir::to_string(action),
                        cell.rank, cell.step, number_text(interval.start),
                        number_text(interval.end));
    out_ << (slack == 0
                 ? std::string("slack 0: critical, the makespan grows if it ends later\n")
                 : fmt::format("slack {}: it could end that much later without a longer makespan\n",
                               number_text(slack)));
    print_before(number, interval);
    print_after(number);
  }

 private:
  std::string name(size_t number) const {
    const ir::Timeline::Cell cell = simulation_.timeline.cell_of(number);
    return fmt::format("`{}` (rank {}, step {})",
                       ir::to_string(schedule_.rows[cell.rank][cell.step]), cell.rank, cell.step);
  }

  static std::string_view name_of(schedule::Dependency::Kind kind) {
    switch (kind) {
      case schedule::Dependency::kEnd:
        return "";
      case schedule::Dependency::kOutput:
        return "the output of ";
      case schedule::Dependency::kGradient:
        return "the gradient of ";
      case schedule::Dependency::kSend:
        return "its SEND, ";
    }
    return "";
  }

  // The copy back from the host that a backward waits for.
  void print_copy(const ir::Action& action, double start) {
    for (const ir::ActionPart part : action.parts()) {
      if (!ir::gives_input_gradient(part.kind())) continue;
      const ir::ActionPart forward(ir::ActionKind::kForward, part.stage(), part.microbatch());
      for (const ir::Work& copy : simulation_.timeline.work()) {
        if (copy.track != ir::WorkTrack::kToDevice || copy.part != forward) continue;
        const bool decides =
            copy.time.end >= start - ir::kTimeTolerance * simulation_.report.makespan;
        out_ << fmt::format("waits for its activation's copy back: ends at {}{}\n",
                            number_text(copy.time.end), decides ? ", which decides" : "");
      }
    }
  }

  void print_before(uint32_t number, const ir::Interval& interval) {
    const schedule::CostTable table(simulation_.costs, schedule_.placement);
    const ir::Timeline::Cell cell = simulation_.timeline.cell_of(number);
    const ir::Action& action = schedule_.rows[cell.rank][cell.step];
    const auto befores = graph_.dependencies_of(number);
    if (befores.empty()) out_ << "waits for nothing\n";
    for (const schedule::Dependency& before : befores) {
      const double end = simulation_.timeline[before.action].end;
      const double way = schedule::transfer_of(before, action, table);
      // A SEND limits the end of its RECV; any other dependency limits the start of the action.
      const double limit =
          before.kind == schedule::Dependency::kSend ? interval.end : interval.start;
      const ir::Timeline::Cell from = simulation_.timeline.cell_of(before.action);
      const double lead =
          schedule::lead_of(before, schedule_.rows[from.rank][from.step], action, cell.rank, table);
      const bool decides =
          end + way - lead >= limit - ir::kTimeTolerance * simulation_.report.makespan;
      out_ << fmt::format(
          "waits for {}{}: {}{}{}\n", name_of(before.kind), name(before.action),
          way > 0 ? fmt::format("arrives at {}", number_text(end + way))
                  : fmt::format("ends at {}", number_text(end)),
          lead > 0 ? fmt::format(", recomputes for {} before", number_text(lead)) : "",
          decides ? ", which decides" : "");
    }
    print_copy(action, interval.start);
  }

  void print_after(uint32_t number) {
    for (uint32_t action = 0; action < graph_.size(); ++action) {
      // A compound may wait for both parts of another one.
      const bool waits = std::ranges::any_of(
          graph_.dependencies_of(action),
          [&](const schedule::Dependency& before) { return before.action == number; });
      if (waits) out_ << fmt::format("{} waits for it\n", name(action));
    }
  }

  const ir::Schedule& schedule_;
  const Simulation& simulation_;
  const schedule::ChannelGraph graph_;
  std::ostream& out_;
};

int explain_cell(const Invocation& invocation, Console& console) {
  const At at = parse_at(*invocation.text("--at"));
  AskedCosts costs = read_costs(invocation, console);
  const Run run(invocation, console, read_input(invocation, invocation.arguments[0], console),
                std::move(costs), {});
  run.require_ok();
  const Simulation simulation = run.predicted();
  CellExplanation(run.any(), simulation, console.out).print(find_cell(at, run.schedule()));
  return kExitOk;
}

}  // namespace

int run_explain(const Invocation& invocation, Console& console) {
  const std::string& word = invocation.arguments[0];
  if (invocation.has("--at")) return explain_cell(invocation, console);
  for (const auto& [option, value] : invocation.options) {
    const bool is_common =
        std::ranges::find(common_options(), option, &OptionSpec::name) != common_options().end();
    if (!is_common) throw UsageError(fmt::format("{} requires --at", option));
  }
  if (const std::optional<ir::Rule> rule = ir::rule_of_code(word)) {
    console.out << fmt::format("{}: {}\n\n{}", ir::code(*rule), ir::info(*rule).summary,
                               ir::info(*rule).text);
    return kExitOk;
  }
  std::vector<std::string> codes;
  for (const ir::RuleInfo& row : ir::rules()) codes.push_back(ir::code(row.rule));
  print_trouble(
      fmt::format("there is no rule {}; rules are {}; to explain an action of a schedule, add --at "
                  "RANK:STEP or --at ACTION",
                  ir::backticked(word), fmt::join(codes, ", ")),
      console);
  return kExitTrouble;
}

}  // namespace pipewright::cli
