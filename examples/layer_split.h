#ifndef PIPEWRIGHT_EXAMPLES_LAYER_SPLIT_H_
#define PIPEWRIGHT_EXAMPLES_LAYER_SPLIT_H_

#include <cstdint>
#include <vector>

namespace pipewright::examples {

// Costs of parts of a model, in any unit.
struct PartCosts {
  double embedding = 0;  // of the first stage
  double block = 1;
  double output = 0;  // of the last stage, with the loss
};

// The number of blocks in each stage, `layers` in all, so that the most expensive stage is as cheap
// as possible. With an expensive embedding or output layer, the first or last stage has fewer
// blocks, or none. Where there is a choice, later stages have more, as they store fewer
// activations.
std::vector<int64_t> split_layers(int64_t layers, int num_stages, const PartCosts& costs = {});

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_LAYER_SPLIT_H_
