#include "pipewright/executor/program/program_check.h"

#include <optional>
#include <stdexcept>
#include <utility>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/ir/text/shape.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::executor {
namespace {

std::string text_of(const ir::Diagnostics& diagnostics) {
  return ir::render(diagnostics, nullptr, {});
}

}  // namespace

std::string problems_of(const ir::Program& program, Check check) {
  ir::Diagnostics diagnostics;
  const bool valid =
      ir::check_declared_shape(program, ir::Level::kComputeComms, ir::CellIndex(), {},
                               &diagnostics) &&
      (check == Check::kShape ||
       schedule::verify(program, schedule::options_of(program.lowering), &diagnostics));
  return valid ? "" : text_of(diagnostics);
}

ir::Program forward_only(const ir::Program& program) {
  ir::Lowering policies = program.lowering;
  policies.forward_only = true;
  policies.merge_backward = policies.split_backward = std::nullopt;
  ir::Diagnostics diagnostics;
  std::optional<ir::Program> forwards =
      schedule::lower(schedule::compute_order(program), policies, &diagnostics);
  const std::string problems =
      forwards ? problems_of(*forwards, Check::kVerify) : text_of(diagnostics);
  if (!forwards || !problems.empty())
    throw std::invalid_argument("the program's forwards alone are not valid:\n" + problems);
  return *std::move(forwards);
}

}  // namespace pipewright::executor
