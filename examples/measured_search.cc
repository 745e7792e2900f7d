#include "examples/measured_search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "examples/measured_costs.h"
#include "examples/memory.h"
#include "pipewright/checkpoint/agree.h"
#include "pipewright/comms/host_name.h"
#include "pipewright/comms/store_exchange.h"

namespace pipewright::examples {
namespace {

// How many activations fit into the memory that is left on the rank that has the least of it;
// nullopt if all microbatches do. `ranks` have "host available-bytes bytes-per-activation".
std::optional<double> activations_that_fit(const std::vector<std::string>& ranks,
                                           int microbatches) {
  std::map<std::string, int> ranks_of_host;
  std::vector<std::pair<std::string, double>> of_rank;
  for (const std::string& rank : ranks) {
    std::istringstream words(rank);
    std::string host;
    double available = 0, bytes = 1;
    words >> host >> available >> bytes;
    ++ranks_of_host[host];
    of_rank.emplace_back(host, available / bytes);
  }
  double least = microbatches;
  for (const auto& [host, fit] : of_rank) least = std::min(least, fit / ranks_of_host[host]);
  if (least >= microbatches) return std::nullopt;
  return std::max(1.0, std::floor(least));
}

// What all ranks have been told by rank 0.
std::string from_first(comms::StoreExchange& exchange, const comms::World& world,
                       const std::function<std::string()>& text) {
  return checkpoint::agree(std::ref(exchange),
                           [&] { return world.rank() == 0 ? text() : std::string(); })[0];
}

// Each rank's line for activations_that_fit().
std::string memory_of(const MeasuredCosts& measured) {
  std::ostringstream memory;
  memory << comms::host_name() << ' ' << host_memory().available << ' '
         << measured.activation_bytes;
  return memory.str();
}

}  // namespace

FoundSchedule find_fastest(const Options& options, const RunOf& run_of, const Text& text,
                           comms::Mesh& mesh, comms::World& world, at::Device device) {
  comms::StoreExchange exchange(world, "search");
  std::optional<FoundSchedule> fastest;
  for (const int stages : stages_to_search(options)) {
    const ir::Program first = program_to_measure(options, stages);
    LocalModel model = make_local_model(options, first.placement, mesh, world, device);
    const executor::ExecutorOptions run = run_of(model);
    const MeasuredCosts measured = measure_costs(options, first, model, run, text, mesh, world);
    std::optional<double> limit = options.search_limit();
    if (!limit) limit = activations_that_fit(exchange(memory_of(measured)), options.microbatches);
    for (const Backwards backwards : {Backwards::kSplit, Backwards::kWhole}) {
      FoundSchedule found = from_text(from_first(exchange, world, [&] {
        return to_text(find_schedule(options, stages, backwards, measured.costs, limit));
      }));
      const double own =
          measure_costs(options, found.program, model, run, text, mesh, world).seconds;
      std::istringstream(from_first(exchange, world, [&] { return std::to_string(own); })) >>
          found.measured_seconds;
      found.costs = measured.costs;
      if (!fastest || found.measured_seconds < fastest->measured_seconds)
        fastest = std::move(found);
    }
  }
  return *std::move(fastest);
}

}  // namespace pipewright::examples
