#include "examples/layer_split.h"

#include <algorithm>

namespace pipewright::examples {

// Blocks are alike, so each goes to the stage that is the cheapest so far: any other choice would
// make some stage at least as expensive.
std::vector<int64_t> split_layers(int64_t layers, int num_stages, const PartCosts& costs) {
  std::vector<int64_t> blocks(static_cast<size_t>(num_stages), 0);
  std::vector<double> stages(blocks.size(), 0);
  stages.front() += costs.embedding;
  stages.back() += costs.output;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto cheapest = std::min_element(stages.rbegin(), stages.rend());
    *cheapest += costs.block;
    ++blocks[static_cast<size_t>(stages.rend() - cheapest) - 1];
  }
  return blocks;
}

}  // namespace pipewright::examples
