#ifndef PIPEWRIGHT_EXAMPLES_PART_COSTS_H_
#define PIPEWRIGHT_EXAMPLES_PART_COSTS_H_

#include <cstdint>
#include <functional>

#include "examples/gpt.h"
#include "examples/options.h"
#include "pipewright/comms/world.h"

// What embedding, blocks and output layer cost, for `--balance`.

namespace pipewright::examples {

// By floating-point operations per token of a forward: two per weight of a product, and attention
// over the context. An embedding is a copy.
PartCosts estimated_costs(const GptConfig& config);

// Runs `work`, perhaps several times, and returns what one run costs, in any unit.
using Stopwatch = std::function<double(const std::function<void()>& work)>;
// The seconds of the fastest of a few runs, after two that do not count.
double seconds_of(const std::function<void()>& work);

// Of forward and backward of `windows` windows in `dtype`, on this thread, without communication:
// with what is left out of the estimate, such as the loss, the gradient of the embedding, and
// blocks that are recomputed.
PartCosts measured_costs(const GptConfig& config, int64_t windows, at::ScalarType dtype,
                         const Stopwatch& stopwatch = seconds_of);

// The model of --balance: with the costs by which its blocks are distributed. If they are to be
// measured, rank 0 measures a microbatch while the others wait. Collective over the world; equal on
// all ranks.
GptConfig balanced_model(const Options& options, comms::World& world);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_PART_COSTS_H_
