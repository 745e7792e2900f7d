#ifndef PIPEWRIGHT_MODULES_TIED_PARAMETERS_H_
#define PIPEWRIGHT_MODULES_TIED_PARAMETERS_H_

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/comms/world.h"

namespace pipewright::modules {

// Parameters that several pipeline stages share, such as a token embedding in the first stage that
// is also the output layer in the last one (tied embeddings). Each stage has a copy. The gradients
// of all copies are added up in every training step, so copies stay equal under equal optimizers.
//
//   // On the ranks with the first or the last stage; `ranks` are those two, or one of them twice.
//   auto tied = std::make_shared<TiedParameters>(world);
//   std::vector<at::Tensor> copies;
//   if (first) copies.push_back(first->tokens->weight);
//   if (last) copies.push_back(last->output->weight);
//   if (!copies.empty()) tied->tie("tokens.weight", ranks, copies);
//   Executor executor(program, stages, world, {.loss = loss, .tied = tied});
//
// Two replicas of a stage, as DualPipe has them (ir/placement.h), are tied parameter by parameter:
//
//   for (const auto& [stage, module] : modules)  // a map, so ascending on all ranks
//     for (const auto& parameter : module->named_parameters())
//       tied->tie(parameter.key(), placement.ranks_of(stage), {parameter.value()});
//
// The executor calls step_begins() and add_gradients(). A trainer without an executor does so
// itself, before the first and after the last backward of a step.
//
// Copies are replicas along a mesh dimension "tied" (distribution.h): grads_to_clip() counts their
// gradient once, and a checkpoint has the parameter once (checkpoint/torch/training_state.h).
//
// For one thread at a time. What communicates throws std::runtime_error if that fails.
class TiedParameters {
 public:
  // `world` must outlive the object.
  explicit TiedParameters(comms::World& world) : world_(world) {}

  // Ties copies of one parameter, and gives all of them the values of the first. `ranks` are the
  // world ranks that have the copies, one entry per copy, and `copies` those of this rank, in the
  // same order; two may be the same tensor. Wrap modules before (tp, fsdp, ddp): with them, a copy
  // is this rank's part, and the ranks of the copies have the same part. They stay tied as long as
  // the object exists.
  //
  // Collective over `ranks`, which tie their parameters in the same order. Throws
  // std::invalid_argument if `copies` are not as many as `ranks` has this rank; and on all ranks if
  // the name, shape, type or distribution of a copy differs.
  void tie(const std::string& name, const std::vector<int>& ranks,
           const std::vector<at::Tensor>& copies);

  // Before the first backward of a step. What earlier steps have accumulated remains, in one copy.
  void step_begins();
  // After the last backward, when the gradients are reduced over replicas and shards: every copy
  // gets the sum of the gradients of all copies; one without a gradient counts as zero. Frozen
  // copies get none; freeze all of them, or none. Collective over the ranks of each parameter.
  void add_gradients();

 private:
  class Tie;

  // Of the ranks of a parameter, for all that have the same; null if it is one rank.
  comms::BackendPtr group_of(const std::string& name, const std::vector<int>& ranks);

  comms::World& world_;
  std::map<std::vector<int>, comms::BackendPtr> groups_;  // by ranks, each once
  std::vector<std::shared_ptr<Tie>> ties_;
};

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_TIED_PARAMETERS_H_
