// The idea: a node is on path if the gradient of an input flows through it. Whatever leads to a
// node on path is on path too, so each edge of the graph belongs to one half: I evaluates the edges
// that lead to nodes on path, W all others. The boundary is the nodes on path that own an edge of
// the W half. W starts there: boundary nodes run in both halves, on the same complete gradient,
// each time for the edges of that half only.
//
// Invariant: every edge is evaluated once, with the complete gradient, in the order of a full
// backward. So results are bitwise equal, also for a weight that is used twice.
//
// Communication belongs to I, also where it leads to weights only: what receives a communicated
// gradient is on path, and so is a leaf whose hooks communicate.
//
// If no input requires a gradient (the first stage), a node counts as on path if it leads to at
// least two weights. I then walks the chain of activations, and W is as cheap as on other stages.
//
// The graph is walked once per microbatch: O(n log n) time and O(n) memory for n nodes and edges,
// because nodes are sorted topologically.
#include "pipewright/autograd/split_backward.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace pipewright::autograd {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

// Stores the gradients that enter a node.
class CaptureGrads final : public torch::autograd::FunctionPreHook {
 public:
  explicit CaptureGrads(std::shared_ptr<variable_list> to) : to_(std::move(to)) {}
  variable_list operator()(const variable_list& grads) override {
    *to_ = grads;
    return grads;
  }

 private:
  std::shared_ptr<variable_list> to_;
};

// Frees what a node saved as soon as it has run. Cutting edges does not free it: a saved input owns
// the node that computed it, which owns what that node saved.
class ReleaseSaved final : public torch::autograd::FunctionPostHook {
 public:
  explicit ReleaseSaved(Node* node) : node_(node) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    node_->release_variables();
    return outputs;
  }

 private:
  Node* node_;
};

// On a leaf that accumulates in I.
class InIMark final : public torch::autograd::FunctionPreHook {
 public:
  variable_list operator()(const variable_list& grads) override { return grads; }
};

// The I half of the backward from some roots.
class InputBackward {
 public:
  InputBackward(const edge_list& roots, const variable_list& inputs) {
    for (const at::Tensor& input : inputs) {
      if (!input.requires_grad()) continue;
      ends_.push_back(torch::autograd::impl::gradient_edge(input));
      leads_to_[ends_.back().function.get()] = &kOnPath;
    }
    first_stage_ = ends_.empty();
    for (const Edge& root : roots) visit(root);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (const Edge& edge : nodes_[i]->next_edges()) visit(edge);
    }
    for (Node* node : nodes_) mark_communication(node);
    // Children before parents.
    std::ranges::sort(nodes_, {}, [](Node* node) { return node->topological_nr(); });
    for (Node* node : nodes_) classify(node);
  }

  void run(const edge_list& roots, const variable_list& grads, WeightWork& work) {
    bool any = false;
    for (size_t i = 0; i < roots.size(); ++i) {
      if (on_path(roots[i]))
        any = true;
      else
        work.add(roots[i], grads[i]);
    }
    // With accumulate_grad the end nodes run too, and accumulate into the .grad of the inputs.
    if (any) {
      Engine::get_default_engine().execute(roots, grads, /*keep_graph=*/true,
                                           /*create_graph=*/false, /*accumulate_grad=*/true, ends_);
    }
    cut();
    for (Boundary& boundary : boundary_) {
      Node& node = *boundary.node;
      // These hooks ran in I.
      node.pre_hooks().clear();
      node.tensor_pre_hooks().clear();
      node.retains_grad_hooks().clear();
      for (uint32_t input = 0; input < boundary.grads->size(); ++input) {
        at::Tensor& grad = (*boundary.grads)[input];
        if (grad.defined()) work.add(Edge(boundary.node, input), std::move(grad));
      }
    }
  }

 private:
  struct Boundary {
    std::shared_ptr<Node> node;
    std::shared_ptr<variable_list> grads;  // that entered it
  };

  // Values of leads_to_: &kOnPath for a node on path, otherwise the only weight that the node leads
  // to, or null if it leads to none.
  static constexpr char kOnPath = 0;

  bool on_path(const Edge& edge) const {
    return edge.is_valid() && leads_to_.at(edge.function.get()) == &kOnPath;
  }

  void visit(const Edge& edge) {
    if (edge.is_valid() && leads_to_.emplace(edge.function.get(), nullptr).second)
      nodes_.push_back(edge.function.get());
  }

  void mark_communication(Node* node) {
    if (const auto* communication = dynamic_cast<const CommunicatesGrad*>(node)) {
      const std::optional<size_t> edge = communication->communicated();
      if (edge && node->next_edge(*edge).is_valid())
        leads_to_.at(node->next_edge(*edge).function.get()) = &kOnPath;
    }
    for (const auto& hook : node->tensor_pre_hooks()) {
      if (dynamic_cast<const InIMark*>(hook.get())) leads_to_.at(node) = &kOnPath;
    }
  }

  void classify(Node* node) {
    const void*& mine = leads_to_.at(node);
    bool in_input_half = false, in_weight_half = false, leaf = true;
    for (const Edge& edge : node->next_edges()) {
      if (!edge.is_valid()) continue;
      leaf = false;
      const void* its = leads_to_.at(edge.function.get());
      (its == &kOnPath ? in_input_half : in_weight_half) = true;
      if (its == nullptr || its == mine) continue;
      mine = mine == nullptr ? its : &kOnPath;
    }
    if (first_stage_ && leaf && mine != &kOnPath) mine = node;
    // Its weights are not leaves of this graph: the node runs in I and adds their work to W itself.
    if (first_stage_ && dynamic_cast<HidesWeights*>(node)) mine = &kOnPath;
    if (mine != &kOnPath) return;
    if (!in_input_half) ends_.emplace_back(node->getptr(), 0);  // here the chain ends
    if (in_weight_half) {
      boundary_.push_back({node->getptr(), std::make_shared<variable_list>()});
      node->add_pre_hook(std::make_unique<CaptureGrads>(boundary_.back().grads));
    } else if (!dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      node->add_post_hook(std::make_unique<ReleaseSaved>(node));
    }
  }

  // Removes the edges of the I half. This frees what only I needed, and keeps W, a plain backward,
  // from continuing to other boundary nodes. Children first: what a removed edge frees has been
  // visited before.
  void cut() {
    for (Node* node : nodes_) {
      for (Edge& edge : node->next_edges()) {
        if (on_path(edge)) edge = Edge();
      }
    }
  }

  std::unordered_map<Node*, const void*> leads_to_;
  std::vector<Node*> nodes_;
  edge_list ends_;  // of I
  std::vector<Boundary> boundary_;
  bool first_stage_ = false;
};

