#include "pipewright/autograd/weight_free.h"

#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace pipewright::autograd {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::SavedVariable;

// What a node has saved of its two factors.
using Factors = std::array<const SavedVariable*, 2>;
template <typename Of, SavedVariable Of::*first, SavedVariable Of::*second>
Factors saved_by(const Node& node) {
  // A node may borrow the name of another one that it stands for.
  const auto* product = dynamic_cast<const Of*>(&node);
  return product ? Factors{&(product->*first), &(product->*second)} : Factors{};
}

// Products: the gradient of one factor is computed from the other one. Convolutions are not listed:
// their kernels read the sizes of the weight. `factors` are indices of the node's edges.
struct Product {
  std::string_view name;
  std::array<size_t, 2> factors;
  Factors (*saved)(const Node& node);
};
using torch::autograd::generated::AddmmBackward0;
using torch::autograd::generated::BmmBackward0;
using torch::autograd::generated::MmBackward0;
using torch::autograd::generated::MulBackward0;
constexpr Product kProducts[] = {
    {"AddmmBackward0",
     {1, 2},
     saved_by<AddmmBackward0, &AddmmBackward0::mat1_, &AddmmBackward0::mat2_>},
    {"MmBackward0", {0, 1}, saved_by<MmBackward0, &MmBackward0::self_, &MmBackward0::mat2_>},
    {"BmmBackward0", {0, 1}, saved_by<BmmBackward0, &BmmBackward0::self_, &BmmBackward0::mat2_>},
    {"MulBackward0", {0, 1}, saved_by<MulBackward0, &MulBackward0::self_, &MulBackward0::other_>},
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

// Whether a node has saved a tensor whose memory is gone: a weight or a view of one, perhaps
// detached, so that no edge leads to it.
bool is_freed(const SavedVariable* saved) {
  // To unpack what has hooks could compute it again.
  if (saved == nullptr || saved->has_hooks()) return false;
  const at::Tensor tensor = saved->unpack();
  return tensor.defined() && tensor.has_storage() && tensor.numel() > 0 &&
         tensor.storage().nbytes() == 0;
}

bool is_weight_free(const Node& node) {
  const std::string name = node.name();
  if (std::ranges::find(kLinear, name) != std::end(kLinear)) return true;
  const auto product = std::ranges::find(kProducts, name, &Product::name);
  if (product == std::end(kProducts)) return false;
  const auto has_gradient = [&](size_t factor) {
    return factor < node.num_outputs() && node.next_edge(factor).is_valid();
  };
  const bool first = has_gradient(product->factors[0]), second = has_gradient(product->factors[1]);
  if (first && second) return false;
  const Factors saved = product->saved(node);
  return !(first && is_freed(saved[1])) && !(second && is_freed(saved[0]));
}

}  // namespace

std::string reads_weights(const WeightWork& work) {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> left;
  const auto visit = [&](const edge_list& edges) {
    for (const Edge& edge : edges) {
      if (edge.is_valid() && seen.insert(edge.function.get()).second)
        left.push_back(edge.function.get());
    }
  };
  visit(work.edges());
  while (!left.empty()) {
    const Node& node = *left.back();
    left.pop_back();
    if (!is_weight_free(node)) return node.name();
    visit(node.next_edges());
  }
  return "";
}

}  // namespace pipewright::autograd
