// Swaps are found by counting: for each ordered pair of ranks, the k-th RECV must be the partner of
// the k-th SEND. A deadlock is what the topological pass of the channel graph leaves; the notes of
// its error are a short cycle (deadlock.h). Linear.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/graph/channel_graph.h"
#include "pipewright/schedule/graph/deadlock.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/verify/verify_checks.h"

namespace pipewright::schedule {
namespace {

using ir::ActionPart;

// The SEND that a RECV meets.
struct Met {
  size_t step;
  ActionPart part;
  bool is_partner;  // it sends the tensor that the RECV expects
};
Met met_by(ActionPart receive, uint32_t number, const ir::Transfer& transfer,
           const ir::Program& program, const ChannelGraph& graph) {
  const auto from = static_cast<size_t>(transfer.from);
  const size_t step = graph.partner_of(number) - graph.number_of(from, 0);
  const ActionPart part = program.rows[from][step].parts()[0];
  const bool is_partner = part.kind() == transfer.send.kind() &&
                          part.stage() == transfer.send.stage() &&
                          part.microbatch() == receive.microbatch();
  return {step, part, is_partner};
}

}  // namespace

// The k-th SEND from one rank to another meets the k-th RECV there: they must be partners. Reports
// the first swap of each ordered pair of ranks; those after it are shifted too.
void check_pairing(const ir::Program& program, const ChannelGraph& graph,
                   ir::Diagnostics* diagnostics) {
  const ir::StageDependencies dependencies(program.placement);
  std::vector<bool> reported(program.rows.size());  // senders of the RECVs of a rank
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    reported.assign(program.rows.size(), false);
    for (size_t step = 0; step < program.rows[rank].size(); ++step) {
      const ir::Action& action = program.rows[rank][step];
      if (!ir::is_receive(action.kind())) continue;
      const ActionPart receive = action.parts()[0];
      const ir::Transfer& transfer = *dependencies.of(receive).transfer;
      const auto from = static_cast<size_t>(transfer.from);
      const Met met = met_by(receive, graph.number_of(rank, step), transfer, program, graph);
      if (met.is_partner || reported[from]) continue;
      reported[from] = true;
      const auto same_pair = [&](const ir::Action& other) {
        return ir::is_receive(other.kind()) &&
               dependencies.of(other.parts()[0]).transfer->from == transfer.from;
      };
      const auto number =
          std::count_if(program.rows[rank].begin(),
                        program.rows[rank].begin() + static_cast<std::ptrdiff_t>(step), same_pair);
      ir::Diagnostic& error = diagnostics->error(
          ir::Rule::kSwap,
          fmt::format(
              "`{}` on rank {} meets `{}` on rank {}: both are number {} from rank {} to rank {}",
              ir::to_string(receive), rank, ir::to_string(met.part), from, number, from, rank),
          ir::place_at(rank, step));
      error.notes.push_back(
          {fmt::format("`{}` is here", ir::to_string(met.part)), ir::place_at(from, met.step)});
      error.help =
          fmt::format("post the RECVs of rank {} in the order of the SENDs of rank {}", rank, from);
    }
  }
}

namespace {

// Moves WAITs to the ends of their rows, where they hold up nothing of their ranks.
void move_to_end(const std::vector<ir::Action>& waits, ir::Program* program) {
  for (const ir::Action& wait : waits) {
    const ActionPart part = wait.parts()[0];
    ir::Row& row = program->rows[static_cast<size_t>(
        program->placement.rank_of(part.stage(), part.microbatch()))];
    const auto found = std::ranges::find(row, wait);
    std::rotate(found, found + 1, row.end());
  }
}

// A deadlock that ends if one WAIT_SEND of the cycle, or all of them, come later.
std::string later_waits_help(const ir::Program& program, const VerifyOptions& options,
                             const ChannelGraph& graph, std::span<const Wait> cycle) {
  std::vector<ir::Action> waits;
  const auto add = [&](uint32_t number) {
    const ChannelGraph::Cell cell = graph.cell_of(number);
    const ir::Action& action = program.rows[cell.rank][cell.step];
    if (ir::is_wait_send(action.kind()) && std::ranges::find(waits, action) == waits.end())
      waits.push_back(action);
  };
  for (const Wait& wait : cycle) {
    add(wait.action);
    add(wait.blocked_by);
  }
  const auto runs_without = [&](const std::vector<ir::Action>& moved) {
    ir::Program changed = program;
    move_to_end(moved, &changed);
    return ChannelGraph::of_program(changed, options.channels, options.capacity).blocked().empty();
  };
  for (const ir::Action& wait : waits) {
    if (runs_without({wait}))
      return fmt::format("move `{}` to the end of its row", ir::to_string(wait));
  }
  if (waits.size() < 2 || !runs_without(waits)) return "";
  std::string names;
  for (const ir::Action& wait : waits)
    names += fmt::format("{}`{}`", names.empty() ? "" : ", ", ir::to_string(wait));
  return fmt::format("move {} to the ends of their rows", names);
}

std::string deadlock_help(const ir::Program& program, const VerifyOptions& options,
                          const ChannelGraph& graph, std::span<const Wait> cycle) {
  if (std::string help = later_waits_help(program, options, graph, cycle); !help.empty())
    return help;
  if (options.channels != ir::ChannelModel::kEdge &&
      ChannelGraph::of_program(program, ir::ChannelModel::kEdge, options.capacity)
          .blocked()
          .empty())
    return "it runs with one queue per directed edge (--channels edge)";
  // Lowering places SENDs and RECVs so that they cannot deadlock, if the computes alone can run.
  if (!ChannelGraph::of_order(compute_order(program)).blocked().empty()) return "";
  return "lower its computes again: print it with `--level compute_only`, and the result with "
         "`--level compute_comms`";
}

}  // namespace

void check_deadlock(const ir::Program& program, const VerifyOptions& options,
                    const ChannelGraph& graph, ir::Diagnostics* diagnostics) {
  const std::vector<uint32_t> blocked = graph.blocked();
  if (blocked.empty()) return;
  const std::string model = ir::describe_channels(options.channels, options.capacity);
  const std::vector<Wait> cycle = short_cycle(waits_of(graph, blocked));
  ir::Diagnostic& error = report_cycle(ir::Rule::kDeadlock, "deadlock", " (" + model + ")", graph,
                                       cycle, program, diagnostics);
  error.help = deadlock_help(program, options, graph, cycle);
}

}  // namespace pipewright::schedule
