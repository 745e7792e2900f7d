#include "pipewright/cli/search_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "pipewright/cli/invocation.h"
#include "pipewright/cli/run.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/printable.h"
#include "pipewright/schedule/problem/layers.h"
#include "pipewright/schedule/search/front.h"
#include "pipewright/schedule/search/words.h"

namespace pipewright::cli {
namespace {

namespace search = schedule::search;

// Words to numbers of evaluations. One takes about 30 ns.
struct Budget {
  std::string_view name;
  int64_t evaluations;
};
constexpr Budget kBudgets[] = {
    {"small", 10'000'000}, {"medium", search::kDefaultEvaluations}, {"large", 2'000'000'000}};
constexpr int64_t kMostActions = 50'000'000;

int64_t budget_of(const Invocation& invocation) {
  const std::string text = invocation.text("--budget").value_or("medium");
  for (const Budget& budget : kBudgets) {
    if (text == budget.name) return budget.evaluations;
  }
  return number_of<int64_t>("--budget", text, "small, medium, large or a whole number from 1",
                            [](int64_t number) { return number >= 1; });
}

// Every search needs these; all that are missing are named at once.
void require_shape(const Invocation& invocation) {
  std::string missing;
  for (const char* option :
       {"--ranks", invocation.has("--batch") ? "--microbatch-sizes" : "--microbatches"}) {
    if (invocation.has(option)) continue;
    missing.append(missing.empty() ? "" : " and ").append(option);
  }
  if (!missing.empty()) throw UsageError("search requires " + missing);
  for (const char* option : {"--microbatches", "--microbatch-sizes"}) {
    const bool is_of_batch = option == std::string_view("--microbatch-sizes");
    if (invocation.has(option) && invocation.has("--batch") != is_of_batch)
      throw UsageError(
          fmt::format("{} {} --batch", option, is_of_batch ? "requires" : "cannot be used with"));
  }
}

// The sequences per microbatch to try; empty without --microbatch-sizes.
std::vector<int> microbatch_sizes(const Invocation& invocation) {
  if (!invocation.has("--microbatch-sizes")) return {};
  if (!invocation.has("--layers")) throw UsageError("--microbatch-sizes requires --layers");
  const int batch = *invocation.number("--batch");
  const std::vector<int> sizes =
      counts("--microbatch-sizes", *invocation.text("--microbatch-sizes"));
  for (const int size : sizes) {
    if (size < 1 || batch % size != 0)
      throw UsageError(
          fmt::format("--microbatch-sizes: expected divisors of --batch {}, got {}", batch, size));
  }
  return sizes;
}

// 1 or 2. Ends the command if another option is of one replica.
int replicas_to_search(const Invocation& invocation) {
  const int replicas = std::max(1, replicas_of(invocation));
  for (const char* option : {"--layers", "--recompute", "--offload"}) {
    if (replicas == 2 && invocation.has(option))
      throw UsageError(fmt::format("--replicas 2 cannot be used with {}", option));
  }
  if (replicas == 2 && invocation.text("--placement") == "free")
    throw UsageError("--replicas 2 cannot be used with --placement free");
  return replicas;
}

// The costs of microbatches of that size.
AskedCosts resized(AskedCosts costs, int size) {
  if (costs.request.costs.microbatch_size == 0)
    throw UsageError(
        "--microbatch-sizes requires --costs FILE with `microbatch_size`, the sequences per "
        "microbatch that the costs are of");
  schedule::resize_microbatches(size, &costs.request.costs);
  return costs;
}

ir::Placement placement_of(const AskedSearch& asked, int replicas, int num_microbatches,
                           int slices) {
  try {
    const ir::Placement one = search::named_placement(asked.placement, asked.ranks, asked.stages);
    return replicas == 1 ? one : search::both_ways(one, num_microbatches, slices);
  } catch (const std::invalid_argument& error) {
    throw UsageError(std::string("--") + error.what());
  }
}

// The costs after the what-if options. They must fit a schedule with this placement; otherwise
// prints the errors and throws Failed.
schedule::Costs costs_for(const AskedCosts& asked, const ir::Placement& placement,
                          int num_microbatches, bool keeps_layers, Console& console,
                          int slices = 1) {
  ir::Diagnostics diagnostics;
  const auto costs =
      keeps_layers
          ? schedule::changed_layers(asked.request, placement, num_microbatches, &diagnostics)
          : schedule::changed_costs(asked.request, placement, num_microbatches, {}, &diagnostics,
                                    slices);
  if (!costs) {
    print_diagnostics(diagnostics, asked.file ? &*asked.file : nullptr,
                      asked.file ? ir::printable(asked.file->name) : "the costs", console);
    throw Failed{kExitTrouble};
  }
  return *costs;
}

// Ends the command if the layers cannot be cut for the search.
void require_layers(const schedule::Costs& costs, const AskedSearch& asked,
                    const Invocation& invocation) {
  if (costs.layers.empty()) throw UsageError("--layers requires --costs FILE with layers");
  if (invocation.has("--cut")) throw UsageError("--layers cannot be used with --cut");
  if (const int layers = num_layers(costs); asked.stages > layers)
    throw UsageError(
        fmt::format("--layers: expected at most {} stages, one per layer of --costs, "
                    "got {}",
                    layers, asked.stages));
  if (invocation.text("--output").value_or("").ends_with(".csv"))
    throw UsageError("--layers: a .csv cannot say how layers are cut; write a .plan or .json");
}

// Ends the command if the costs, per stage or layer, do not have the sizes that an option needs.
void require_sizes(const char* option, const char* field,
                   schedule::PerStage schedule::Costs::*sizes, const search::SearchRequest& request,
                   const Invocation& invocation) {
  if (!schedule::is_above_zero(request.costs, sizes))
    throw UsageError(invocation.has("--costs")
                         ? fmt::format("{}: expected `{}` above 0 in --costs, got 0", option, field)
                         : fmt::format("{} requires --costs FILE with {}", option, field));
  if (invocation.text("--output").value_or("").ends_with(".csv"))
    throw UsageError(fmt::format("{}: a .csv cannot say which stages {}; write a .plan or .json",
                                 option, option + 2));
}

void require_budget(const schedule::MemoryBudget& memory, int ranks, const Invocation& invocation) {
  ir::Diagnostics diagnostics;
  if (schedule::check_budget(memory, ranks, &diagnostics)) return;
  throw UsageError(fmt::format("{}: {}", invocation.has("--memory") ? "--memory" : "--memory-bytes",
                               diagnostics.kept().front().message));
}

// Ends the command if a rank has too little memory for any schedule.
void require_memory(const search::SearchRequest& request, bool has_option) {
  const schedule::Problem problem = search::problem_of(request);
  const auto shortage = search::shortage_of(problem);
  if (!shortage) return;
  if (request.memory.activations)
    throw UsageError(fmt::format(
        "--memory: no schedule fits rank {}: expected at least {}, got {}", shortage->rank,
        activations_text(static_cast<double>(shortage->least) /
                         static_cast<double>(problem.activation_of(shortage->rank))),
        number_text(request.memory.activations->at(shortage->rank))));
  const double missing =
      static_cast<double>(shortage->least - shortage->limit) * problem.memory_unit;
  const bool is_exact = shortage->limit > schedule::kLeastLimit;
  const double limit = request.memory.bytes->at(shortage->rank);
  throw UsageError(fmt::format("{}: no schedule fits rank {}: expected {} {:.0f} bytes, got {:.0f}",
                               has_option ? "--memory-bytes" : "`rank_memory_bytes`",
                               shortage->rank, is_exact ? "at least" : "more than",
                               std::ceil(limit + missing), limit));
}

}  // namespace

std::vector<OptionSpec> search_options() {
  return std::vector<OptionSpec>{
      number_option("--ranks", "P", "number of ranks; required"),
      number_option("--microbatches", "M", "number of microbatches; required without --batch"),
      number_option("--batch", "B",
                    "sequences per step and pipeline, for --microbatch-sizes in place of "
                    "--microbatches"),
      number_option("--slices", "K",
                    "parts that each microbatch is cut into along its sequence; default: 1"),
      number_option("--replicas", "R",
                    "1 or 2 replicas of the model; the second one runs its half of the "
                    "microbatches in the opposite direction over the ranks; default: 1"),
      text_option("--microbatch-sizes", "N,N,...",
                  "with --layers, also choose the sequences per microbatch: --costs, which say "
                  "their `microbatch_size`, are scaled in proportion, and those of the best size "
                  "are written beside --output as FILE.costs.json; the sizes share the budget"),
      choice_option(
          "--placement", "PLACEMENT", {"loop", "v", "wave", "free"},
          "how stages are placed on ranks; wave goes back and forth twice or more, free tries them "
          "all with several amounts of memory; default: loop"),
      number_option("--stages", "S",
                    "number of stages; default: P for loop and free, 2P for v, 4P for wave"),
      text_option("--memory", "K",
                  "activations per rank: 1 is one microbatch on all stages of a rank; I frees half "
                  "of it and W the rest, unless --costs has sizes; K,K,... is a limit per rank; "
                  "default: no limit"),
      text_option("--memory-bytes", "BYTES",
                  "memory per rank for activations, parameters, gradients and receive buffers, "
                  "with the sizes of --costs; B,B,... is a limit per rank; default: "
                  "rank_memory_bytes of --costs"),
      text_option("--budget", "N",
                  "actions to evaluate: small (1e7), medium (2e8, the default), large (2e9) or a "
                  "number; 1e8 take some 3 seconds"),
      text_option("--robust", "SIGMA",
                  "of the good schedules, take the one with the least makespan under log-normal "
                  "noise of standard deviation SIGMA"),
      choice_option(
          "--robust-by", "BY", {"mean", "p95"},
          "which makespan --robust compares: the mean, or the 95th percentile; default: mean"),
      flag_option(
          "--layers",
          "also cut the layers of --costs into stages; the bound is one for all cuts; up to "
          "four times the budget. Without it they are cut as --cut says, or evenly"),
      flag_option("--merge-backward", "use whole backwards (B) only"),
      flag_option(
          "--recompute",
          "choose stages that recompute: they keep checkpoint_bytes between F and the backward, "
          "and the backward takes `recompute` longer (see --costs); up to three times the budget"),
      flag_option("--offload",
                  "choose stages that offload: offload_bytes of their activations are on the host "
                  "between F and the backward, if the copies, which take `offload` and `reload`, "
                  "have the time (see --costs); up to four times the budget, seven with "
                  "--recompute"),
      number_option("--threads", "N",
                    "threads to use, which does not change the result; default: one per core"),
      number_option("--seed", "N", "seed of the search; default: 1"),
      {"--output",
       "-o",
       {ValueKind::kFile, "FILE", {}},
       "write the schedule to FILE, as .plan, .csv or .json; - is stdout, and the report then goes "
       "to stderr"},
      flag_option("--json", "print the result as JSON"),
  };
}

AskedSearch read_search(const Invocation& invocation, Console& console) {
  AskedSearch asked;
  asked.placement = invocation.text("--placement").value_or("loop");
  require_shape(invocation);
  asked.ranks = *invocation.number("--ranks");
  search::SearchRequest& request = asked.request;
  const std::vector<int> sizes = microbatch_sizes(invocation);
  request.num_microbatches = sizes.empty()
                                 ? *invocation.number("--microbatches")
                                 : *invocation.number("--batch") / std::ranges::min(sizes);
  const int slices = invocation.number("--slices").value_or(1);
  if (slices > 1 && invocation.has("--layers"))
    throw UsageError("--slices cannot be used with --layers: cut the layers first, with --cut");
  if (request.num_microbatches > ir::kMaxMicrobatches / slices)
    throw UsageError(fmt::format("--slices: expected at most {} slices of all microbatches, got {}",
                                 ir::kMaxMicrobatches, int64_t{slices} * request.num_microbatches));
  request.num_microbatches *= slices;
  const int replicas = replicas_to_search(invocation);
  const bool is_free = asked.placement == "free";
  const int per_rank = is_free ? 1 : search::default_stages_per_rank(asked.placement);
  const int64_t stages = invocation.number("--stages")
                             .value_or(std::min<int64_t>(int64_t{per_rank} * asked.ranks, 1 << 30));
  asked.stages = static_cast<int>(stages);
  const int64_t actions = 3 * stages * request.num_microbatches;
  if (stages <= search::kMaxSearchStages && actions > kMostActions)
    throw UsageError(fmt::format(
        "expected at most {} actions, got {}: 3 for each of {} stages and {} microbatches",
        kMostActions, actions, stages, request.num_microbatches));
  if (is_free && stages > search::kMaxSearchStages)
    throw UsageError(fmt::format("--placement free: expected at most {} stages, got {}",
                                 search::kMaxSearchStages, stages));
  // With free, costs are checked against the stages that they are given for, wherever those are.
  request.placement =
      is_free ? ir::Placement::loop(asked.ranks, asked.stages)
              : placement_of(asked, replicas, request.num_microbatches / slices, slices);
  request.evaluations = budget_of(invocation);
  request.threads =
      invocation.number("--threads")
          .value_or(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  request.seed = static_cast<uint64_t>(invocation.number("--seed").value_or(1));
  request.splits_backward = !invocation.has("--merge-backward");
  if (invocation.has("--robust-by") && !invocation.has("--robust"))
    throw UsageError("--robust-by requires --robust");
  if (invocation.text("--robust-by") == "p95") request.robust_by = search::RobustBy::kPercentile95;
  if (const auto sigma = invocation.text("--robust")) {
    request.noise = positive_number("--robust", *sigma);
    if (request.noise > 2) throw wrong_value("--robust", "a number above 0, up to 2", *sigma);
  }
  const AskedCosts costs = read_costs(invocation, console);
  asked.cuts_layers = invocation.has("--layers");
  if (asked.cuts_layers) require_layers(costs.request.costs, asked, invocation);
  request.costs =
      costs_for(sizes.empty() ? costs : resized(costs, sizes.front()), request.placement,
                request.num_microbatches, asked.cuts_layers, console, slices);
  if (!asked.cuts_layers && !costs.request.costs.layers.empty())
    asked.cut = costs.request.costs.cut.empty()
                    ? schedule::even_cut(num_layers(costs.request.costs), asked.stages)
                    : costs.request.costs.cut;
  request.memory = memory_of(invocation, request.costs);
  require_budget(request.memory, asked.ranks, invocation);
  request.may_recompute = invocation.has("--recompute");
  request.may_offload = invocation.has("--offload");
  // A checkpoint of 0 bytes is the default, and allowed.
  if (request.may_recompute)
    require_sizes("--recompute", "activation_bytes", &schedule::Costs::activation_bytes, request,
                  invocation);
  if (request.may_offload)
    require_sizes("--offload", "offload_bytes", &schedule::Costs::offload_bytes, request,
                  invocation);
  if (request.may_offload && asked.cuts_layers)
    throw UsageError("--offload cannot be used with --layers: cut the layers first, with --cut");
  if (!asked.cuts_layers) require_memory(request, invocation.has("--memory-bytes"));
  if (sizes.empty()) return asked;
  request.evaluations =
      std::max<int64_t>(1, request.evaluations / static_cast<int64_t>(sizes.size()));
  for (const int size : sizes) {
    search::SearchRequest one = request;
    one.num_microbatches = *invocation.number("--batch") / size;
    one.costs = costs_for(resized(costs, size), one.placement, one.num_microbatches,
                          /*keeps_layers=*/true, console);
    asked.other_sizes.push_back(std::move(one));
  }
  request = std::move(asked.other_sizes.front());
  asked.other_sizes.erase(asked.other_sizes.begin());
  return asked;
}

search::SearchRequest request_of(const AskedSearch& asked, const search::SearchRequest& whole,
                                 const search::FrontPoint& point) {
  search::SearchRequest request = whole;
  request.placement = point.option.placement;
  if (!asked.cuts_layers)
    request.costs = search::cut_stages(whole.costs, asked.stages, point.option.parts);
  request.memory = point.memory;
  return request;
}

}  // namespace pipewright::cli
