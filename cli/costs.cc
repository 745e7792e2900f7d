#include <fmt/format.h>

#include <ostream>
#include <string>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/files.h"
#include "pipewright/cli/model_options.h"
#include "pipewright/cli/run.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/schedule_json.h"
#include "pipewright/schedule/problem/costs_json.h"
#include "pipewright/schedule/problem/layers.h"

namespace pipewright::cli {
namespace {

// Scales F, I and W of the layers to what stages took that --fit has measured.
void fit(const Invocation& invocation, Console& console, schedule::Costs* costs) {
  const auto path = invocation.text("--fit");
  if (!path) return;
  Invocation as_costs;
  as_costs.options["--costs"] = *path;
  const schedule::Costs measured = read_costs(as_costs, console).request.costs;
  if (!measured.forward.is_list())
    throw UsageError(
        fmt::format("--fit: expected a recording, or a costs file with `forward` by stage, got {}",
                    ir::printable(*path)));
  const auto stages = static_cast<int>(measured.forward.values().size());
  ir::Diagnostics diagnostics;
  const auto predicted = schedule::cut_layers(*costs, {}, {}, stages, &diagnostics);
  if (!predicted) throw UsageError("--fit: " + diagnostics.kept().front().message);
  const auto seconds = ir::seconds_per(measured.unit.empty() ? "ms" : measured.unit);
  if (!seconds)
    throw UsageError(fmt::format("--fit: expected times in s, ms, us or ns, got {}",
                                 ir::backticked(measured.unit)));
  for (const auto& [name, cost] : {std::pair("F", &schedule::Costs::forward),
                                   {"I", &schedule::Costs::backward_input},
                                   {"W", &schedule::Costs::backward_weight}}) {
    double took = 0, should = 0;
    for (int stage = 0; stage < stages; ++stage) {
      took += (measured.*cost).at(stage) * *seconds * 1e3;
      should += ((*predicted).*cost).at(stage);
    }
    if (should == 0) continue;
    const double factor = took / should;
    console.err << fmt::format("{}: measured {:.4g} ms, predicted {:.4g} ms: times {:.4g}\n", name,
                               took, should, factor);
    schedule::scale_cost(name, factor, costs);
  }
}

}  // namespace

std::vector<OptionSpec> costs_options() {
  std::vector<OptionSpec> options = model_options();
  const std::vector<OptionSpec> own = {
      number_option("--microbatch-size", "N", "sequences per microbatch; default: 1"),
      number_option("--tp", "N", "tensor-parallel ranks, with sequence parallelism; default: 1"),
      flag_option("--no-sequence-parallel", "tensor parallelism without it"),
      number_option("--dp", "N", "data-parallel ranks; default: 1"),
      number_option("--ep", "N", "of them, ranks that share the experts; default: 1"),
      number_option("--slices", "K",
                    "also say how the K slices of a sequence differ, of which later ones attend to "
                    "more: `slice_scale`"),
      flag_option("--recompute", "every block keeps its input only and runs its forward again"),
      file_option(
          "--fit", "FILE",
          "scale F, I and W to those measured: a schedule with a recording, or a costs file "
          "by stage (train_gpt --profile)"),
      {"--output", "-o", {ValueKind::kFile, "FILE", {}}, "write to FILE; default: stdout"},
  };
  options.insert(options.end(), own.begin(), own.end());
  return options;
}

int run_costs(const Invocation& invocation, Console& console) {
  AskedModel asked = read_model(invocation, console);
  schedule::TrainingShape& training = asked.training;
  training.microbatch_size = invocation.number("--microbatch-size").value_or(1);
  training.tp = invocation.number("--tp").value_or(1);
  training.dp = invocation.number("--dp").value_or(1);
  training.ep = invocation.number("--ep").value_or(1);
  training.sequence_parallel = !invocation.has("--no-sequence-parallel");
  training.recomputes = invocation.has("--recompute");
  training.slices = invocation.number("--slices").value_or(1);
  if (training.sequence % training.slices != 0)
    throw UsageError(fmt::format("--slices: expected a divisor of --seq {}, got {}",
                                 training.sequence, training.slices));
  if (asked.model.heads % training.tp != 0)
    throw UsageError(fmt::format("--tp: expected a divisor of the {} heads, got {}",
                                 asked.model.heads, training.tp));
  if (training.dp % training.ep != 0)
    throw UsageError(
        fmt::format("--ep: expected a divisor of --dp {}, got {}", training.dp, training.ep));
  schedule::Costs costs = schedule::model_costs(asked.model, training, asked.machine);
  fit(invocation, console, &costs);
  write_output(invocation.text("--output").value_or("-"), console,
               [&](std::ostream& out) { schedule::print_costs(costs, out); });
  return kExitOk;
}

}  // namespace pipewright::cli
