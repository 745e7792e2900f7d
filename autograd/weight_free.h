#ifndef PIPEWRIGHT_AUTOGRAD_WEIGHT_FREE_H_
#define PIPEWRIGHT_AUTOGRAD_WEIGHT_FREE_H_

#include <string>

#include "pipewright/autograd/split_backward.h"

namespace pipewright::autograd {

// Returns the name of an autograd node that may read a weight when the W half of a microbatch runs,
// or an empty string if W can run while the weights are resharded, as they must be now.
//
// Most gradients of weights are products of an input and the gradient of an output, and never read
// the weight. But the backward kernel of LayerNorm reads it, and an operation that is not linear in
// its weight would read freed memory. So only nodes on an allow-list pass, and products only if W
// computes the gradient of one factor, and the other one has not been freed. Linear in the size of
// the W graph.
std::string reads_weights(const WeightWork& work);

}  // namespace pipewright::autograd

#endif  // PIPEWRIGHT_AUTOGRAD_WEIGHT_FREE_H_
