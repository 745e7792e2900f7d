#include "pipewright/schedule/views/dot.h"

#include <fmt/format.h>

#include <ostream>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/views/palette.h"

namespace pipewright::schedule {
void print_dot(const ir::Schedule& schedule, const ChannelGraph& graph, std::ostream& out) {
  out << "digraph schedule {\n  rankdir=LR;\n  newrank=true;\n  labeljust=l;\n"
         "  node [shape=box, style=filled, fontname=\"Helvetica\", fontsize=11, "
         "margin=\"0.06,0.03\", "
         "height=0.25];\n";
  // Nodes have the numbers of the graph.
  const ir::Timeline numbers(schedule.rows);
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    out << fmt::format(
        "  subgraph cluster_{0} {{\n    label=\"rank {0}\";\n    color=\"#bbbbbb\";\n", rank);
    for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
      const ir::Action& action = schedule.rows[rank][step];
      if (action.is_idle()) continue;
      out << fmt::format("    a{} [label=\"{}\", fillcolor=\"{}\"];\n", numbers.index(rank, step),
                         ir::to_string(action), paint_of(action.kind()).shades[0]);
    }
    out << "  }\n";
  }
  for (uint32_t action = 0; action < graph.size(); ++action) {
    for (const Dependency& dependency : graph.dependencies_of(action)) {
      const bool transfer = dependency.kind != Dependency::kEnd;
      out << fmt::format("  a{} -> a{}{};\n", dependency.action, action,
                         transfer ? " [style=bold, color=\"#b03030\"]" : "");
    }
  }
  out << "}\n";
}

}  // namespace pipewright::schedule
