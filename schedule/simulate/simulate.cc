#include "pipewright/schedule/simulate/simulate.h"

#include <algorithm>
#include <limits>

#include "pipewright/schedule/simulate/event_walk.h"

namespace pipewright::schedule {
namespace {

// A sink of a walk that computes the times of each action from those of its dependencies.
class Clock {
 public:
  Clock(const CostTable& table, ir::Timeline* timeline) : table_(table), timeline_(*timeline) {}

  void wait_for(const Dependency& dependency) {
    const ir::Interval& other = timeline_[dependency.action];
    if (dependency.kind == Dependency::kSend) {
      start_ = std::max(start_, other.start);
      end_ = other.end;
    } else {
      start_ = std::max(start_, other.end + transfer_of(dependency, table_));
    }
  }
  void add(uint32_t number, const ir::Action& action) { add(number, action, 1); }
  void add(uint32_t number, const ir::Action& action, double stretch) {
    timeline_[number] = {start_, std::max(end_, start_ + stretch * table_.duration(action))};
    start_ = end_ = 0;
  }

 private:
  const CostTable& table_;
  ir::Timeline& timeline_;
  double start_ = 0, end_ = 0;
};

}  // namespace

double transfer_of(const Dependency& dependency, const CostTable& table) {
  const int stage = static_cast<int>(dependency.stage);
  if (dependency.kind == Dependency::kOutput) return table.output_transfer(stage);
  if (dependency.kind == Dependency::kGradient) return table.gradient_transfer(stage);
  return 0;
}

ir::Timeline simulate(const EventGraph& graph, const ir::Schedule& schedule, const Costs& costs,
                      std::span<const double> stretch) {
  const CostTable table(costs, schedule.placement);
  ir::Timeline timeline(schedule.rows);
  Clock clock(table, &timeline);
  for (size_t position = 0; position < graph.order().size(); ++position) {
    const uint32_t number = graph.order()[position];
    for (const Dependency& dependency : graph.dependencies(position)) clock.wait_for(dependency);
    const ir::Timeline::Cell cell = timeline.cell_of(number);
    clock.add(number, schedule.rows[cell.rank][cell.step], stretch.empty() ? 1 : stretch[number]);
  }
  return timeline;
}

std::optional<ir::Timeline> simulate(const ir::ComputeOrder& order, const Costs& costs) {
  const CostTable table(costs, order.placement);
  ir::Timeline timeline(order.rows);
  Clock clock(table, &timeline);
  if (!OrderWalk(order, &clock).run()) return std::nullopt;
  return timeline;
}

std::optional<ir::Timeline> simulate(const ir::Program& program, ir::ChannelModel channels,
                                     ir::ChannelCapacity capacity, const Costs& costs) {
  const CostTable table(costs, program.placement);
  ir::Timeline timeline(program.rows);
  Clock clock(table, &timeline);
  if (!ProgramWalk(program, channels, capacity, &clock).run()) return std::nullopt;
  return timeline;
}

std::vector<double> slack_of(const EventGraph& graph, const ir::Schedule& schedule,
                             const Costs& costs, const ir::Timeline& timeline) {
  const CostTable table(costs, schedule.placement);
  // By action: the latest end that does not delay the end of the schedule.
  std::vector<double> latest(timeline.size(), ir::span_of(schedule.rows, timeline).end);
  for (size_t position = graph.order().size(); position-- > 0;) {
    const uint32_t number = graph.order()[position];
    const auto dependencies = graph.dependencies(position);
    const bool receives = std::ranges::any_of(
        dependencies, [](const Dependency& one) { return one.kind == Dependency::kSend; });
    // A RECV takes no time by itself: it ends with its SEND, or when it is posted if that is later.
    const double latest_start =
        receives ? latest[number] : latest[number] - timeline[number].duration();
    for (const Dependency& dependency : dependencies) {
      const double limit = latest_start - transfer_of(dependency, table);
      latest[dependency.action] = std::min(latest[dependency.action], limit);
    }
  }
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
      double& slack = latest[timeline.index(rank, step)];
      slack = schedule.rows[rank][step].is_idle() ? 0 : slack - timeline.at(rank, step).end;
    }
  }
  return latest;
}

std::vector<CriticalStep> critical_path(const EventGraph& graph, const ir::Schedule& schedule,
                                        const Costs& costs, const ir::Timeline& timeline) {
  const CostTable table(costs, schedule.placement);
  std::vector<CriticalStep> path;
  // Starts at the action that ends last and goes backward along the order. `next` is the next
  // action of the path: the dependency that determined when the previously found action could run.
  uint32_t next = 0;
  double last_end = -1;
  for (const uint32_t number : graph.order()) {
    if (timeline[number].end > last_end) {
      last_end = timeline[number].end;
      next = number;
    }
  }
  for (size_t position = graph.order().size(); position-- > 0;) {
    const uint32_t number = graph.order()[position];
    if (number != next) continue;
    const Dependency* decided = nullptr;
    double latest = -1;
    for (const Dependency& dependency : graph.dependencies(position)) {
      const double ready = timeline[dependency.action].end + transfer_of(dependency, table);
      if (ready > latest) {
        latest = ready;
        decided = &dependency;
      }
    }
    const ir::Timeline::Cell cell = timeline.cell_of(number);
    path.push_back({static_cast<int>(cell.rank), static_cast<int>(cell.step),
                    decided == nullptr ? 0 : transfer_of(*decided, table)});
    if (decided == nullptr) break;
    next = decided->action;
  }
  std::ranges::reverse(path);
  return path;
}

}  // namespace pipewright::schedule
