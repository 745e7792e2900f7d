#ifndef PIPEWRIGHT_TP_OVERLAP_H_
#define PIPEWRIGHT_TP_OVERLAP_H_

#include <ATen/core/Tensor.h>

namespace pipewright::tp {

// Hides the communication of a column-parallel layer's backward. `input` is a result of copy_to()
// or gather_partial(), and `output` is what the layer has just computed from it. LibTorch computes
// the gradients of a Linear's input and of its weight in one node. Afterwards that node computes
// the gradient of the input first, its all-reduce or reduce-scatter is posted, and runs while the
// gradients of weight and bias are computed. Gradients are bitwise the same. In a split backward I
// posts and waits, and W communicates nothing.
//
// The communication of prepare_input() (parallelize.h) is not hidden: it is that of the sum of
// several layers' gradients, and follows all their products.
//
// Changes nothing if `output` is not that of a Linear whose weight requires a gradient, for example
// under autocast or in a forward of the user's own: the communication then follows the node.
void overlap_backward(const at::Tensor& output, const at::Tensor& input);

}  // namespace pipewright::tp

#endif  // PIPEWRIGHT_TP_OVERLAP_H_
