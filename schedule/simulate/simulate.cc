// The timeline first holds each action's duration as its end. One topological pass of the graph
// then turns durations into times.
#include "pipewright/schedule/simulate/simulate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/simulate/memory_model.h"
#include "pipewright/schedule/simulate/walks.h"

namespace pipewright::schedule {
namespace {

const ir::Action& action_at(uint32_t number, const ChannelGraph& graph,
                            const ir::Schedule& schedule) {
  const ChannelGraph::Cell cell = graph.cell_of(number);
  return schedule.rows[cell.rank][cell.step];
}

// The delay on an edge of a graph: its transfer, less the lead of a backward that recomputes.
class Delays {
 public:
  Delays(const ChannelGraph& graph, const ir::Schedule& schedule, const CostTable& table,
         std::span<const double> stretch = {})
      : graph_(graph), schedule_(schedule), table_(table), stretch_(stretch) {
    none_ = !table.has_leads();
    if (!graph.is_order()) return;
    for (int one = 0; one < schedule.placement.num_instances(); ++one)
      none_ = none_ && table.output_transfer(one) == 0 && table.gradient_transfer(one) == 0;
  }

  bool are_none() const { return none_; }  // all are 0
  double of(uint32_t number, const Dependency& dependency) const {
    return after(0, number, dependency);
  }
  // The earliest start after something that ended at `end`.
  double after(double end, uint32_t number, const Dependency& dependency) const {
    return none_ ? end : end + transfer(number, dependency) - lead(number, dependency);
  }
  double transfer(uint32_t number, const Dependency& dependency) const {
    if (dependency.kind == Dependency::kEnd || dependency.kind == Dependency::kSend || none_)
      return 0;
    return transfer_of(dependency, action_at(number, graph_, schedule_), table_);
  }

 private:
  double lead(uint32_t number, const Dependency& dependency) const {
    if (!table_.has_leads() || graph_.node(number) != ChannelGraph::Node::kCompute) return 0;
    const double lead =
        lead_of(dependency, action_at(dependency.action, graph_, schedule_),
                action_at(number, graph_, schedule_), graph_.cell_of(number).rank, table_);
    return stretch_.empty() ? lead : lead * stretch_[number];
  }

  const ChannelGraph& graph_;
  const ir::Schedule& schedule_;
  const CostTable& table_;
  const std::span<const double> stretch_;
  bool none_ = true;  // transfers take no time, or are actions, and no stage recomputes
};

// The copy streams of all ranks, as the computes of a graph run.
class CopyStreams {
 public:
  CopyStreams(const ChannelGraph& graph, const ir::Schedule& schedule, const CopyPlan& plan)
      : graph_(graph) {
    if (plan.is_empty()) return;
    for (size_t rank = 0; rank < schedule.rows.size(); ++rank) streams_.emplace_back(plan.of(rank));
  }

  // When the copy back that an action waits for ends; 0 if there is none.
  double reloaded(uint32_t number, const ir::Timeline& timeline) {
    if (graph_.node(number) != ChannelGraph::Node::kCompute) return 0;
    const ChannelGraph::Cell cell = graph_.cell_of(number);
    const uint32_t before = graph_.compute_before(number);
    return streams_[cell.rank].post(cell.step,
                                    before == ChannelGraph::kNone ? 0 : timeline[before].end);
  }

