#include "pipewright/schedule/views/dot.h"

#include <fmt/format.h>

#include <ostream>
#include <string_view>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/timeline.h"

namespace pipewright::schedule {
namespace {

std::string_view fill_of(ir::ActionKind kind) {
  switch (kind) {
    case ir::ActionKind::kForward:
      return "#8fb8e8";
    case ir::ActionKind::kBackward:
      return "#94cf94";
    case ir::ActionKind::kBackwardInput:
      return "#7fd0c8";
    case ir::ActionKind::kBackwardWeight:
      return "#f2d479";
    case ir::ActionKind::kOverlapFB:
      return "#d6a8d6";
    case ir::ActionKind::kSendF:
    case ir::ActionKind::kSendB:
    case ir::ActionKind::kRecvF:
    case ir::ActionKind::kRecvB:
      return "#dddddd";
    case ir::ActionKind::kUnshard:
    case ir::ActionKind::kReshard:
    case ir::ActionKind::kReduceGrad:
    case ir::ActionKind::kIdle:
      return "#ffffff";
  }
  return "#ffffff";
}

}  // namespace

void print_dot(const ir::Schedule& schedule, const EventGraph& graph, std::ostream& out) {
  out << "digraph schedule {\n  rankdir=LR;\n  newrank=true;\n  labeljust=l;\n"
         "  node [shape=box, style=filled, fontname=\"Helvetica\", fontsize=11, "
         "margin=\"0.06,0.03\", "
         "height=0.25];\n";
  // Nodes carry the numbers of the graph.
  const ir::Timeline numbers(schedule.rows);
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    out << fmt::format(
        "  subgraph cluster_{0} {{\n    label=\"rank {0}\";\n    color=\"#bbbbbb\";\n", rank);
    for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
      const ir::Action& action = schedule.rows[rank][step];
      if (action.is_idle()) continue;
      out << fmt::format("    a{} [label=\"{}\", fillcolor=\"{}\"];\n", numbers.index(rank, step),
                         ir::to_string(action), fill_of(action.kind()));
    }
    out << "  }\n";
  }
  for (size_t position = 0; position < graph.order().size(); ++position) {
    for (const Before& before : graph.before(position)) {
      const bool transfer = before.bond != Before::kEnd;
      out << fmt::format("  a{} -> a{}{};\n", before.action, graph.order()[position],
                         transfer ? " [style=bold, color=\"#b03030\"]" : "");
    }
  }
  out << "}\n";
}

}  // namespace pipewright::schedule
