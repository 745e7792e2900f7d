// The idea: a node is on path if the gradient of an input flows through it. Whatever leads to a
// node on path is on path too, so each edge of the graph belongs to one half: I evaluates the edges
// that lead to nodes on path, W all others. The boundary is the nodes on path that own an edge of
// the W half. W starts there: boundary nodes run in both halves, on the same complete gradient,
// each time for the edges of that half only.
//
// Invariant: every edge is evaluated once, with the complete gradient, in the order of a full
// backward. So results are bitwise equal, also for a weight that is used twice. (A checkpointed
// part has a backward of its own, so what it shares with its surroundings receives two gradients,
// one after the other.)
//
// Whatever must run once, or must stay as it is, is kept off the boundary: what a node on path that
// may not be split leads to is on path as well, and so is every node that is not the microbatch's
// own, and all that it leads to. Only own nodes get hooks, lose edges and free what they saved.
//
// Communication belongs to I, also where it leads to weights only: what receives a communicated
// gradient is on path, and so is a leaf whose hooks communicate.
//
// If no input requires a gradient (the first stage), a node counts as on path if it leads to at
// least two weights. I then walks the chain of activations, and W is as cheap as on other stages.
//
// The graph is walked once per microbatch: O(n log n) time and O(n) memory for n nodes and edges,
// because nodes are sorted topologically. Marking what is on path takes one pass over them; two or
// three if there are nodes that may not be split.
#include "pipewright/autograd/split_backward.h"

#include <ATen/SequenceNumber.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "pipewright/autograd/node_pointer.h"
#include "pipewright/ir/errors.h"

namespace pipewright::autograd {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

// Which backward of the engine is that of some hooks. Others may pass through their nodes, such as
// the backward of a checkpointed part that uses a tensor from outside.
struct Pass {
  std::optional<int> id;  // the engine's, if there can be others
  bool is_cut = false;    // I is over, and has removed edges
  bool runs_now() const { return !id || *id == torch::autograd::get_current_graph_task_id(); }
};

// Where the engine starts, if the gradients must be freed as they are used, or if the engine's
// number for this backward must be known: then `pass` receives it.
class Start final : public Node {
 public:
  Start(edge_list roots, variable_list grads, std::shared_ptr<Pass> pass)
      : grads_(std::move(grads)), pass_(std::move(pass)) {
    if (pass_) pass_->id = -1;
    set_next_edges(std::move(roots));
  }
  variable_list apply(variable_list&&) override {
    if (pass_) pass_->id = torch::autograd::get_current_graph_task_id();
    return std::move(grads_);
  }

 private:
  variable_list grads_;
  const std::shared_ptr<Pass> pass_;
};

// Runs the backward from `roots` through a Start, on the device and stream of the first gradient.
// Without `ends`, as in .backward(), all leaves accumulate.
void execute_from(edge_list roots, variable_list grads, const std::shared_ptr<Pass>& pass,
                  bool keep_graph, const edge_list& ends) {
  const at::Tensor input = at::empty({0}, grads[0].options());
  const auto start = make_node<Start>(std::move(roots), std::move(grads), pass);
  start->add_input_metadata(input);
  Engine::get_default_engine().execute({Edge(start, 0)}, {input}, keep_graph,
                                       /*create_graph=*/false, /*accumulate_grad=*/true, ends);
}

// Stores the gradients that enter a node.
class CaptureGrads final : public torch::autograd::FunctionPreHook {
 public:
  CaptureGrads(std::shared_ptr<variable_list> to, std::shared_ptr<const Pass> pass)
      : to_(std::move(to)), pass_(std::move(pass)) {}
  variable_list operator()(const variable_list& grads) override {
    if (pass_->runs_now()) *to_ = grads;
    return grads;
  }

 private:
  std::shared_ptr<variable_list> to_;
  const std::shared_ptr<const Pass> pass_;
};

// Frees what a node saved as soon as it has run. Cutting edges does not free it: a saved input owns
// the node that computed it, which owns what that node saved.
class ReleaseSaved final : public torch::autograd::FunctionPostHook {
 public:
  ReleaseSaved(Node* node, std::shared_ptr<const Pass> pass)
      : node_(node), pass_(std::move(pass)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    if (pass_->runs_now()) node_->release_variables();
    return outputs;
  }
  bool is_cut() const { return pass_->is_cut; }

