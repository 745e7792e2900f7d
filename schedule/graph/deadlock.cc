// A blocked action is a node of the wait-for graph if its own rank and queue let it run: it is the
// first blocked compute of its rank, or it is posted and at the head of its queue. It waits for an
// action of another rank, which in turn is blocked by such a node, or is one.
//
// Almost every node has one edge. A walk along the first edge of each node finds each cycle of such
// edges once, in linear time for all of them. Only a compute that misses two inputs has two edges;
// the shortest cycle through it is found by a breadth-first search, which stops at the length of
// the best cycle so far. All searches together look at no more than kStepsPerEdge times the edges,
// so a graph with many such computes and long cycles takes linear time too.
#include "pipewright/schedule/graph/deadlock.h"

#include <fmt/format.h>

#include <algorithm>

#include "pipewright/ir/text/action_text.h"

namespace pipewright::schedule {
namespace {

constexpr uint32_t kNone = ChannelGraph::kNone;
using Node = ChannelGraph::Node;

const ir::Action& action_at(uint32_t action, const ChannelGraph& graph,
                            const ir::Schedule& schedule) {
  const ChannelGraph::Cell cell = graph.cell_of(action);
  return schedule.rows[cell.rank][cell.step];
}

ir::Place place_of(uint32_t action, const ChannelGraph& graph) {
  const ChannelGraph::Cell cell = graph.cell_of(action);
  return ir::place_at(cell.rank, cell.step);
}

constexpr size_t kStepsPerEdge = 64;

// The wait-for edges as a graph of nodes numbered from 0.
class WaitGraph {
 public:
  explicit WaitGraph(std::span<const Wait> waits) {
    std::vector<uint32_t> actions;  // by node
    for (const Wait& wait : waits) {
      if (actions.empty() || wait.action != actions.back()) {
        actions.push_back(wait.action);
        first_.push_back(edges_.size());
      }
      // Two missing inputs may be blocked by the same action.
      const std::span<const Wait> same_action = std::span(edges_).subspan(first_.back());
      if (std::ranges::find(same_action, wait.blocked_by, &Wait::blocked_by) == same_action.end())
        edges_.push_back(wait);
    }
    first_.push_back(edges_.size());
    for (const Wait& edge : edges_)
      targets_.push_back(static_cast<size_t>(std::ranges::lower_bound(actions, edge.blocked_by) -
                                             actions.begin()));
    came_by_.resize(size(), kNew);
    came_from_.resize(size());
  }

  std::vector<Wait> short_cycle() {
    follow_first_edges();
    steps_left_ = kStepsPerEdge * edges_.size();
    for (size_t node = 0; node < size() && steps_left_ > 0; ++node) {
      if (first_[node + 1] - first_[node] > 1) search_from(node);
    }
    // Not ranges::rotate: clang-tidy 14 cannot compile it.
    std::rotate(best_.begin(), std::ranges::min_element(best_, {}, &Wait::action), best_.end());
    return std::move(best_);
  }

 private:
  static constexpr size_t kNew = SIZE_MAX;

  size_t size() const { return first_.size() - 1; }

  void take(std::vector<Wait> cycle) {
    if (best_.empty() || cycle.size() < best_.size()) best_ = std::move(cycle);
  }

  void follow_first_edges() {
    std::vector<size_t> walk_of(size(), kNew);  // the start of the walk that came by first
    for (size_t start = 0; start < size(); ++start) {
      size_t node = start;
      while (walk_of[node] == kNew) {
        walk_of[node] = start;
        node = targets_[first_[node]];
      }
      if (walk_of[node] != start) continue;
      std::vector<Wait> cycle;
      const size_t end = node;
      do {
        cycle.push_back(edges_[first_[node]]);
        node = targets_[first_[node]];
      } while (node != end);
      take(std::move(cycle));
    }
  }

