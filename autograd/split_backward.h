#ifndef PIPEWRIGHT_AUTOGRAD_SPLIT_BACKWARD_H_
#define PIPEWRIGHT_AUTOGRAD_SPLIT_BACKWARD_H_

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

// A backward in two halves on the autograd graph, for zero-bubble schedules (Qi et al., "Zero
// Bubble Pipeline Parallelism", 2023): I computes the gradients of the inputs, W accumulates those
// of the weights at any later time. Results are bitwise equal to those of a full backward.
//
// Between the halves a microbatch stores what W needs: the tensors that boundary nodes saved
// (split_backward.cc), and the gradients that reach these nodes. This can be more memory than
// forward saved.
//
// Both halves change and free only nodes that the microbatch's own forward created (NodeRange).
// What other forwards reach as well, such as an expression of weights that is computed once per
// step, keeps its edges, hooks and saved tensors, and its gradients are computed in I.
//
// A user's node, such as a torch::autograd::Function, runs once per microbatch, because its
// backward may do more than compute gradients: it may count, draw random numbers, communicate, or
// add to a buffer. If the gradient of an input flows through it, it runs in I, and the gradients of
// its weights are computed there too; allow_split() moves them to W. LibTorch's own nodes do
// nothing else, so one that leads to inputs and to weights runs in both halves, each time for some
// of its edges, unless it has a post hook.
//
// W does not communicate: a node that does (CommunicatesGrad) runs in I, also where its gradient
// goes to weights only, and so does the accumulation into a leaf whose hooks do (AccumulatesInI).
//
// Hooks run once: those of weights with the accumulation, in I or in W, and others in I if the
// gradient of an input flows through their node. One thread at a time per graph. Both halves use
// the process's autograd engine.

namespace pipewright::autograd {

// The nodes that the calling thread creates from the construction of this object until end().
class NodeRange {
 public:
  NodeRange();
  void end();

  size_t size() const { return last_ - first_; }
  bool contains(const torch::autograd::Node& node) const {
    return node.sequence_nr() - first_ < size() && node.thread_id() == thread_;
  }
  // Its place among the nodes of the range.
  size_t index_of(const torch::autograd::Node& node) const { return node.sequence_nr() - first_; }

 private:
  uint64_t thread_, first_, last_;  // sequence numbers belong to a thread
};

// Declares that the backward of the node that computed `output` has no side effects and computes
// the gradients of each of its inputs independently of the others. It may then run twice, in I for
// the gradients of inputs and in W for those of weights; ctx->needs_input_grad() (AutogradContext)
// tells which are needed, so that it need not compute the others:
//
//   const at::Tensor y = FusedLinear::apply(x, weight);  // a torch::autograd::Function
//   autograd::allow_split(y);
//
// Without effect if `output` does not require a gradient.
void allow_split(const at::Tensor& output);

// A node whose apply() also accumulates gradients of leaves that none of its edges lead to, as
// activation checkpointing does. It runs in I, where it must add the weights among them to the
// WeightWork in its BackwardContext.
class HidesWeights : public torch::autograd::Node {};

// A node that communicates a gradient with other ranks, which may wait for it. It may run in both
// halves, as after allow_split(), and communicates only for the edge communicated().
class CommunicatesGrad : public torch::autograd::Node {
 public:
  // Its edge along which that gradient goes on; nullopt if it communicates nothing.
  virtual std::optional<size_t> communicated() const = 0;
};

// As long as this object exists, I accumulates the gradient of `leaf`, because a hook of the leaf
// communicates it. The leaf must have a hook already.
class AccumulatesInI {
 public:
  explicit AccumulatesInI(const at::Tensor& leaf);
  ~AccumulatesInI();
  AccumulatesInI(const AccumulatesInI&) = delete;
  AccumulatesInI& operator=(const AccumulatesInI&) = delete;

 private:
  const at::Tensor leaf_;
  const torch::autograd::FunctionPreHook* mark_;  // among the leaf's hooks
};

// The W half of one microbatch: the edges where W starts, and the gradients that flow along them.
class WeightWork {
 public:
  // Adds an edge that I has not evaluated, and the gradient that flows along it.
  void add(const torch::autograd::Edge& edge, at::Tensor grad);
  // Accumulates the gradients of the weights. To be called once; frees gradients as it uses them.
  void run();
  const torch::autograd::edge_list& edges() const { return edges_; }
  // Bytes of the gradients that are stored for W.
  size_t bytes() const;

 private:
  friend torch::autograd::variable_list backward_input(const torch::autograd::edge_list&,
                                                       const torch::autograd::variable_list&,
                                                       const torch::autograd::variable_list&,
                                                       const NodeRange&, WeightWork&);

  torch::autograd::edge_list edges_;
  torch::autograd::variable_list grads_;  // one per edge
  torch::autograd::edge_list inputs_;     // in the course of I, also for checkpointed parts
};

// Runs the full backward from `roots`, with one gradient per root, and accumulates into the .grad
// of all leaves. Skips invalid roots and undefined gradients. Frees what the nodes in `own` saved.
void full_backward(const torch::autograd::edge_list& roots,
                   const torch::autograd::variable_list& grads, const NodeRange& own);

// Runs I and adds W to `work`. Returns one gradient per input, undefined if none arrives. Inputs
// that require a gradient must be leaves whose .grad is undefined. Consumes the nodes in `own`:
// drop the outputs. Throws ContractError if the graph contains nodes that another I has consumed,
// because a forward used what that of another microbatch computed. If it throws, the graph is
// unusable.
torch::autograd::variable_list backward_input(const torch::autograd::edge_list& roots,
                                              const torch::autograd::variable_list& grads,
                                              const torch::autograd::variable_list& inputs,
                                              const NodeRange& own, WeightWork& work);

// Returns a tensor in the memory of `leaf` that a function may write to in place, as it may to any
// result of an operation but not to a leaf. Its gradient is that of the leaf. Returns `leaf` if
// that is undefined or requires no gradient.
at::Tensor as_result(const at::Tensor& leaf);

// The edge at which the gradient of `output` enters the graph; invalid if it does not require a
// gradient.
torch::autograd::Edge root_of(const at::Tensor& output);

// Returns the .grad of each leaf and makes it undefined; undefined for leaves that do not require a
// gradient. Copies a gradient that shares its storage, so that it can be added to in place.
torch::autograd::variable_list take_grads(const torch::autograd::variable_list& leaves);

}  // namespace pipewright::autograd

#endif  // PIPEWRIGHT_AUTOGRAD_SPLIT_BACKWARD_H_
