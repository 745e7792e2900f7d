#include "examples/measured_search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

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

}  // namespace

FoundSchedule search_in_memory(const Options& options, const MeasuredCosts& measured,
                               comms::World& world) {
  comms::StoreExchange exchange(world, "search");
  std::ostringstream memory;
  memory << comms::host_name() << ' ' << host_memory().available << ' '
         << measured.activation_bytes;
  const std::vector<std::string> memories = exchange(memory.str());
  const auto found = checkpoint::agree(std::ref(exchange), [&]() -> std::string {
    if (world.rank() != 0) return "";
    const std::optional<double> limit = options.search_limit();
    return to_text(
        find_schedule(options, measured.costs,
                      limit ? limit : activations_that_fit(memories, options.microbatches)));
  });
  return from_text(found[0]);
}

}  // namespace pipewright::examples
