#ifndef PIPEWRIGHT_SCHEDULE_GRAPH_DEADLOCK_H_
#define PIPEWRIGHT_SCHEDULE_GRAPH_DEADLOCK_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/graph/channel_graph.h"

// Explains why a schedule cannot run to its end, from what the topological pass of its channel
// graph leaves. Pure functions, linear in the size of the graph unless stated otherwise.

namespace pipewright::schedule {

// A wait-for edge: an action, what it waits for on another rank, and the action there that must
// happen first.
//
//   2RECV_F0 waits for 1SEND_F0, which is posted after 1F1
struct Wait {
  uint32_t action;
  uint32_t waits_for;
  uint32_t blocked_by;  // equal to waits_for if nothing before it on its rank or in its queue
                        // blocks it

  friend bool operator==(const Wait&, const Wait&) = default;
};

// The wait-for edges between the first blocked computes of the ranks and the blocked heads of the
// queues, in ascending order of `action`. An action has two edges only if two inputs are missing.
// `blocked` is the result of graph.run().
std::vector<Wait> waits_of(const ChannelGraph& graph, std::span<const uint32_t> blocked);

// A short cycle of wait-for edges: each one's blocked_by is the next one's action, and the first
// one has the lowest action. Empty if there are no edges. It is a shortest cycle if at most 64
// actions are blocked by two different ones. With more of them the search may end earlier, after 64
// steps per edge, and this is the shortest cycle that it has found by then.
std::vector<Wait> short_cycle(std::span<const Wait> waits);

// "`2RECV_F0` on rank 0 waits for `1SEND_F0` on rank 1, which is posted after `1F1`"
std::string describe(const Wait& wait, const ChannelGraph& graph, const ir::Schedule& schedule);

// Where a schedule that cannot run to its end stops: what never runs, and who waits for whom.
struct Standstill {
  // A wait-for edge: the cells of its action and blocked_by, and describe().
  struct Edge {
    ChannelGraph::Cell waiting, blocking;
    bool on_cycle;  // of short_cycle()
    std::string text;
  };
  std::vector<bool> blocked;  // by action, idle slots included; whether it never runs
  size_t num_blocked = 0;
  std::vector<Edge> waits;  // as in waits_of()
};
Standstill standstill_of(const ChannelGraph& graph, const ir::Schedule& schedule);

// Where a rank stops: at its first compute that never runs, or else its first action that never
// runs; it comes after the last compute that runs.
struct Stop {
  std::string label;  // the action; empty if all of the rank's actions run
  double time = 0;
  std::vector<std::string> waits;  // the texts of the wait-for edges that begin on the rank
};
std::vector<Stop> stops_of(const ir::Schedule& schedule, const ir::Timeline& timeline,
                           const Standstill& standstill);

// Adds the error of a schedule that cannot run: the rule, "<what>: cycle of 4 actions<suffix>", and
// a note for each edge of the cycle.
ir::Diagnostic& report_cycle(ir::Rule rule, std::string_view what, std::string_view suffix,
                             const ChannelGraph& graph, std::span<const Wait> cycle,
                             const ir::Schedule& schedule, ir::Diagnostics* diagnostics);

// Checks that the ranks of a compute order together reach its end. If not, adds an error (PW040)
// and returns it, for adding a help, and stores its cycle in `cycle`; otherwise returns null.
ir::Diagnostic* check_can_run(const ir::ComputeOrder& order, ir::Diagnostics* diagnostics,
                              std::vector<Wait>* cycle = nullptr);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_GRAPH_DEADLOCK_H_
