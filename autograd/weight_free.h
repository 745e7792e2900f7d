#ifndef PIPEWRIGHT_AUTOGRAD_WEIGHT_FREE_H_
#define PIPEWRIGHT_AUTOGRAD_WEIGHT_FREE_H_

#include <string>

#include "pipewright/autograd/split_backward.h"

namespace pipewright::autograd {

// Whether the W half of a microbatch can run while the weights are resharded. Most gradients of
// weights are products of what came in and the gradient of what went out, and never look at the
// weight; but LayerNorm's kernel wants it all the same, and an operation that is not linear in its
// weight reads freed memory. So only operations that are known not to are taken, each with one
// factor that gets its gradient in W. Returns what would read a weight, empty if nothing would.
std::string reads_weights(const WeightWork& work);

}  // namespace pipewright::autograd

#endif  // PIPEWRIGHT_AUTOGRAD_WEIGHT_FREE_H_
