#include "pipewright/schedule/simulate/simulate.h"

#include <algorithm>
#include <limits>

#include "pipewright/schedule/simulate/event_walk.h"

namespace pipewright::schedule {
namespace {

// Makes times of what each action waits for.
class Clock {
 public:
  Clock(const CostTable& table, ir::Timeline* timeline) : table_(table), timeline_(*timeline) {}

  void wait_for(const Before& before) {
    const ir::Interval& other = timeline_[before.action];
    if (before.bond == Before::kSend) {
      start_ = std::max(start_, other.start);
      end_ = other.end;
    } else {
      start_ = std::max(start_, other.end + transfer_of(before, table_));
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

double transfer_of(const Before& before, const CostTable& table) {
  const int stage = static_cast<int>(before.stage);
  if (before.bond == Before::kOutput) return table.output_transfer(stage);
  if (before.bond == Before::kGradient) return table.gradient_transfer(stage);
  return 0;
}

ir::Timeline simulate(const EventGraph& graph, const ir::Schedule& schedule, const Costs& costs,
                      std::span<const double> stretch) {
  const CostTable table(costs, schedule.placement);
  ir::Timeline timeline(schedule.rows);
  Clock clock(table, &timeline);
  for (size_t position = 0; position < graph.order().size(); ++position) {
    const uint32_t number = graph.order()[position];
    for (const Before& before : graph.before(position)) clock.wait_for(before);
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
  // Of each action: its latest end.
  std::vector<double> latest(timeline.size(), ir::span_of(schedule.rows, timeline).end);
  for (size_t position = graph.order().size(); position-- > 0;) {
    const uint32_t number = graph.order()[position];
    const auto befores = graph.before(position);
    const bool receives = std::ranges::any_of(
        befores, [](const Before& before) { return before.bond == Before::kSend; });
    // A RECV has no length of its own: it ends with its SEND, or as soon as it is posted after it.
    const double latest_start =
        receives ? latest[number] : latest[number] - timeline[number].duration();
    for (const Before& before : befores) {
      const double limit = latest_start - transfer_of(before, table);
      latest[before.action] = std::min(latest[before.action], limit);
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
  // From the last end backwards along the order: what decided the start of the one at hand.
  uint32_t wanted = 0;
  double last_end = -1;
  for (const uint32_t number : graph.order()) {
    if (timeline[number].end > last_end) {
      last_end = timeline[number].end;
      wanted = number;
    }
  }
  for (size_t position = graph.order().size(); position-- > 0;) {
    const uint32_t number = graph.order()[position];
    if (number != wanted) continue;
    const Before* decided = nullptr;
    double at = -1;
    for (const Before& before : graph.before(position)) {
      const double lets = timeline[before.action].end + transfer_of(before, table);
      if (lets > at) {
        at = lets;
        decided = &before;
      }
    }
    const ir::Timeline::Cell cell = timeline.cell_of(number);
    path.push_back({static_cast<int>(cell.rank), static_cast<int>(cell.step),
                    decided == nullptr ? 0 : transfer_of(*decided, table)});
    if (decided == nullptr) break;
    wanted = decided->action;
  }
  std::ranges::reverse(path);
  return path;
}

}  // namespace pipewright::schedule