  // Breadth first from a node back to itself.
  void search_from(size_t start) {
    std::vector<size_t> reached = {start};  // breadth first; `start` again once the cycle is closed
    size_t end_of_depth = 1;
    size_t depth = 1;
    const auto is_closed = [&] { return came_by_[start] != kNew; };
    for (size_t at = 0; at < reached.size() && !is_closed(); ++at) {
      if (at == end_of_depth) {
        ++depth;
        end_of_depth = reached.size();
      }
      if (!best_.empty() && depth >= best_.size()) break;
      const size_t node = reached[at];
      for (size_t edge = first_[node]; edge < first_[node + 1] && steps_left_ > 0; ++edge) {
        --steps_left_;
        const size_t next = targets_[edge];
        if (came_by_[next] != kNew) continue;
        came_by_[next] = edge;
        came_from_[next] = node;
        reached.push_back(next);
      }
    }
    if (is_closed()) {
      std::vector<Wait> cycle;
      size_t node = start;
      do {
        cycle.push_back(edges_[came_by_[node]]);
        node = came_from_[node];
      } while (node != start);
      std::ranges::reverse(cycle);
      take(std::move(cycle));
    }
    for (const size_t node : reached) came_by_[node] = kNew;
  }

  std::vector<Wait> edges_;      // by action; no two of the same actions
  std::vector<size_t> first_;    // by node: its first edge; then the number of edges
  std::vector<size_t> targets_;  // by edge
  std::vector<Wait> best_;
  size_t steps_left_ = 0;  // edges that searches may still look at
  // The search's path: by node, the edge that reached it and where that edge starts.
  std::vector<size_t> came_by_, came_from_;
};

}  // namespace

// Whether what follows it in its row is posted after it.
static bool is_poster(const ChannelGraph& graph, uint32_t action) {
  return graph.node(action) == Node::kCompute || graph.node(action) == Node::kWait;
}

std::vector<Wait> waits_of(const ChannelGraph& graph, std::span<const uint32_t> blocked) {
  std::vector<bool> is_blocked(graph.size());
  for (const uint32_t action : blocked) is_blocked[action] = true;
  const auto blocks = [&](uint32_t action) { return action != kNone && is_blocked[action]; };

  // Ascending, so that the head of a queue is known before the operations behind it.
  std::vector<uint32_t> head_of_queue(graph.size(), kNone);
  std::vector<uint32_t> first_compute(graph.num_ranks(), kNone);
  for (const uint32_t action : blocked) {
    uint32_t& first = first_compute[graph.cell_of(action).rank];
    if (is_poster(graph, action) && first == kNone) first = action;
    const uint32_t before = graph.before_in_queue(action);
    head_of_queue[action] = blocks(before) ? head_of_queue[before] : action;
  }

  std::vector<Wait> waits;
  for (const uint32_t action : blocked) {
    if (blocks(graph.compute_before(action)) || blocks(graph.before_in_queue(action))) continue;
    const auto wait_for = [&](uint32_t other) {
      if (!blocks(other)) return;
      const uint32_t by = blocks(graph.compute_before(other))
                              ? first_compute[graph.cell_of(other).rank]
                              : head_of_queue[other];
      waits.push_back({action, other, by});
    };
    if (graph.node(action) == Node::kReceive ||
        (graph.node(action) == Node::kSend && graph.is_rendezvous())) {
      wait_for(graph.partner_of(action));
    } else {
      graph.for_each_awaited(action, wait_for);
    }
  }
  return waits;
}

std::vector<Wait> short_cycle(std::span<const Wait> waits) {
  return WaitGraph(waits).short_cycle();
}

std::string describe(const Wait& wait, const ChannelGraph& graph, const ir::Schedule& schedule) {
  const auto name = [&](uint32_t action) {
    return fmt::format("`{}`", ir::to_string(action_at(action, graph, schedule)));
  };
  const auto placed = [&](uint32_t action) {
    return fmt::format("{} on rank {}", name(action), graph.cell_of(action).rank);
  };
  if (wait.waits_for == wait.action)
    return placed(wait.action) + " waits for a result that no action computes";
  std::string text = fmt::format("{} waits for {}", placed(wait.action), placed(wait.waits_for));
  if (wait.waits_for != wait.blocked_by) {
    const bool is_operation = !is_poster(graph, wait.waits_for);
    const bool by_compute = is_poster(graph, wait.blocked_by);
    text += fmt::format(", which {} {}",
                        !is_operation ? "comes after"
                        : by_compute  ? "is posted after"
                                      : "is queued after",
                        name(wait.blocked_by));
  }
  return text;
}

Standstill standstill_of(const ChannelGraph& graph, const ir::Schedule& schedule) {
  Standstill standstill;
  const std::vector<uint32_t> blocked = graph.blocked();
  standstill.num_blocked = blocked.size();
  standstill.blocked.resize(graph.size());
  for (const uint32_t action : blocked) standstill.blocked[action] = true;
  const std::vector<Wait> waits = waits_of(graph, blocked);
  std::vector<Wait> cycle = short_cycle(waits);
  std::ranges::sort(cycle, {}, &Wait::action);
  auto next_on_cycle = cycle.begin();  // both ascend
  for (const Wait& wait : waits) {
    const bool on_cycle = next_on_cycle != cycle.end() && *next_on_cycle == wait;
    if (on_cycle) ++next_on_cycle;
    standstill.waits.push_back({graph.cell_of(wait.action), graph.cell_of(wait.blocked_by),
                                on_cycle, describe(wait, graph, schedule)});
  }
  return standstill;
}

std::vector<Stop> stops_of(const ir::Schedule& schedule, const ir::Timeline& timeline,
                           const Standstill& standstill) {
  std::vector<Stop> stops(schedule.rows.size());
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    Stop& stop = stops[rank];
    bool before_compute = false;
    for (size_t step = 0; step < schedule.rows[rank].size() && !before_compute; ++step) {
      const ir::Action& action = schedule.rows[rank][step];
      if (action.is_idle()) continue;
      const bool compute = ir::is_compute(action.kind());
      if (!standstill.blocked[timeline.index(rank, step)]) {
        if (compute) stop.time = timeline.at(rank, step).end;
      } else if (compute || stop.label.empty()) {
        stop.label = ir::to_string(action);
        before_compute = compute;
      }
    }
  }
  for (const Standstill::Edge& wait : standstill.waits)
    stops[wait.waiting.rank].waits.push_back(wait.text);
  return stops;
}