 private:
  const ChannelGraph& graph_;
  std::vector<CopyStream> streams_;  // by rank
};

// Turns durations into times; `after(end, number, dependency)` is the earliest start after what has
// ended at `end`, and `ready(number)` a time before which an action cannot start. Returns the
// actions that cannot run.
template <typename After, typename Ready>
std::vector<uint32_t> run(const ChannelGraph& graph, const After& after, const Ready& ready,
                          ir::Timeline* timeline) {
  return graph.run([&](uint32_t number) {
    double start = ready(number), end = 0;
    ir::Interval& own = (*timeline)[number];
    graph.any_dependency(number, [&](const Dependency& dependency) {
      const ir::Interval& other = (*timeline)[dependency.action];
      if (dependency.kind == Dependency::kSend) {
        start = std::max(start, other.start);
        end = other.end;
      } else {
        start = std::max(start, after(other.end, number, dependency));
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
      return table.of_send({ir::ActionKind::kSendF, part.stage() - 1, part.microbatch()});
    if (dependency.kind == Dependency::kGradient && ir::gives_input_gradient(part.kind()))
      return table.of_send({ir::ActionKind::kSendB, part.stage() + 1, part.microbatch()});
  }
  return 0;
}

double lead_of(const Dependency& dependency, const ir::Action& before, const ir::Action& action,
               size_t rank, const CostTable& table) {
  const bool brings_gradient =
      dependency.kind == Dependency::kGradient ||
      (dependency.kind == Dependency::kEnd && before.kind() == ir::ActionKind::kRecvB);
  if (!brings_gradient) return 0;
  for (const ir::ActionPart part : action.parts()) {
    if (ir::gives_input_gradient(part.kind()))
      return table.lead(part, table.instance_on(rank, part));
  }
  return 0;
}

ir::Timeline simulate(const ChannelGraph& graph, const ir::Schedule& schedule, const Costs& costs,
                      std::span<const double> stretch) {
  const CostTable table(costs, schedule.placement);
  const Delays delays(graph, schedule, table, stretch);
  ir::Timeline timeline(schedule.rows);
  size_t cell = 0;
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    for (const ir::Action& action : schedule.rows[rank]) {
      timeline[cell].end = table.duration(action, rank) * (stretch.empty() ? 1 : stretch[cell]);
      ++cell;
    }
  }
  const auto at_end = [](double end, uint32_t, const Dependency&) { return end; };
  const auto delayed = [&](double end, uint32_t number, const Dependency& dependency) {
    return delays.after(end, number, dependency);
  };
  // Without a call in its loop, the pass keeps the times in registers and is twice as fast.
  const auto at_once = [](uint32_t) { return 0; };
  const CopyPlan plan(schedule, costs);
  CopyStreams copies(graph, schedule, plan);
  const auto reloaded = [&](uint32_t number) { return copies.reloaded(number, timeline); };
  const std::vector<uint32_t> blocked = !plan.is_empty() ? run(graph, delayed, reloaded, &timeline)
                                        : delays.are_none()
                                            ? run(graph, at_end, at_once, &timeline)
                                            : run(graph, delayed, at_once, &timeline);
  for (const uint32_t number : blocked) timeline[number] = {};
  return timeline;
}

ir::Timeline simulate(const ir::ComputeOrder& order, const Costs& costs,
                      std::span<const double> stretch) {
  if (costs.offload_bytes.is_zero()) {
    const CostTable table(costs, order.placement);
    if (auto timeline = simulate_order(order, table, stretch)) return *std::move(timeline);
  }
  return simulate(ChannelGraph::of_order(order), order, costs, stretch);
}

ir::Timeline simulate(const ir::Program& program, ir::ChannelModel channels,
                      ir::ChannelCapacity capacity, const Costs& costs,
                      std::span<const double> stretch) {
  if (channels == ir::ChannelModel::kEdge && costs.offload_bytes.is_zero()) {
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
  const CopyPlan plan(schedule, costs);
  std::vector<LatestPosts> posts;  // by rank, if there are copies
  for (size_t rank = 0; !plan.is_empty() && rank < schedule.rows.size(); ++rank)
    posts.emplace_back(plan.of(rank));
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
    if (posts.empty() || graph.node(number) != ChannelGraph::Node::kCompute) continue;
    const ChannelGraph::Cell cell = graph.cell_of(number);
    const double posted = posts[cell.rank].before(cell.step, latest_start);
    if (const uint32_t before = graph.compute_before(number); before != ChannelGraph::kNone)
      latest[before] = std::min(latest[before], posted);
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
  const CopyPlan plan(schedule, costs);
  std::vector<std::vector<Copy>> copies;  // by rank
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank)
    copies.push_back(copies_in(schedule, plan, timeline, rank, schedule.rows[rank].size()));
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
    double latest = -1, transfer = 0, copied = 0;
    graph.any_dependency(number, [&](const Dependency& dependency) {
      const double ready = delays.after(timeline[dependency.action].end, number, dependency);
      if (ready > latest) {
        latest = ready;
        transfer = delays.transfer(number, dependency);
        decided = dependency.action;
      }
      return false;
    });
    const ChannelGraph::Cell cell = graph.cell_of(number);
    const std::vector<Copy>& own = copies[cell.rank];
    size_t copy = own.empty() ? 0 : plan.of(cell.rank).reload_of[cell.step];
    if (copy < own.size() && own[copy].time.end > latest) {
      // The copies before it on the stream, back to one that did not wait for another.
      transfer = 0;
      copied = own[copy].time.end;
      while (own[copy].time.start > own[copy].posted) --copy;
      copied -= own[copy].posted;
      decided = graph.compute_before(
          static_cast<uint32_t>(timeline.index(cell.rank, own[copy].posted_before)));
    }
    path.push_back({static_cast<int>(cell.rank), static_cast<int>(cell.step), transfer, copied});
    number = decided;
  }
  std::ranges::reverse(path);
  return path;
}

namespace {

// Standard normal random numbers by the Box-Muller transform, because the results of
// std::normal_distribution differ between standard libraries.
class Normal {
 public:
  explicit Normal(uint64_t seed) : random_(seed) {}

  double next() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  // Uniform in (0, 1].
  double uniform() { return static_cast<double>((random_() >> 11) + 1) * 0x1p-53; }

  std::mt19937_64 random_;
};

}  // namespace

Spread spread_of_makespan(const ChannelGraph& graph, const ir::Schedule& schedule,
                          const Costs& costs, double sigma, int runs, uint64_t seed,
                          const std::atomic<bool>* cancel) {
  Normal normal(seed);
  std::vector<double> makespans;
  std::vector<double> stretch(ir::Timeline(schedule.rows).size(), 1);
  for (int run = 0; run < runs; ++run) {
    for (double& factor : stretch) factor = std::exp(sigma * normal.next() - sigma * sigma / 2);
    const ir::Timeline timeline = simulate(graph, schedule, costs, stretch);
    makespans.push_back(ir::span_of(schedule.rows, timeline).duration());
    if (is_cancelled(cancel)) break;
  }
  runs = static_cast<int>(makespans.size());
  std::ranges::sort(makespans);
  const auto at = [&](double part) {
    const double last = static_cast<double>(makespans.size() - 1);
    return makespans[static_cast<size_t>(std::ceil(part * last))];
  };
  Spread spread;
  spread.runs = runs;
  spread.least = makespans.front();
  spread.median = at(0.5);
  spread.percentile_95 = at(0.95);
  spread.most = makespans.back();
  spread.mean = std::accumulate(makespans.begin(), makespans.end(), 0.0) / runs;
  double squares = 0;
  for (const double one : makespans) squares += (one - spread.mean) * (one - spread.mean);
  spread.deviation = runs > 1 ? std::sqrt(squares / (runs - 1)) : 0;
  return spread;
}

}  // namespace pipewright::schedule
