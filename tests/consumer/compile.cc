// Compiles and simulates a schedule: `@pipewright//:compiler` alone, without LibTorch.
#include "pipewright/schedule/compile/compile.h"

#include <cstdio>

int main() {
  using namespace pipewright::schedule;
  const CompileResult compiled =
      compile({.source = "ZB-H1", .shape = {.ranks = 4, .microbatches = 8}});
  if (!compiled.ok()) return 1;
  for (const auto& row : compiled.program().rows) std::printf("%zu actions\n", row.size());
  const SimulateResult simulated = simulate(compiled, {});
  if (!simulated.ok()) return 1;
  std::printf("makespan %g\n", simulated.simulation->report.makespan);
}