 private:
  Node* node_;
  const std::shared_ptr<const Pass> pass_;
};

// On a leaf that accumulates in I.
class InIMark final : public torch::autograd::FunctionPreHook {
 public:
  variable_list operator()(const variable_list& grads) override { return grads; }
};

// On a node that may be split.
class SplitMark final : public torch::autograd::FunctionPreHook {
 public:
  variable_list operator()(const variable_list& grads) override { return grads; }
};

template <typename Hook, typename Hooks>
bool has_hook(const Hooks& hooks) {
  return std::ranges::any_of(
      hooks, [](const auto& hook) { return dynamic_cast<const Hook*>(hook.get()) != nullptr; });
}

bool is_leaf(Node* node) { return dynamic_cast<torch::autograd::AccumulateGrad*>(node) != nullptr; }

bool may_split(Node* node) {
  if (dynamic_cast<const CommunicatesGrad*>(node) || has_hook<SplitMark>(node->pre_hooks()))
    return true;
  // LibTorch's derivatives of its operators are traceable, and only these.
  return node->is_traceable() && node->post_hooks().empty();
}

// A backward that changes and frees own nodes only: the I half, or a whole one.
class OwnBackward {
 public:
  enum class Half { kInput, kBoth };

  // `inputs` lead to the leaves whose gradients I computes; `first_stage`: none of them is an input
  // of this graph.
  OwnBackward(const edge_list& roots, const edge_list& inputs, bool first_stage,
              const NodeRange& own, Half half)
      : own_(own), half_(half), own_places_(own.size(), kNone) {
    for (const Edge& root : roots) place_of(root);
    for (size_t i = 0; i < places_.size(); ++i) {
      places_[i].first_child = children_.size();
      for (const Edge& edge : places_[i].node->next_edges()) children_.push_back(place_of(edge));
    }
    for (const Edge& input : inputs) {
      const size_t place = known(input.function.get());
      if (place != kNone) places_[place].on_path = true;
    }
    // Children before parents.
    for (size_t i = 0; i < places_.size(); ++i) order_.push_back(i);
    std::ranges::sort(order_, {}, [&](size_t i) { return places_[i].node->topological_nr(); });
    for (const size_t i : order_) mark(places_[i], first_stage);
    while (close()) {
    }
    for (const size_t i : order_) prepare(places_[i]);
  }

  void run(const edge_list& roots, const variable_list& grads, WeightWork& work) {
    bool any = false;
    for (size_t i = 0; i < roots.size(); ++i) {
      if (places_[known(roots[i].function.get())].on_path)
        any = true;
      else
        work.add(roots[i], grads[i]);
    }
    if (any) execute(roots, grads);
    if (half_ == Half::kBoth) return;
    cut();
    for (Boundary& boundary : boundary_) {
      Node& node = *boundary.node;
      // These hooks ran in I.
      node.pre_hooks().clear();
      node.tensor_pre_hooks().clear();
      node.retains_grad_hooks().clear();
      node.add_post_hook(std::make_unique<ReleaseSaved>(&node, pass_));
      for (uint32_t input = 0; input < boundary.grads->size(); ++input) {
        at::Tensor& grad = (*boundary.grads)[input];
        if (grad.defined()) work.add(Edge(boundary.node, input), std::move(grad));
      }
    }
  }

 private:
  // A node in the graph. Its edges lead to the places in children_ from first_child on.
  struct Place {
    Node* node;
    bool own;
    bool on_path;
    size_t first_child = 0;
    const Node* weight = nullptr;  // in a first stage: a leaf that it leads to
  };
  struct Boundary {
    NodePtr node;
    std::shared_ptr<variable_list> grads;  // that entered it
  };
  static constexpr size_t kNone = static_cast<size_t>(-1);

  // kNone for a node that is not in the graph.
  size_t known(Node* node) const {
    if (own_.contains(*node)) return own_places_[own_.index_of(*node)];
    const auto found = other_places_.find(node);
    return found == other_places_.end() ? kNone : found->second;
  }

