// The timeline first holds each action's duration as its end. One topological pass of the graph
// then turns durations into times.
#include "pipewright/schedule/simulate/simulate.h"

#include <algorithm>
#include <utility>

#include "pipewright/schedule/simulate/simulate_on_edges.h"

namespace pipewright::schedule {
namespace {

const ir::Action& action_at(uint32_t number, const ChannelGraph& graph,
                            const ir::Schedule& schedule) {
  const ChannelGraph::Cell cell = graph.cell_of(number);
  return schedule.rows[cell.rank][cell.step];
}

// The transfer delay on an edge of a graph.
class Delays {
 public:
  Delays(const ChannelGraph& graph, const ir::Schedule& schedule, const CostTable& table)
      : graph_(graph), schedule_(schedule), table_(table) {
    if (!graph.is_order()) return;
    for (int stage = 0; stage < schedule.placement.num_stages(); ++stage)
      none_ = none_ && table.output_transfer(stage) == 0 && table.gradient_transfer(stage) == 0;
  }

  bool are_none() const { return none_; }  // all are 0
  double of(uint32_t number, const Dependency& dependency) const {
    if (dependency.kind == Dependency::kEnd || dependency.kind == Dependency::kSend || none_)
      return 0;
    return transfer_of(dependency, action_at(number, graph_, schedule_), table_);
  }

 private:
  const ChannelGraph& graph_;
  const ir::Schedule& schedule_;
  const CostTable& table_;
  bool none_ = true;  // transfers take no time, or are actions
};

// Turns durations into times; `delay(number, dependency)` is the transfer delay on an edge. Returns
// the actions that cannot run.
template <typename Delay>
std::vector<uint32_t> run(const ChannelGraph& graph, const Delay& delay, ir::Timeline* timeline) {
  return graph.run([&](uint32_t number) {
    double start = 0, end = 0;
    ir::Interval& own = (*timeline)[number];
    __builtin_prefetch(&own + 16, 1);  // as in ChannelGraph::run()
    graph.any_dependency(number, [&](const Dependency& dependency) {
      const ir::Interval& other = (*timeline)[dependency.action];
      if (dependency.kind == Dependency::kSend) {
        start = std::max(start, other.start);
        end = other.end;
      } else {
        start = std::max(start, other.end + delay(number, dependency));
      }
      return false;
    });
    own = {start, std::max(end, start + own.end)};
  });
}

}  // namespace

double transfer_of(const Dependency& dependency, const ir::Action& action, const CostTable& table) {
  for (const ir::ActionPart part : action.parts()) {
    if (dependency.kind == Dependency::kOutput && part.kind() == ir::ActionKind::kForward)
      return table.output_transfer(part.stage() - 1);
    if (dependency.kind == Dependency::kGradient && ir::gives_input_gradient(part.kind()))
      return table.gradient_transfer(part.stage() + 1);
  }
  return 0;
}

ir::Timeline simulate(const ChannelGraph& graph, const ir::Schedule& schedule, const Costs& costs,
                      std::span<const double> stretch) {
  const CostTable table(costs, schedule.placement);
  const Delays delays(graph, schedule, table);
  ir::Timeline timeline(schedule.rows);
  size_t cell = 0;
  for (const ir::Row& row : schedule.rows) {
    for (const ir::Action& action : row) {
      timeline[cell].end = table.duration(action) * (stretch.empty() ? 1 : stretch[cell]);
      ++cell;
    }
  }
  const auto none = [](uint32_t, const Dependency&) { return 0; };
  const auto delay = [&](uint32_t number, const Dependency& dependency) {
    return delays.of(number, dependency);
  };
  // Without a call in its loop, the pass keeps the times in registers and is twice as fast.
  const std::vector<uint32_t> blocked =
      delays.are_none() ? run(graph, none, &timeline) : run(graph, delay, &timeline);
  for (const uint32_t number : blocked) timeline[number] = {};
  return timeline;
}

ir::Timeline simulate(const ir::Program& program, ir::ChannelModel channels,
                      ir::ChannelCapacity capacity, const Costs& costs,
                      std::span<const double> stretch) {
  if (channels == ir::ChannelModel::kEdge) {
    const CostTable table(costs, program.placement);
    if (auto timeline = simulate_on_edges(program, capacity, table, stretch))
      return *std::move(timeline);
  }
  return simulate(ChannelGraph::of_program(program, channels, capacity), program, costs, stretch);
}

std::vector<double> slack_of(const ChannelGraph& graph, const ir::Schedule& schedule,
                             const Costs& costs, const ir::Timeline& timeline) {
  const CostTable table(costs, schedule.placement);
  const Delays delays(graph, schedule, table);
  const ir::Interval span = ir::span_of(schedule.rows, timeline);
  // By action: the latest end that does not delay the end of the schedule.
  std::vector<double> latest(timeline.size(), span.end);
  const std::vector<uint32_t> order = graph.order();
  for (size_t position = order.size(); position-- > 0;) {
    const uint32_t number = order[position];
    // A RECV takes no time by itself: it ends with its SEND, or when it is posted if that is later.
    const double latest_start = graph.node(number) == ChannelGraph::Node::kReceive
                                    ? latest[number]
                                    : latest[number] - timeline[number].duration();
    graph.any_dependency(number, [&](const Dependency& dependency) {
      const double limit = latest_start - delays.of(number, dependency);
      latest[dependency.action] = std::min(latest[dependency.action], limit);
      return false;
    });
  }
  for (uint32_t number = 0; number < graph.size(); ++number) {
    latest[number] = graph.node(number) == ChannelGraph::Node::kIdle
                         ? 0
                         : ir::without_rounding(latest[number] - timeline[number].end, span.end);
  }
  return latest;
}

std::vector<CriticalStep> critical_path(const ChannelGraph& graph, const ir::Schedule& schedule,
                                        const Costs& costs, const ir::Timeline& timeline) {
  const CostTable table(costs, schedule.placement);
  const Delays delays(graph, schedule, table);
  // Starts at the action that ends last, and goes from each action to the dependency that
  // determined when it could run.
  uint32_t number = ChannelGraph::kNone;
  for (uint32_t one = 0; one < graph.size(); ++one) {
    if (graph.node(one) == ChannelGraph::Node::kIdle) continue;
    if (number == ChannelGraph::kNone || timeline[one].end > timeline[number].end) number = one;
  }
  std::vector<CriticalStep> path;
  while (number != ChannelGraph::kNone) {
    uint32_t decided = ChannelGraph::kNone;
    double latest = -1, transfer = 0;
    graph.any_dependency(number, [&](const Dependency& dependency) {
      const double delay = delays.of(number, dependency);
      const double ready = timeline[dependency.action].end + delay;
      if (ready > latest) {
        latest = ready;
        transfer = delay;
        decided = dependency.action;
      }
      return false;
    });
    const ChannelGraph::Cell cell = graph.cell_of(number);
    path.push_back({static_cast<int>(cell.rank), static_cast<int>(cell.step), transfer});
    number = decided;
  }
  std::ranges::reverse(path);
  return path;
}

}  // namespace pipewright::schedule
