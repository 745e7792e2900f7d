// Idea: the graph of autograd tells copies from parts. A node's output is a part if one of its
// inputs is a part; parts come from split weights, from the communication that makes chunks, and
// from modules that the plan calls with parts. Communication ends a part: what is below it in the
// graph gets the gradient that it should. Whatever else is below a part, down to the leaves, gets
// the part's gradient only.
//
// A checkpointed part of the model is one node that hides its graph, which its second forward
// records again and the hooks of its modules see then. Its inputs are leaves there, so a hook
// remembers from the first forward whether they are parts.
//
// Linear in the nodes between a module and the communication before it. Runs once per module.
#include "pipewright/tp/part_use.h"

#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "pipewright/autograd/split_backward.h"
#include "pipewright/tp/communication.h"

namespace pipewright::tp {
namespace {

using torch::autograd::Node;
using Use = ParameterUses::Use;

// Whether the gradient that leaves `node` along an edge has been communicated, or cannot be
// followed.
bool ends_part(const Node& node, size_t edge) {
  if (dynamic_cast<const CommunicationNode*>(&node) ||
      dynamic_cast<const autograd::HidesWeights*>(&node))
    return true;
  const auto* communicates = dynamic_cast<const autograd::CommunicatesGrad*>(&node);
  return communicates && communicates->communicated() == edge;
}

// What is recorded for some tensors, from the leaves and the last communication on.
class RecordedParts {
 public:
  RecordedParts(const ParameterUses& uses, const modules::Tensors& leaf_parts) : uses_(uses) {
    for (const at::Tensor& tensor : leaf_parts) {
      if (const Node* node = node_of(tensor)) nodes_[node] = true, visited_.insert(node);
    }
  }

  bool is_part(const at::Tensor& tensor) {
    const Node* root = node_of(tensor);
    if (!root) return false;
    visit(root);
    return nodes_[root];
  }

  // An unnamed parameter that meets a part below `tensors`, which are parts themselves if
  // `are_parts` says so.
  const ParameterUses::Parameter* unnamed(const modules::Tensors& tensors, bool are_parts) {
    std::set<const Node*> partial;
    for (const at::Tensor& tensor : tensors) {
      const Node* root = node_of(tensor);
      if (!root) continue;
      visit(root);
      if (are_parts) partial.insert(root);
    }
    // Those after a node are its consumers or do not depend on it.
    for (auto node = order_.rbegin(); node != order_.rend(); ++node) {
      if (!partial.contains(*node) && !nodes_[*node]) continue;
      const ParameterUses::Parameter* parameter = parameter_of(**node);
      if (parameter && parameter->use == Use::kUnnamed) return parameter;
      for (size_t edge = 0; edge < (*node)->num_outputs(); ++edge) {
        const Node* next = (*node)->next_edge(edge).function.get();
        if (next && !ends_part(**node, edge)) partial.insert(next);
      }
    }
    return nullptr;
  }

 private:
  static const Node* node_of(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.requires_grad()) return nullptr;
    return torch::autograd::impl::gradient_edge(tensor).function.get();
  }

  const ParameterUses::Parameter* parameter_of(const Node& node) const {
    const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(&node);
    if (!leaf) return nullptr;
    const auto found = uses_.parameters.find(leaf->variable.unsafeGetTensorImpl());
    return found == uses_.parameters.end() ? nullptr : &found->second;
  }

  bool makes_part(const Node& node) const {
    if (const auto* communication = dynamic_cast<const CommunicationNode*>(&node))
      return communication->collective().kind == Collective::Kind::kAllGather;
    const ParameterUses::Parameter* parameter = parameter_of(node);
    return parameter && parameter->use == Use::kPart;
  }

  // Appends `root` and what is below it to order_, inputs before their consumers.
  void visit(const Node* root) {
    struct Frame {
      const Node* node;
      size_t edge;
    };
    std::vector<Frame> stack;
    const auto enter = [&](const Node* node) {
      if (visited_.insert(node).second) {
        nodes_[node] = makes_part(*node);
        stack.push_back({node, 0});
      }
    };
    enter(root);
    while (!stack.empty()) {
      const Node& node = *stack.back().node;
      const size_t edge = stack.back().edge++;
      if (edge > 0 && !ends_part(node, edge - 1)) {
        const Node* done = node.next_edge(edge - 1).function.get();
        if (done && nodes_[done]) nodes_[&node] = true;
      }
      if (edge == node.num_outputs()) {
        order_.push_back(&node);
        stack.pop_back();
        continue;
      }
      const Node* next = node.next_edge(edge).function.get();
      if (next && !ends_part(node, edge)) enter(next);
    }
  }

  const ParameterUses& uses_;
  std::set<const Node*> visited_;
  std::vector<const Node*> order_;
  std::map<const Node*, bool> nodes_;  // whether the output in forward is a part
};

class PartUseCheck final : public modules::ForwardHook {
 public:
  PartUseCheck(std::shared_ptr<const ParameterUses> uses, std::string path, bool takes_parts)
      : uses_(std::move(uses)), path_(std::move(path)), takes_parts_(takes_parts) {}

  modules::Tensors run(const torch::nn::Module* /*module*/, const Function& forward,
                       modules::Tensors inputs) override {
    if (is_done_) return forward(inputs);
    RecordedParts before(*uses_, {});
    refuse(before.unnamed(inputs, takes_parts_), "input");
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (takes_parts_ || before.is_part(inputs[i])) parts_.insert(i);
    }
    const modules::Tensors outputs = forward(inputs);
    if (!c10::GradMode::is_enabled()) return outputs;
    modules::Tensors leaf_parts;
    for (const size_t i : parts_) {
      if (i < inputs.size() && inputs[i].is_leaf()) leaf_parts.push_back(inputs[i]);
    }
    refuse(RecordedParts(*uses_, leaf_parts).unnamed(outputs, false), "output");
    is_done_ = true;
    return outputs;
  }

 private:
  void refuse(const ParameterUses::Parameter* parameter, const char* what) const {
    if (!parameter) return;
    const std::string& name = parameter->name;
    const size_t dot = name.rfind('.');
    const std::string module = dot == std::string::npos
                                   ? "the module itself, which has more than this parameter"
                                   : "`" + name.substr(0, dot) + "`";
    throw std::invalid_argument(c10::str("parallelize: parameter `", name,
                                         "`, which no style of the plan names, is used with this "
                                         "rank's part of an activation (found at the ",
                                         what, " of ",
                                         path_.empty() ? "the module" : "`" + path_ + "`",
                                         "): each rank would keep the gradient of "
                                         "its part. Expected sequence_parallel() for ",
                                         module, ", which sums the gradient over the ranks"));
  }

  const std::shared_ptr<const ParameterUses> uses_;
  const std::string path_;
  const bool takes_parts_;
  std::set<size_t> parts_;  // the inputs that are parts
  std::atomic<bool> is_done_ = false;
};

}  // namespace

std::shared_ptr<modules::ForwardHook> part_use_check(std::shared_ptr<const ParameterUses> uses,
                                                     std::string path, bool takes_parts) {
  return std::make_shared<PartUseCheck>(std::move(uses), std::move(path), takes_parts);
}

}  // namespace pipewright::tp