  // Adds the node to the graph if it is new; kNone for an invalid edge.
  size_t place_of(const Edge& edge) {
    if (!edge.is_valid()) return kNone;
    Node* node = edge.function.get();
    const bool own = own_.contains(*node);
    size_t& place = own ? own_places_[own_.index_of(*node)]
                        : other_places_.try_emplace(node, kNone).first->second;
    if (place != kNone) return place;
    const bool shared = !own && !is_leaf(node);
    if (shared) check_not_cut(node);
    place = places_.size();
    places_.push_back({node, own, /*on_path=*/shared});
    return place;
  }

  static void check_not_cut(Node* node) {
    for (const auto& hook : node->post_hooks()) {
      const auto* release = dynamic_cast<const ReleaseSaved*>(hook.get());
      if (!release || !release->is_cut()) continue;
      throw ContractError("the graph of a microbatch contains `" + node->name() +
                          "`, which the forward of another microbatch computed and whose I has "
                          "consumed it: compute it in each forward, or before the step");
    }
  }

  std::span<const size_t> children(const Place& place) const {
    return std::span(children_).subspan(place.first_child, place.node->num_outputs());
  }
  bool is_on_path(size_t place) const { return place != kNone && places_[place].on_path; }

  // Marks what is on path by itself.
  void mark(Place& place, bool first_stage) {
    // A node that hides weights may hide inputs too. It adds its weights' work to W itself.
    if (half_ == Half::kBoth || has_hook<InIMark>(place.node->tensor_pre_hooks()) ||
        dynamic_cast<HidesWeights*>(place.node))
      place.on_path = true;
    if (const auto* communication = dynamic_cast<const CommunicatesGrad*>(place.node)) {
      const std::optional<size_t> edge = communication->communicated();
      const size_t child = edge ? children(place)[*edge] : kNone;
      if (child != kNone) places_[child].on_path = true;
    }
    if (!first_stage) return;
    bool leaf = true;
    for (const size_t child : children(place)) {
      if (child == kNone) continue;
      leaf = false;
      const Node* its = places_[child].weight;
      if (its == nullptr || its == place.weight) continue;
      if (place.weight != nullptr) place.on_path = true;
      place.weight = its;
    }
    if (leaf) place.weight = place.node;
  }

  // Marks what is on path because of others. Returns whether it must be called again.
  bool close() {
    bool again = false;
    for (const size_t i : order_) {
      Place& place = places_[i];
      const auto of_place = children(place);
      for (const size_t child : of_place) place.on_path = place.on_path || is_on_path(child);
      if (!place.on_path || (place.own && may_split(place.node))) continue;
      for (const size_t child : of_place) {
        if (child == kNone || places_[child].on_path) continue;
        places_[child].on_path = again = true;
      }
    }
    return again;
  }

  void prepare(const Place& place) {
    if (!place.on_path) return;
    bool in_input_half = false, in_weight_half = false;
    for (const size_t child : children(place)) {
      if (child != kNone) (places_[child].on_path ? in_input_half : in_weight_half) = true;
    }
    if (!in_input_half) ends_.emplace_back(place.node->getptr(), 0);  // here the chain ends
    if (!place.own) return;
    // It may run a backward of its own, which passes through nodes of this one.
    if (!may_split(place.node)) starts_at_node_ = true;
    if (in_weight_half) {
      boundary_.push_back({place.node->getptr(), std::make_shared<variable_list>()});
      place.node->add_pre_hook(std::make_unique<CaptureGrads>(boundary_.back().grads, pass_));
    } else {
      place.node->add_post_hook(std::make_unique<ReleaseSaved>(place.node, pass_));
    }
  }

  void execute(const edge_list& roots, const variable_list& grads) {
    if (starts_at_node_) {
      execute_from(roots, grads, pass_, /*keep_graph=*/true, ends_);
      return;
    }
    // With accumulate_grad the end nodes run too, and accumulate into the .grad of the inputs.
    Engine::get_default_engine().execute(roots, grads, /*keep_graph=*/true,
                                         /*create_graph=*/false, /*accumulate_grad=*/true, ends_);
  }

  // Removes the edges of the I half. This frees what only I needed, and keeps W, a plain backward,
  // from continuing to other boundary nodes. Children first: what a removed edge frees has been
  // visited before.
  void cut() {
    pass_->is_cut = true;
    for (const size_t i : order_) {
      const Place& place = places_[i];
      if (!place.own) continue;
      edge_list& edges = place.node->next_edges();
      for (size_t edge = 0; edge < edges.size(); ++edge) {
        if (is_on_path(children(place)[edge])) edges[edge] = Edge();
      }
    }
  }

