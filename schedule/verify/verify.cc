#include "pipewright/schedule/verify/verify.h"

#include "pipewright/schedule/deadlock.h"
#include "pipewright/schedule/verify/verify_checks.h"
#include "pipewright/schedule/verify/work_index.h"

namespace pipewright::schedule {

VerifyOptions options_of(const ir::Lowering& policies) {
  VerifyOptions options;
  options.channels = policies.channels.value_or(options.channels);
  options.capacity = policies.capacity.value_or(options.capacity);
  options.weight_free_w = policies.weight_free_w.value_or(options.weight_free_w);
  return options;
}

bool verify(const ir::ComputeOrder& order, ir::Diagnostics* diagnostics) {
  const size_t before = diagnostics->total();
  const std::optional<WorkIndex> index = WorkIndex::build(order, diagnostics);
  if (!index) return false;
  check_local_order(order, *index, diagnostics);
  if (diagnostics->total() == before) check_can_run(order, diagnostics);
  return diagnostics->total() == before;
}

bool verify(const ir::Program& program, const VerifyOptions& options,
            ir::Diagnostics* diagnostics) {
  const size_t before = diagnostics->total();
  const std::optional<WorkIndex> index = WorkIndex::build(program, diagnostics);
  check_residency(program, options.weight_free_w || program.lowering.weight_free_w.value_or(false),
                  diagnostics);
  check_reduction(program, diagnostics);
  if (!index) return false;
  const size_t before_flow = diagnostics->total();
  check_data_flow(program, *index, diagnostics);
  // The channel model is defined only if SENDs and RECVs match one to one.
  if (diagnostics->total() == before_flow) check_channels(program, options, diagnostics);
  return diagnostics->total() == before;
}

}  // namespace pipewright::schedule