ir::Diagnostic& report_cycle(ir::Rule rule, std::string_view what, std::string_view suffix,
                             const ChannelGraph& graph, std::span<const Wait> cycle,
                             const ir::Schedule& schedule, ir::Diagnostics* diagnostics) {
  ir::Diagnostic& error =
      diagnostics->error(rule,
                         fmt::format("{}: cycle of {} action{}{}", what, cycle.size(),
                                     cycle.size() == 1 ? "" : "s", suffix),
                         cycle.empty() ? ir::Place() : place_of(cycle[0].action, graph));
  for (const Wait& wait : cycle)
    error.notes.push_back({describe(wait, graph, schedule), place_of(wait.action, graph)});
  return error;
}

ir::Diagnostic* check_can_run(const ir::ComputeOrder& order, ir::Diagnostics* diagnostics,
                              std::vector<Wait>* cycle) {
  const ChannelGraph graph = ChannelGraph::of_order(order);
  const std::vector<uint32_t> blocked = graph.blocked();
  if (blocked.empty()) return nullptr;
  std::vector<Wait> found = short_cycle(waits_of(graph, blocked));
  ir::Diagnostic& error = report_cycle(ir::Rule::kCannotRun, "the order cannot run", "", graph,
                                       found, order, diagnostics);
  if (cycle != nullptr) *cycle = std::move(found);
  return &error;
}

}  // namespace pipewright::schedule
