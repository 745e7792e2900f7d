#ifndef PIPEWRIGHT_TP_COMMUNICATION_NODE_H_
#define PIPEWRIGHT_TP_COMMUNICATION_NODE_H_

#include <torch/csrc/autograd/function.h>

#include <optional>
#include <string>

#include "pipewright/autograd/split_backward.h"
#include "pipewright/comms/world.h"
#include "pipewright/tp/collective.h"

namespace pipewright::tp {

// The node of a function of communication.h in the autograd graph: a collective on the gradient.
class CommunicationNode final : public autograd::CommunicatesGrad {
 public:
  CommunicationNode(torch::autograd::edge_list next, const Collective& collective,
                    comms::BackendPtr group);

  const Collective& collective() const { return collective_; }
  const comms::BackendPtr& group() const { return group_; }
  std::optional<size_t> communicated() const override;
  std::string name() const override { return "TensorParallelBackward"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;

 private:
  const Collective collective_;
  const comms::BackendPtr group_;
};

}  // namespace pipewright::tp

#endif  // PIPEWRIGHT_TP_COMMUNICATION_NODE_H_
