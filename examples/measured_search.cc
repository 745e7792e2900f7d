#include "examples/measured_search.h"

#include <malloc.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <sstream>
#include <utility>

#include "examples/activation_memory.h"
#include "examples/measured_costs.h"
#include "examples/memory.h"
#include "pipewright/checkpoint/save.h"
#include "pipewright/comms/process/environment.h"
#include "pipewright/comms/store_rounds.h"

namespace pipewright::examples {
namespace {

// What all ranks have been told by rank 0.
std::string from_first(comms::StoreExchange& exchange, const comms::World& world,
                       const std::function<std::string()>& text) {
  return checkpoint::agree(std::ref(exchange),
                           [&] { return world.rank() == 0 ? text() : std::string(); })[0];
}

// Collective. `rank_memory` is each rank's own.
std::optional<double> activations_that_fit(comms::StoreExchange& exchange,
                                           const ActivationMemory& rank_memory, int microbatches) {
  std::vector<ActivationMemory> ranks;
  for (const std::string& text : exchange(to_text(rank_memory)))
    ranks.push_back(activation_memory_from_text(text));
  return activations_that_fit(ranks, microbatches);
}

ActivationMemory memory_of(const Options& options, const LocalModel& model,
                           const MeasuredCosts& measured) {
  double parameters = 0;
  for (const at::Tensor& parameter : model.parameters)
    parameters += static_cast<double>(parameter.nbytes());
  // AdamW has two moments per parameter, and what is saved is a copy of all three.
  const int copies = 2 + (options.checkpoints.save.empty() ? 0 : 3);
  // What this process has freed is available too.
  malloc_trim(0);
  return {.host = comms::host_name(),
          .available = static_cast<double>(host_memory().available),
          .reserved = copies * parameters,
          .per_activation = measured.activation_bytes};
}

}  // namespace

std::vector<FoundSchedule> try_schedules(const Options& options, const RunOf& run_of,
                                         const Text& text, comms::Mesh& mesh, comms::World& world,
                                         at::Device device) {
  comms::StoreExchange exchange(world, "search");
  std::vector<FoundSchedule> tried;
  for (const int stages : stages_to_search(options)) {
    const ir::Program first = program_to_measure(options, stages);
    LocalModel model = make_local_model(options, first.placement, mesh, world, device);
    const executor::ExecutorOptions run = run_of(model);
    const MeasuredCosts measured = measure_costs(options, first, model, run, text, mesh, world);
    std::optional<double> limit = options.search_limit();
    if (!limit)
      limit =
          activations_that_fit(exchange, memory_of(options, model, measured), options.microbatches);
    bool is_usual_tried = false;
    const auto try_one = [&](FoundSchedule found) {
      is_usual_tried |= found.found_by == "1F1B";
      const double own =
          measure_costs(options, found.program, model, run, text, mesh, world).seconds;
      std::istringstream(from_first(exchange, world, [&] { return std::to_string(own); })) >>
          found.measured_seconds;
      found.costs = measured.costs;
      tried.push_back(std::move(found));
    };
    for (const Backwards backwards : {Backwards::kSplit, Backwards::kWhole}) {
      try_one(from_text(from_first(exchange, world, [&] {
        return to_text(find_schedule(options, stages, backwards, measured.costs, limit));
      })));
    }
    if (is_usual_tried) continue;
    const std::string usual = from_first(exchange, world, [&] {
      const auto found = usual_schedule(options, stages, measured.costs, limit);
      return found ? to_text(*found) : "";
    });
    if (!usual.empty()) try_one(from_text(usual));
  }
  std::ranges::stable_sort(tried, {}, &FoundSchedule::measured_seconds);
  return tried;
}

}  // namespace pipewright::examples
