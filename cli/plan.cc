#include "pipewright/schedule/plan/plan.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/files.h"
#include "pipewright/cli/json.h"
#include "pipewright/cli/model_options.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/read.h"
#include "pipewright/schedule/problem/costs_json.h"

namespace pipewright::cli {
namespace {

using schedule::PlanRow;

struct ShownRow {
  PlanRow row;
  double bound;  // of its step
};

std::vector<ShownRow> with_bounds(std::vector<PlanRow> rows, size_t most,
                                  const schedule::Machine& machine) {
  std::vector<ShownRow> shown;
  for (size_t k = 0; k < std::min(most, rows.size()); ++k) {
    const double bound = schedule::plan_bound(rows[k], machine);
    shown.push_back({std::move(rows[k]), bound});
  }
  return shown;
}

void print_rows(const AskedModel& asked, const schedule::PlanRequest& request,
                const std::vector<ShownRow>& rows, size_t fitting, std::ostream& out) {
  out << fmt::format(
      "{}\n{}, {} of {} per step; {} fit{}\n\n", model_text(asked),
      ir::counted(request.gpus, "GPU", "GPUs"), ir::counted(request.batch, "sequence", "sequences"),
      ir::counted(request.training.sequence, "token", "tokens"),
      ir::counted(static_cast<int64_t>(fitting), "division", "divisions"), fitting == 1 ? "s" : "");
  out << fmt::format(
      "{:>4}  {:>4} {:>4} {:>5} {:>7} {:>6} {:>10}  {:>9} {:>9} {:>7} {:>9} {:>8}  {}\n", "row",
      "pp", "tp", "dp", "stages", "mb", "recompute", "step ms", "bound ms", "bubble", "exposed",
      "GB", "TFLOP/s");
  for (size_t k = 0; k < rows.size(); ++k) {
    const auto& [row, bound] = rows[k];
    const double flops = static_cast<double>(request.batch) *
                         schedule::model_flops(asked.model, request.training.sequence);
    out << fmt::format(
        "{:>4}  {:>4} {:>4} {:>5} {:>7} {:>6} {:>10}  {:>9.0f} {:>9.0f} {:>7} {:>9.0f} {:>8.1f}  "
        "{:.0f}\n",
        k + 1, row.pp, row.training.tp, row.training.dp, row.stages_per_rank,
        row.training.microbatch_size, row.training.recomputes ? "blocks" : "no", row.step, bound,
        percent_text(row.bubble), row.exposed, row.memory / 1e9,
        flops / request.gpus / row.step / 1e9);
  }
  out << "\nPredictions, not measurements: docs/costs.md says how near they are.\n";
}

Json row_json(const ShownRow& shown) {
  const PlanRow& row = shown.row;
  return {{"pp", row.pp},
          {"tp", row.training.tp},
          {"dp", row.training.dp},
          {"ep", row.training.ep},
          {"stages_per_rank", row.stages_per_rank},
          {"microbatch_size", row.training.microbatch_size},
          {"microbatches", row.microbatches},
          {"recompute", row.training.recomputes},
          {"cut", row.cut},
          {"step_ms", row.step},
          {"bound_ms", shown.bound},
          {"bubble", row.bubble},
          {"exposed_ms", row.exposed},
          {"memory_bytes", row.memory}};
}

}  // namespace

std::vector<OptionSpec> plan_options() {
  std::vector<OptionSpec> options = model_options();
  const std::vector<OptionSpec> own = {
      number_option("--gpus", "N", "GPUs; required"),
      number_option("--batch", "N", "sequences per step; required"),
      number_option("--rows", "N", "rows to show; default: 10"),
      number_option("--choose", "N", "the row that --output writes; default: 1"),
      {"--output",
       "-o",
       {ValueKind::kFile, "FILE", {}},
       "write the plan of a row, .plan or .json, and its costs beside it, as FILE.costs.json"},
      flag_option("--json", "print the result as JSON"),
  };
  options.insert(options.end(), own.begin(), own.end());
  return options;
}

int run_plan(const Invocation& invocation, Console& console) {
  const std::string path = invocation.text("--output").value_or("");
  if (!path.empty() && !path.ends_with(".plan") && !path.ends_with(".json"))
    throw UsageError(
        fmt::format("--output: expected a .plan or .json file, got {}", ir::backticked(path)));
  const AskedModel asked = read_model(invocation, console);
  for (const char* option : {"--gpus", "--batch"}) {
    if (!invocation.has(option)) throw UsageError(fmt::format("plan requires {}", option));
  }
  schedule::PlanRequest request{.model = asked.model,
                                .training = asked.training,
                                .machine = asked.machine,
                                .gpus = *invocation.number("--gpus"),
                                .batch = *invocation.number("--batch")};
  const auto choice = static_cast<size_t>(invocation.number("--choose").value_or(1));
  const size_t most =
      std::max(choice, static_cast<size_t>(invocation.number("--rows").value_or(10)));
  if (!path.empty()) {
    require_writable(path);
    require_writable(path + ".costs.json");
  }
  const bool shows_progress = ::isatty(STDERR_FILENO) != 0 && !invocation.has("--json");
  if (shows_progress)
    request.on_progress = [&](int done, int all) {
      console.err << fmt::format("\r{} of {} divisions\x1b[K", done, all) << std::flush;
    };
  std::vector<PlanRow> fitting = schedule::plan_rows(request);
  if (shows_progress) console.err << "\r\x1b[K" << std::flush;
  if (fitting.empty())
    throw UsageError(fmt::format(
        "no division of {:.3g}e9 parameters over {} of {:.4g} GB fits their memory: expected "
        "more GPUs, a larger --gpu, or --shard all",
        static_cast<double>(asked.model.parameters()) / 1e9,
        ir::counted(request.gpus, "GPU", "GPUs"), asked.machine.memory / 1e9));
  if (choice > fitting.size())
    throw UsageError(
        fmt::format("--choose: expected a row from 1 to {}, got {}", fitting.size(), choice));
  const size_t count = fitting.size();
  const std::vector<ShownRow> rows = with_bounds(std::move(fitting), most, asked.machine);
  if (invocation.has("--json")) {
    print_json({{"version", 1}, {"rows", list_json(rows, row_json)}}, console.out);
  } else {
    print_rows(asked, request, rows, count, console.out);
  }
  if (path.empty()) return kExitOk;
  const PlanRow& row = rows[choice - 1].row;
  const ir::Format& format = *ir::find_format(path.ends_with(".json") ? "json" : "plan");
  write_output(path, console,
               [&](std::ostream& out) { format.print(ir::AnySchedule(row.order), out); });
  write_output(path + ".costs.json", console,
               [&](std::ostream& out) { schedule::print_costs(row.costs, out); });
  return kExitOk;
}

}  // namespace pipewright::cli
