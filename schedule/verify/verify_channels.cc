// Swaps are found by counting: for each ordered pair of ranks, the k-th RECV must be the partner of
// the k-th SEND. Linear.
//
// Deadlock is decided by one run of the channel model (channel_run.h). If it stops early, the
// blocked actions form a wait-for graph: nodes are the next computes of the ranks and the heads of
// the queues, at most one per rank and per queue. Every blocked node waits for another one, so
// there is a cycle. A breadth-first search from each node finds the shortest one, which becomes the
// notes of the error. The search is quadratic in the number of ranks and queues, independent of the
// length of the program.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/ir/rank_pairs.h"
#include "pipewright/ir/stage_dependencies.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/channel_run.h"
#include "pipewright/schedule/verify/verify_checks.h"

namespace pipewright::schedule {
namespace {

using ir::ActionPart;
using Node = ChannelRun::Node;
using Wait = ChannelRun::Wait;

ir::Place place_of(const Node& node) {
  return ir::place_at(static_cast<size_t>(node.rank), static_cast<size_t>(node.step));
}

std::string name_of(const ir::Program& program, const Node& node) {
  return fmt::format(
      "`{}`",
      ir::to_string(program.rows[static_cast<size_t>(node.rank)][static_cast<size_t>(node.step)]));
}

// The k-th SEND from one rank to another meets the k-th RECV there: they must be partners.
void check_order(const ir::Program& program, ir::Diagnostics* diagnostics) {
  const ir::RankPairs pairs(program.placement);
  const ir::StageDependencies dependencies(program.placement);
  std::vector<std::vector<uint32_t>> sends(pairs.size());  // by pair: the steps of its SENDs
  for (const ir::Row& row : program.rows) {
    for (size_t step = 0; step < row.size(); ++step) {
      if (ir::is_send(row[step].kind()))
        sends[pairs.of(row[step].parts()[0])].push_back(static_cast<uint32_t>(step));
    }
  }
  std::vector<size_t> received(pairs.size());
  std::vector<bool> reported(pairs.size());
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    for (size_t step = 0; step < program.rows[rank].size(); ++step) {
      const ir::Action& action = program.rows[rank][step];
      if (!ir::is_receive(action.kind())) continue;
      const ActionPart receive_part = action.parts()[0];
      const uint32_t pair = pairs.of(receive_part);
      const size_t number = received[pair]++;
      const Node send{pairs.ranks(pair).first, static_cast<int>(sends[pair][number])};
      const ActionPart met =
          program.rows[static_cast<size_t>(send.rank)][static_cast<size_t>(send.step)].parts()[0];
      const ActionPart expected = dependencies.of(receive_part).transfer->send;
      const bool is_partner = met.kind() == expected.kind() && met.stage() == expected.stage() &&
                              met.microbatch() == receive_part.microbatch();
      if (reported[pair] || is_partner) continue;
      reported[pair] = true;  // those after the first one are shifted too
      const Node receive{static_cast<int>(rank), static_cast<int>(step)};
      ir::Diagnostic& error = diagnostics->error(
          ir::Rule::kSwap,
          fmt::format(
              "{} on rank {} meets {} on rank {}: both are number {} from rank {} to rank {}",
              name_of(program, receive), rank, name_of(program, send), send.rank, number, send.rank,
              rank),
          place_of(receive));
      error.notes.push_back({fmt::format("{} is here", name_of(program, send)), place_of(send)});
      error.help = fmt::format("post the RECVs of rank {} in the order of the SENDs of rank {}",
                               rank, send.rank);
    }
  }
}

// The shortest cycle of the wait-for graph: nodes, each with its edge to the next.
std::vector<std::pair<Node, Wait>> shortest_cycle(const ChannelRun& run) {
  const std::vector<Node> nodes = run.blocked();
  std::map<Node, std::vector<Wait>> waits;
  for (const Node& node : nodes) waits[node] = run.waits_of(node);
  std::vector<std::pair<Node, Wait>> best;
  for (const Node& start : nodes) {
    // Breadth first, back to the start.
    std::map<Node, std::pair<Node, Wait>> came_from;
    std::vector<Node> frontier = {start};
    bool closed = false;
    for (size_t depth = 1; !frontier.empty() && !closed && (best.empty() || depth < best.size());
         ++depth) {
      std::vector<Node> further;
      for (const Node& node : frontier) {
        for (const Wait& wait : waits[node]) {
          if (came_from.contains(wait.blocked_by)) continue;
          came_from.emplace(wait.blocked_by, std::pair(node, wait));
          further.push_back(wait.blocked_by);
          closed = closed || wait.blocked_by == start;
        }
      }
      frontier = std::move(further);
    }
    if (!closed) continue;
    std::vector<std::pair<Node, Wait>> cycle;
    Node node = start;
    do {
      const auto& step = came_from.at(node);
      cycle.push_back(step);
      node = step.first;
    } while (!(node == start));
    std::ranges::reverse(cycle);
    if (best.empty() || cycle.size() < best.size()) best = std::move(cycle);
    if (best.size() <= 2) break;  // no node waits for itself
  }
  return best;
}

void report_deadlock(const ir::Program& program, const VerifyOptions& options,
                     const ChannelRun& run, ir::Diagnostics* diagnostics) {
  const std::vector<std::pair<Node, Wait>> cycle = shortest_cycle(run);
  const std::string model = ir::describe_channels(options.channels, options.capacity);
  ir::Diagnostic& error = diagnostics->error(
      ir::Rule::kDeadlock, fmt::format("deadlock: cycle of {} actions ({})", cycle.size(), model),
      cycle.empty() ? ir::Place() : place_of(cycle[0].first));
  for (const auto& [node, wait] : cycle) {
    std::string text =
        fmt::format("{} on rank {} waits for {} on rank {}", name_of(program, node), node.rank,
                    name_of(program, wait.waits_for), wait.waits_for.rank);
    if (!(wait.waits_for == wait.blocked_by)) {
      const bool compute = ir::is_compute(program
                                              .rows[static_cast<size_t>(wait.blocked_by.rank)]
                                                   [static_cast<size_t>(wait.blocked_by.step)]
                                              .kind());
      text += fmt::format(", which {} {}", compute ? "is posted after" : "is queued after",
                          name_of(program, wait.blocked_by));
    }
    error.notes.push_back({text, place_of(node)});
  }
  if (options.channels == ir::ChannelModel::kEdge) return;
  ChannelRun freest(program, ir::ChannelModel::kEdge, options.capacity);
  freest.run([](int, uint32_t, uint32_t) {});
  if (freest.finished()) error.help = "it runs with one queue per directed edge (--channels edge)";
}

}  // namespace

void check_channels(const ir::Program& program, const VerifyOptions& options,
                    ir::Diagnostics* diagnostics) {
  check_order(program, diagnostics);
  ChannelRun run(program, options.channels, options.capacity);
  run.run([](int, uint32_t, uint32_t) {});
  if (!run.finished()) report_deadlock(program, options, run, diagnostics);
}

}  // namespace pipewright::schedule
