#include "pipewright/autograd/weight_free.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace pipewright::autograd {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;

// Products: the gradient of one factor is computed from the other one. Convolutions are not listed:
// their kernels read the sizes of the weight. `factors` are indices of the node's edges.
struct Product {
  std::string_view name;
  std::array<size_t, 2> factors;
};
constexpr Product kProducts[] = {
    {"AddmmBackward0", {1, 2}},
    {"MmBackward0", {0, 1}},
    {"BmmBackward0", {0, 1}},
    {"MulBackward0", {0, 1}},
};

// Nodes that compute gradients from gradients, shapes and indices only.
constexpr std::string_view kLinear[] = {
    "AddBackward0",
    "CloneBackward0",
    "EmbeddingBackward0",
    "ExpandBackward0",
    "NegBackward0",
    "PermuteBackward0",
    "ReshapeAliasBackward0",
    "SubBackward0",
    "SumBackward0",
    "SumBackward1",
    "TBackward0",
    "ToCopyBackward0",
    "TransposeBackward0",
    "UnsafeViewBackward0",
    "ViewBackward0",
    "torch::autograd::AccumulateGrad",
};

bool is_weight_free(const Node& node) {
  const std::string name = node.name();
  if (std::ranges::find(kLinear, name) != std::end(kLinear)) return true;
  const auto product = std::ranges::find(kProducts, name, &Product::name);
  if (product == std::end(kProducts)) return false;
  return std::ranges::count_if(product->factors, [&](size_t factor) {
           return factor < node.num_outputs() && node.next_edge(factor).is_valid();
         }) <= 1;
}

}  // namespace

std::string reads_weights(const WeightWork& work) {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> left;
  const auto visit = [&](const Node& from) {
    for (const Edge& edge : from.next_edges()) {
      if (edge.is_valid() && seen.insert(edge.function.get()).second)
        left.push_back(edge.function.get());
    }
  };
  visit(work);
  while (!left.empty()) {
    const Node& node = *left.back();
    left.pop_back();
    if (!is_weight_free(node)) return node.name();
    visit(node);
  }
  return "";
}

}  // namespace pipewright::autograd
