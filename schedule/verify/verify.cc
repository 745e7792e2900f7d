#include "pipewright/schedule/verify/verify.h"

#include "pipewright/schedule/graph/deadlock.h"
#include "pipewright/schedule/verify/verify_checks.h"
#include "pipewright/schedule/verify/work_index.h"

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
  const bool runs = options.channels == ir::ChannelModel::kEdge && runs_on_edges(program);
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
  check_data_parallel(program,
                      options.weight_free_w || program.lowering.weight_free_w.value_or(false),
                      diagnostics);
  add("residency", checked);
  add("reduction", checked);
  const size_t before_waits = diagnostics->total();
  if (check_waits(program, runs, diagnostics)) add("waits", checked);
  flows = flows && diagnostics->total() == before_waits;
  // The channel model is defined only if SENDs and RECVs match one to one.
  if (flows) {
    if (!match) check_pairing(program, *graph, diagnostics);
    if (!runs) check_deadlock(program, options, *graph, diagnostics);
    add("channels", checked);
  }
  return diagnostics->total() == before;
}

}  // namespace pipewright::schedule