// Returns the valid roots that have a gradient, and these gradients.
std::pair<edge_list, variable_list> with_grads(const edge_list& roots, const variable_list& grads) {
  std::pair<edge_list, variable_list> result;
  for (size_t i = 0; i < roots.size(); ++i) {
    if (!roots[i].is_valid() || !grads[i].defined()) continue;
    result.first.push_back(roots[i]);
    result.second.push_back(grads[i]);
  }
  return result;
}

}  // namespace

AccumulatesInI::AccumulatesInI(const at::Tensor& leaf) : leaf_(leaf) {
  auto mark = std::make_unique<InIMark>();
  mark_ = mark.get();
  torch::autograd::impl::hooks(leaf_).push_back(std::move(mark));
}

AccumulatesInI::~AccumulatesInI() {
  std::erase_if(torch::autograd::impl::hooks(leaf_),
                [&](const auto& hook) { return hook.get() == mark_; });
}

void WeightWork::add(const Edge& edge, at::Tensor grad) {
  add_next_edge(edge);
  grads_.push_back(std::move(grad));
}

void WeightWork::run() {
  if (grads_.empty()) return;
  // The engine starts on the device and stream of the node's input.
  const at::Tensor start = at::empty({0}, grads_[0].options());
  add_input_metadata(start);
  // Without `outputs`, as in .backward(), so that AccumulateGrad and its hooks run.
  Engine::get_default_engine().execute({Edge(getptr(), 0)}, {start}, /*keep_graph=*/false,
                                       /*create_graph=*/false, /*accumulate_grad=*/true);
}

size_t WeightWork::bytes() const {
  size_t bytes = 0;
  for (const at::Tensor& grad : grads_) bytes += grad.nbytes();
  return bytes;
}

variable_list WeightWork::apply(variable_list&&) { return std::exchange(grads_, {}); }

void full_backward(const edge_list& roots, const variable_list& grads) {
  const auto [edges, values] = with_grads(roots, grads);
  if (edges.empty()) return;
  Engine::get_default_engine().execute(edges, values, /*keep_graph=*/false, /*create_graph=*/false,
                                       /*accumulate_grad=*/true);
}

variable_list backward_input(const edge_list& roots, const variable_list& grads,
                             const variable_list& inputs, WeightWork& work) {
  const auto [edges, values] = with_grads(roots, grads);
  InputBackward(edges, inputs).run(edges, values, work);
  return take_grads(inputs);
}

Edge root_of(const at::Tensor& output) {
  return output.requires_grad() ? torch::autograd::impl::gradient_edge(output) : Edge();
}

variable_list take_grads(const variable_list& leaves) {
  variable_list grads;
  grads.reserve(leaves.size());
  for (const at::Tensor& leaf : leaves) {
    at::Tensor& grad = grads.emplace_back();
    if (leaf.requires_grad()) grad = std::exchange(leaf.mutable_grad(), at::Tensor());
    // Two leaves may have received views of one tensor, and a weight accumulates in place.
    if (grad.defined() && grad.has_storage() && grad.storage().use_count() > 1) grad = grad.clone();
  }
  return grads;
}

}  // namespace pipewright::autograd
