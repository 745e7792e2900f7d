#include "pipewright/schedule/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "pipewright/ir/channel.h"
#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/graph/channel_graph.h"
#include "pipewright/schedule/graph/deadlock.h"
#include "pipewright/schedule/verify/verify_checks.h"

namespace pipewright::schedule {
namespace {

void add(std::string_view check, std::vector<std::string_view>* checked) {
  if (checked != nullptr) checked->push_back(check);
}

}  // namespace

VerifyOptions options_of(const ir::Lowering& policies) {
  VerifyOptions options;
  options.channels = policies.channels.value_or(options.channels);
  options.capacity = policies.capacity.value_or(options.capacity);
  options.weight_free_w = policies.weight_free_w.value_or(options.weight_free_w);
  return options;
}

bool verify(const ir::ComputeOrder& order, ir::Diagnostics* diagnostics,
            std::vector<std::string_view>* checked) {
  const size_t before = diagnostics->total();
  const bool in_order = is_complete_in_order(order, ir::Level::kComputeOnly);
  std::optional<WorkIndex> index;
  if (!in_order) index = WorkIndex::build(order, diagnostics);
  add("completeness", checked);
  if (!in_order && !index) return false;
  if (index) check_local_order(order, *index, diagnostics);
  if (diagnostics->total() == before) {
    std::vector<Wait> cycle;
    if (ir::Diagnostic* error = check_can_run(order, diagnostics, &cycle))
      error->help = reorder_help(order, cycle);
  }
  add("order", checked);
  return diagnostics->total() == before;
}

bool verify(const ir::Program& program, const VerifyOptions& options, ir::Diagnostics* diagnostics,
            std::vector<std::string_view>* checked) {
  const size_t before = diagnostics->total();
  const ir::KindSet kinds = ir::kinds_in(program.rows);
  const bool runs = options.channels == ir::ChannelModel::kEdge && runs_on_edges(program, kinds);
  const bool in_order = runs || is_complete_in_order(program, ir::Level::kComputeComms);
  std::optional<WorkIndex> index;
  if (!in_order) index = WorkIndex::build(program, diagnostics);
  add("completeness", checked);
  const bool complete = in_order || index;
  const size_t before_flow = diagnostics->total();
  std::optional<ChannelGraph> graph;
  bool match = runs;
  if (complete && !runs) {
    graph = ChannelGraph::of_program(program, options.channels, options.capacity);
    match = graph->transfers_match();
    if (!in_order || !match) {
      if (!index) index = WorkIndex::build(program, diagnostics);
      check_data_flow(program, *index, match, diagnostics);
    }
  }
  if (complete) add("data_flow", checked);
  bool flows = complete && diagnostics->total() == before_flow;
  check_data_parallel(program, kinds,
                      options.weight_free_w || program.lowering.weight_free_w.value_or(false),
                      diagnostics);
  add("residency", checked);
  add("reduction", checked);
  const size_t before_waits = diagnostics->total();
  if (check_waits(program, kinds, runs, diagnostics)) add("waits", checked);
  flows = flows && diagnostics->total() == before_waits;
  // The channel model is defined only if SENDs and RECVs match one to one.
  if (flows) {
    if (!match) check_pairing(program, *graph, diagnostics);
    if (!runs) check_deadlock(program, options, *graph, diagnostics);
    add("channels", checked);
  }
  return diagnostics->total() == before;
}

namespace {

using ir::ActionKind;
using ir::ActionPart;

// The number of a compute's inputs that come from another rank.
int inputs_received(ActionPart compute, int rank, const ir::Placement& placement) {
  const ir::Needs needs = ir::needs_of(compute, placement);
  return static_cast<int>(std::count_if(needs.begin(), needs.end(),
                                        [&](const ir::Need& need) { return need.rank != rank; }));
}

}  // namespace

std::vector<RankCertificate> certify(const ir::Program& program) {
  const bool has_backward = ir::has_backward(program);
  std::vector<RankCertificate> certificates;
  std::vector<ReceiveSlots> slots = receive_slots(program);
  const std::vector<int> communicators = communicators_per_rank(program);
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    const ir::Row& row = program.rows[rank];
    RankCertificate& certificate = certificates.emplace_back();
    certificate.activations = peak_activations(row, has_backward);
    certificate.receive_slots = std::move(slots[rank]);
    certificate.communicators = communicators[rank];
    int buffers = 0, unsharded = 0;
    for (size_t index = 0; index < row.size(); ++index) {
      const int step = static_cast<int>(index);
      for (const ActionPart part : row[index].parts()) {
        if (ir::is_receive(part.kind())) certificate.receive_buffers.add(++buffers, step);
        if (ir::is_compute(part.kind()))
          buffers -= inputs_received(part, static_cast<int>(rank), program.placement);
        if (part.kind() == ActionKind::kUnshard)
          certificate.unsharded_stages.add(++unsharded, step);
        if (part.kind() == ActionKind::kReshard) --unsharded;
      }
    }
  }
  return certificates;
}

std::vector<int> communicators_per_rank(const ir::Program& program) {
  const ir::ChannelModel model = options_of(program.lowering).channels;
  std::vector<int> counts;
  for (const ir::Row& row : program.rows) {
    std::set<uint32_t> queues;
    for (const ir::Action& action : row) {
      if (!ir::is_transfer(action.kind())) continue;
      const auto transfer = ir::partner_of(action.parts()[0], program.placement);
      if (!transfer) continue;
      const bool is_send = ir::is_send(action.kind());
      const int peer = is_send ? transfer->to : transfer->from;
      queues.insert(ir::queue_index(model, static_cast<uint32_t>(peer), is_send));
    }
    counts.push_back(static_cast<int>(queues.size()));
  }
  // All ranks take part in the one communicator, also those that send nothing.
  if (model == ir::ChannelModel::kRank)
    std::ranges::fill(counts, *std::ranges::max_element(counts));
  return counts;
}

// A cycle of a compute order has edges "`0B0` waits for `1B0`, which comes after `1F1`": if `1B0`
// were before `1F1`, that edge would be gone. Each such move is tried, and the first one is
// proposed after which the whole order verifies. Each trial costs a verification, so only a few
// edges are tried.

namespace {

constexpr int kTrials = 8;

bool is_valid(const ir::ComputeOrder& order) {
  ir::Diagnostics errors;
  const std::optional<WorkIndex> index = WorkIndex::build(order, &errors);
  if (!index) return false;
  check_local_order(order, *index, &errors);
  return !errors.has_errors() && ChannelGraph::of_order(order).blocked().empty();
}

}  // namespace

std::string reorder_help(const ir::ComputeOrder& order, std::span<const Wait> cycle) {
  const ChannelGraph graph = ChannelGraph::of_order(order);
  int trials = 0;
  for (const Wait& wait : cycle) {
    const ChannelGraph::Cell late = graph.cell_of(wait.waits_for),
                             early = graph.cell_of(wait.blocked_by);
    if (late.rank != early.rank || late.step <= early.step) continue;
    if (trials++ == kTrials) break;
    ir::ComputeOrder moved = order;
    const auto row = moved.rows[late.rank].begin();
    const auto at = [&](size_t step) { return row + static_cast<std::ptrdiff_t>(step); };
    std::rotate(at(early.step), at(late.step), at(late.step + 1));
    if (!is_valid(moved)) continue;
    const ir::Row& before = order.rows[late.rank];
    return fmt::format("move `{}` before `{}`", ir::to_string(before[late.step]),
                       ir::to_string(before[early.step]));
  }
  return "";
}

}  // namespace pipewright::schedule
