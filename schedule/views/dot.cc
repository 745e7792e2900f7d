#include "pipewright/schedule/views/dot.h"

#include <fmt/format.h>

#include <ostream>
#include <string_view>
#include <vector>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/views/table.h"

namespace pipewright::schedule {
namespace {

// Edges from what blocks to what waits, as the others go from what runs first to what runs later.
void print_waits(const Standstill& standstill, const ir::Timeline& numbers, std::ostream& out) {
  for (const Standstill::Edge& wait : standstill.waits) {
    out << fmt::format("  a{} -> a{} [{}, constraint=false, tooltip=\"{}\"];\n",
                       numbers.index(wait.blocking.rank, wait.blocking.step),
                       numbers.index(wait.waiting.rank, wait.waiting.step),
                       wait.on_cycle ? "color=\"#e00000\", penwidth=3, label=\"waits\", "
                                       "fontcolor=\"#e00000\""
                                     : "color=\"#e08000\", style=dashed",
                       wait.text);
  }
}

}  // namespace

void print_dot(const ir::Schedule& schedule, const ChannelGraph& graph, std::ostream& out,
               const Standstill* standstill) {
  out << "digraph schedule {\n  rankdir=LR;\n  newrank=true;\n  labeljust=l;\n"
         "  node [shape=box, style=filled, fontname=\"Helvetica\", fontsize=11, "
         "margin=\"0.06,0.03\", "
         "height=0.25];\n";
  // Nodes have the numbers of the graph.
  const ir::Timeline numbers(schedule.rows);
  std::vector<bool> on_cycle(graph.size());
  if (standstill != nullptr) {
    for (const Standstill::Edge& wait : standstill->waits) {
      if (!wait.on_cycle) continue;
      on_cycle[numbers.index(wait.waiting.rank, wait.waiting.step)] = true;
      on_cycle[numbers.index(wait.blocking.rank, wait.blocking.step)] = true;
    }
  }
  const auto state_of = [&](size_t number) -> std::string_view {
    if (standstill == nullptr) return "";
    if (on_cycle[number]) return ", color=\"#e00000\", penwidth=3";
    return standstill->blocked[number] ? ", style=\"filled,dashed\""
                                       : ", color=\"#bbbbbb\", fontcolor=\"#999999\"";
  };
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    out << fmt::format(
        "  subgraph cluster_{0} {{\n    label=\"rank {0}\";\n    color=\"#bbbbbb\";\n", rank);
    for (size_t step = 0; step < schedule.rows[rank].size(); ++step) {
      const ir::Action& action = schedule.rows[rank][step];
      if (action.is_idle()) continue;
      const size_t number = numbers.index(rank, step);
      out << fmt::format("    a{} [label=\"{}\", fillcolor=\"{}\"{}];\n", number,
                         ir::to_string(action), paint_of(action.kind()).shades[0],
                         state_of(number));
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
  if (standstill != nullptr) print_waits(*standstill, numbers, out);
  out << "}\n";
}

}  // namespace pipewright::schedule
