// A project that uses the installed library.
#include <iostream>

#include "pipewright/ir/text/render.h"
#include "pipewright/schedule/compile/compile.h"

int main() {
  using namespace pipewright;
  const schedule::CompileResult zbv =
      schedule::compile({.source = "ZBV", .shape = {.ranks = 4, .microbatches = 8}});
  if (!zbv.ok()) {
    std::cerr << ir::render(zbv.diagnostics, nullptr, {});
    return 1;
  }
  // The paper's zero bubble: each rank works for 2 stages * 8 microbatches * 3.
  const schedule::SimulateResult run = schedule::simulate(zbv, {});
  std::cout << zbv.program().name << ": cost " << run.simulation->report.cost << '\n';
  return run.ok() && run.simulation->report.cost == 48 ? 0 : 1;
}
