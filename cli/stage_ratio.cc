#include "pipewright/cli/stage_ratio.h"

#include <fmt/format.h>

namespace pipewright::cli {

StageRatio ratio_of(const Invocation& invocation, const ir::Schedule& before,
                    const ir::Schedule& after) {
  for (const char* option : {"--costs", "--forward", "--backward-input", "--backward-weight"}) {
    if (invocation.has(option)) return {};
  }
  return {before.placement.num_stages(), after.placement.num_stages()};
}

void scale_stages(const StageRatio& ratio, schedule::Costs* costs) {
  for (const char* cost : {"F", "I", "W"}) schedule::scale_cost(cost, ratio.value(), costs);
}

std::string describe(const StageRatio& ratio) {
  return fmt::format(
      "compared as one model: a stage of the second is {}/{} of a stage of the first, in time and "
      "in activations",
      ratio.before, ratio.after);
}

}  // namespace pipewright::cli
