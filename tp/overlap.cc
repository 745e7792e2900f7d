// A Linear leaves these nodes in the graph, from its output to its input; views if the input has
// more than two dimensions:
//
//   AddmmBackward0 -> CommunicationNode -> what made the input
//                 \-> weight, bias
//   [sum ->] [view ->] MmBackward0 -> [view ->] CommunicationNode -> what made the input
//       \-> bias                  \-> weight
//
// The idea: another node, InputFirst, takes the place of the product. It has its edges, except that
// the one to the input skips the nodes up to and including the communication. It lets the product
// compute one gradient, posts the communication of that, lets the product compute the others, and
// waits.
//
// Invariant: the product itself has edges only while it computes, so it keeps nothing of the graph
// alive, and computes only what the engine has asked InputFirst for. Nothing else leads to it, as
// the counts of its owners show; whatever else leads to the CommunicationNode goes on to use it.
#include "pipewright/tp/overlap.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/autograd/node_pointer.h"
#include "pipewright/autograd/split_backward.h"
#include "pipewright/tp/communication.h"

namespace pipewright::tp {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

bool is_view(const Node& node) {
  const std::string name = node.name();
  return name == "ViewBackward0" || name == "UnsafeViewBackward0" ||
         name == "ReshapeAliasBackward0";
}

bool is_sum(const Node& node) { return node.name() == "AddBackward0"; }

// What computes the gradients of two matrices, each by itself if only one is asked for.
bool is_product(const Node& node) {
  const std::string name = node.name();
  return name == "AddmmBackward0" || name == "MmBackward0";
}

class InputFirst final : public autograd::CommunicatesGrad {
 public:
  // `input`: the index of the product's edge that leads to `communication`.
  InputFirst(autograd::NodePtr product, size_t input, const CommunicationNode& communication,
             at::IntArrayRef input_sizes)
      : product_(std::move(product)),
        input_(input),
        input_sizes_(input_sizes.vec()),
        collective_(communication.collective()),
        group_(communication.group()) {
    edge_list edges = std::exchange(product_->next_edges(), edge_list(product_->num_outputs()));
    edges[input] = communication.next_edge(0);
    set_next_edges(std::move(edges));
    const auto& gradient = product_->input_metadata(0);
    add_input_metadata(gradient.options(), gradient.shape_as_dim_vector(),
                       gradient.is_tensor_subclass(), gradient.is_nested_tensor(),
                       gradient.grad_dtype());
  }

  std::optional<size_t> communicated() const override { return input_; }
  // The name of the node whose gradients these are, so that weight_free.cc can find products.
  std::string name() const override { return product_->name(); }
  void release_variables() override { product_->release_variables(); }

  variable_list apply(variable_list&& grads) override {
    std::optional<PostedCollective> posted;
    if (task_should_compute_output(input_)) {
      const at::Tensor partial =
          compute(grads, [&](size_t edge) { return edge == input_; })[input_];
      const c10::NoGradGuard no_grad;
      if (partial.defined()) posted = post(partial.reshape(input_sizes_), collective_, group_);
    }
    variable_list results = compute(grads, [&](size_t edge) { return edge != input_; });
    const c10::NoGradGuard no_grad;
    if (posted) results[input_] = posted->finish();
    return results;
  }

 private:
  // The product's gradients for those of its edges that are selected and needed.
  template <typename Selected>
  variable_list compute(const variable_list& grads, const Selected& selected) {
    edge_list edges(num_outputs());
    bool any = false;
    for (size_t edge = 0; edge < num_outputs(); ++edge) {
      if (!selected(edge) || !task_should_compute_output(edge)) continue;
      edges[edge] = next_edge(edge);
      any = true;
    }
    if (!any) return variable_list(num_outputs());
    product_->next_edges() = std::move(edges);
    variable_list results = (*product_)(variable_list(grads));
    product_->next_edges() = edge_list(num_outputs());
    return results;
  }

  const autograd::NodePtr product_;
  const size_t input_;
  const std::vector<int64_t> input_sizes_;
  const Collective collective_;
  const comms::BackendPtr group_;
};

// The only valid edge of a view.
Edge next_of(const Node& view) { return view.num_outputs() == 1 ? view.next_edge(0) : Edge(); }

}  // namespace

void overlap_backward(const at::Tensor& output, const at::Tensor& input) {
  const auto* communication = dynamic_cast<CommunicationNode*>(input.grad_fn().get());
  if (!communication || !output.grad_fn()) return;
  // Nothing but the nodes above it, and this function, may own a node that is passed.
  autograd::NodePtr above, product = output.grad_fn();
  while (product && product.use_count() == 2 && (is_view(*product) || is_sum(*product))) {
    above = std::move(product);
    product = above->next_edge(0).function;
  }
  if (!product || product.use_count() != 2 || !is_product(*product)) return;
  size_t to_input = product->num_outputs(), others = 0;
  for (size_t edge = 0; edge < product->num_outputs(); ++edge) {
    const Node* node = product->next_edge(edge).function.get();
    if (!node) continue;
    if (is_view(*node)) node = next_of(*node).function.get();
    if (node == communication)
      to_input = edge;
    else
      ++others;
  }
  if (to_input == product->num_outputs() || others == 0) return;
  const auto node =
      autograd::make_node<InputFirst>(product, to_input, *communication, input.sizes());
  if (above)
    above->next_edges()[0] = Edge(node, 0);
  else
    torch::autograd::impl::set_gradient_edge(output, Edge(node, 0));
}

}  // namespace pipewright::tp
