#ifndef PIPEWRIGHT_AUTOGRAD_SPLIT_BACKWARD_H_
#define PIPEWRIGHT_AUTOGRAD_SPLIT_BACKWARD_H_

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <vector>

// A backward in two halves on the autograd graph, for zero-bubble schedules (Qi et al., "Zero
// Bubble Pipeline Parallelism", 2023): I gives the gradients of the inputs now, W adds those of the
// weights at any later time.
//
// A node is on path if the gradient of an input flows through it. What leads to a node on path is
// on path too, so each edge of the graph belongs to one half: I evaluates those that lead to nodes
// on path, W all others. W starts at the nodes on path that own such an edge, the boundary; they
// run in both halves, on the same whole gradient, each time for their own edges alone. So every
// edge is evaluated once, with the complete gradient, in the order of a full backward: the results
// are the same bits, also for a weight that is used twice.
//
// If no input requires a gradient (the first stage), a node counts as on path if it leads to two
// weights or more: I then walks the chain of activations, and W is as cheap as elsewhere.
//
// Between the halves a microbatch holds what W needs: saved inputs of the boundary, and the
// gradients that reach it. That can be more than forward kept.
//
// Hooks of weights run once, in W. Hooks of other tensors run in I; a post hook on a node of the
// boundary runs in both. One thread at a time for one graph. The process's autograd engine serves
// both halves as it is.

namespace pipewright::autograd {

// A node whose apply() also adds to gradients of weights that no edge of it shows, as activation
// checkpointing does. In I it must leave those to the WeightWork that stands in its context. On the
// boundary it is run again, in W, on the same gradients, and must then give its edges alone theirs.
class HidesWeights : public torch::autograd::Node {};

// The W half of one microbatch: a node of ours at whose edges W begins.
class WeightWork final : public torch::autograd::Node {
 public:
  // Nothing on `edge` was evaluated in I; `grad` is what flows along it.
  void add(const torch::autograd::Edge& edge, at::Tensor grad);
  // Adds to the gradients of the weights. Once; gradients are freed as they are used.
  void run();
  // What is kept for it alone: the gradients at the boundary.
  size_t bytes() const;

  torch::autograd::variable_list apply(torch::autograd::variable_list&& unused) override;

 private:
  torch::autograd::variable_list grads_;
};

// The whole backward from `roots`, with a gradient for each; roots that are not valid, and
// gradients that are not defined, are skipped. Adds to the .grad of all leaves.
void full_backward(const torch::autograd::edge_list& roots,
                   const torch::autograd::variable_list& grads);

// I. `inputs` that require a gradient must be leaves without one; its result goes by them, and is
// undefined where nothing arrives. Adds the rest to `work`. Spends the graph: a full backward
// through the same outputs would be wrong afterwards, without an error, so drop them. If it throws,
// the graph is lost.
torch::autograd::variable_list backward_input(const torch::autograd::edge_list& roots,
                                              const torch::autograd::variable_list& grads,
                                              const torch::autograd::variable_list& inputs,
                                              WeightWork& work);

// Where a tensor's gradient enters the graph; not valid if it requires none.
torch::autograd::Edge root_of(const at::Tensor& output);

// The gradients of leaves, taken away from them.
torch::autograd::variable_list take_grads(const torch::autograd::variable_list& leaves);

}  // namespace pipewright::autograd

#endif  // PIPEWRIGHT_AUTOGRAD_SPLIT_BACKWARD_H_