  const NodeRange& own_;
  const Half half_;
  const std::shared_ptr<Pass> pass_ = std::make_shared<Pass>();
  std::vector<Place> places_;       // in the order of discovery
  std::vector<size_t> children_;    // places, or kNone for an invalid edge
  std::vector<size_t> order_;       // of places, children first
  std::vector<size_t> own_places_;  // by NodeRange::index_of()
  std::unordered_map<Node*, size_t> other_places_;
  edge_list ends_;
  std::vector<Boundary> boundary_;
  bool starts_at_node_ = false;
};

// Whether a backward passes through nodes that are neither own nor leaves.
bool leaves_range(const edge_list& roots, const NodeRange& own) {
  // Most stages have few nodes.
  c10::SmallVector<bool, 128> seen(own.size());
  c10::SmallVector<Node*, 32> left;
  bool leaves = false;
  const auto visit = [&](const Edge& edge) {
    if (!edge.is_valid()) return;
    Node* node = edge.function.get();
    if (!own.contains(*node)) {
      leaves = leaves || !is_leaf(node);
      return;
    }
    if (seen[own.index_of(*node)]) return;
    seen[own.index_of(*node)] = true;
    left.push_back(node);
  };
  for (const Edge& root : roots) visit(root);
  while (!leaves && !left.empty()) {
    const Node* node = left.back();
    left.pop_back();
    for (const Edge& edge : node->next_edges()) visit(edge);
  }
  return leaves;
}

// The gradient edges of the leaves that require a gradient.
edge_list edges_of(const variable_list& leaves) {
  edge_list edges;
  for (const at::Tensor& leaf : leaves) {
    if (leaf.requires_grad()) edges.push_back(torch::autograd::impl::gradient_edge(leaf));
  }
  return edges;
}

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

NodeRange::NodeRange()
    : thread_(at::RecordFunction::currentThreadId()),
      first_(at::sequence_number::peek()),
      last_(first_) {}

void NodeRange::end() { last_ = at::sequence_number::peek(); }

void allow_split(const at::Tensor& output) {
  if (const auto& node = output.grad_fn()) node->add_pre_hook(std::make_unique<SplitMark>());
}

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
  edges_.push_back(edge);
  grads_.push_back(std::move(grad));
}

void WeightWork::run() {
  if (edges_.empty()) return;
  execute_from(std::exchange(edges_, {}), std::exchange(grads_, {}), /*pass=*/nullptr,
               /*keep_graph=*/false, /*ends=*/{});
}

size_t WeightWork::bytes() const {
  size_t bytes = 0;
  for (const at::Tensor& grad : grads_) bytes += grad.nbytes();
  return bytes;
}

void full_backward(const edge_list& roots, const variable_list& grads, const NodeRange& own) {
  const auto [edges, values] = with_grads(roots, grads);
  if (edges.empty()) return;
  if (leaves_range(edges, own)) {
    WeightWork nothing;
    OwnBackward(edges, {}, /*first_stage=*/false, own, OwnBackward::Half::kBoth)
        .run(edges, values, nothing);
    return;
  }
  Engine::get_default_engine().execute(edges, values, /*keep_graph=*/false, /*create_graph=*/false,
                                       /*accumulate_grad=*/true);
}

variable_list backward_input(const edge_list& roots, const variable_list& grads,
                             const variable_list& inputs, const NodeRange& own, WeightWork& work) {
  const auto [edges, values] = with_grads(roots, grads);
  const size_t around = work.inputs_.size();
  for (const Edge& input : edges_of(inputs)) work.inputs_.push_back(input);
  const bool first_stage = work.inputs_.size() == around;
  OwnBackward(edges, work.inputs_, first_stage, own, OwnBackward::Half::kInput)
      .run(edges, values, work);
  work.inputs_.resize(around);
  return take_grads(inputs);
}

at::Tensor as_result(const at::Tensor& leaf) {
  if (!leaf.defined() || !leaf.requires_grad()) return leaf;
  at::Tensor result = leaf.detach();
  torch::autograd::impl::set_gradient_edge(result, torch::autograd::impl::gradient_edge(leaf));
  return result;
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
