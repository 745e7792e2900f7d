// Idea: backward needs only the autograd graph. A microbatch therefore stores the leaves of the
// graph (inputs) and the edges where gradients enter it (roots), not the outputs. B runs the whole
// graph; I runs the part that leads to the inputs and stores the rest as a WeightWork, which W
// runs.
//
// Invariant: kept_ has exactly the microbatches between their F and their B or W. Inputs and roots
// are freed after I, so between I and W a microbatch stores only its weight work.
//
// Complexity: one hash lookup per action besides autograd's own work.
#include "pipewright/executor/module_stage.h"

#include <c10/core/GradMode.h>

#include <optional>

#include "pipewright/autograd/weight_free.h"
#include "pipewright/executor/offload.h"
#include "pipewright/ir/errors.h"

namespace pipewright::executor {

void Stage::check_weight_free(int /*microbatch*/) {
  throw ContractError(
      "W may read the stage's weights, which are resharded: only a W that is split from the "
      "autograd graph is known not to");
}

// The state of a microbatch between its actions.
struct ModuleStage::Kept {
  autograd::NodeRange nodes;  // of its forward, and on the last stage of its loss
  Tensors inputs;
  torch::autograd::edge_list roots;  // where the outputs' gradients enter; outputs are not kept
  std::shared_ptr<autograd::BackwardContext> context =
      std::make_shared<autograd::BackwardContext>();
  std::shared_ptr<autograd::WeightWork> weight_work;  // from I to W
  std::function<void()> custom_weight_work;           // from I to W, see set_weight_work
  bool is_recomputed = false;                         // before its backward
  std::optional<SavedActivations> saved;              // if the stage offloads
};

ModuleStage::ModuleStage(autograd::Forward forward) : forward_(std::move(forward)) {}
ModuleStage::~ModuleStage() = default;

void ModuleStage::set_weight_work(std::function<std::function<void()>()> make_weight_work) {
  make_weight_work_ = std::move(make_weight_work);
}

void ModuleStage::set_slice_cache(std::shared_ptr<SliceCache> cache) {
  runs_slices_ = true;
  slices_ = std::move(cache);
}

Tensors ModuleStage::forward(int microbatch, const Tensors& inputs) {
  if (slices_) slices_->begin(SliceCache::Phase::kForward, microbatch);
  Tensors outputs = recorded_forward(microbatch, inputs);
  if (slices_) slices_->end(/*keeps=*/c10::GradMode::is_enabled());
  return outputs;
}

Tensors ModuleStage::recorded_forward(int microbatch, const Tensors& inputs) {
  if (!c10::GradMode::is_enabled()) return forward_(inputs);
  auto kept = std::make_unique<Kept>();
  const autograd::BackwardScope scope(kept->context);
  Tensors results;
  for (const at::Tensor& input : inputs) results.push_back(autograd::as_result(input));
  Tensors outputs = saving_forward(results, *kept);
  for (const at::Tensor& output : outputs) kept->roots.push_back(autograd::root_of(output));
  kept->nodes.end();
  kept->inputs = inputs;
  kept_[microbatch] = std::move(kept);
  return outputs;
}

Tensors ModuleStage::saving_forward(const Tensors& inputs, Kept& kept) {
  std::optional<SavedActivations::Recording> recording;
  if (offloads_) {
    Tensors stay = weights_ ? weights_() : Tensors();
    stay.insert(stay.end(), inputs.begin(), inputs.end());
    recording.emplace(kept.saved.emplace(least_offload_bytes_), stay);
  }
  return recomputes_ ? autograd::checkpoint_function(forward_, inputs, keeps_) : forward_(inputs);
}

void ModuleStage::set_loss(int microbatch, const at::Tensor& loss) {
  Kept& work = kept(microbatch, "loss");
  work.nodes.end();
  work.roots = {autograd::root_of(loss)};
}

Tensors ModuleStage::backward(int microbatch, Tensors output_grads) {
  Kept& work = kept(microbatch, "backward");
  begin_backward(work, microbatch);
  autograd::full_backward(work.roots, output_grads, work.nodes);
  output_grads.clear();
  Tensors grads = autograd::take_grads(work.inputs);
  if (make_weight_work_) make_weight_work_()();
  if (slices_) slices_->end(/*keeps=*/true);
  kept_.erase(microbatch);
  return grads;
}

Tensors ModuleStage::backward_input(int microbatch, Tensors output_grads) {
  Kept& work = kept(microbatch, "backward_input");
  Tensors grads;
  begin_backward(work, microbatch);
  if (make_weight_work_) {
    autograd::full_backward(work.roots, output_grads, work.nodes);
    grads = autograd::take_grads(work.inputs);
    work.custom_weight_work = make_weight_work_();
  } else {
    work.weight_work = std::make_shared<autograd::WeightWork>();
    work.context->weight_work = work.weight_work.get();
    grads = autograd::backward_input(work.roots, output_grads, work.inputs, work.nodes,
                                     *work.weight_work);
    work.context->weight_work = nullptr;
  }
  if (slices_) slices_->end(/*keeps=*/true);
  work.inputs.clear();
  work.roots.clear();
  return grads;
}

void ModuleStage::backward_weight(int microbatch) {
  Kept& work = kept(microbatch, "backward_weight");
  if (work.custom_weight_work) work.custom_weight_work();
  if (work.weight_work) work.weight_work->run();
  kept_.erase(microbatch);
}

void ModuleStage::check_weight_free(int microbatch) {
  const Kept& work = kept(microbatch, "backward_weight");
  if (!work.weight_work) return Stage::check_weight_free(microbatch);
  const std::string reads = autograd::reads_weights(*work.weight_work);
  if (!reads.empty())
    throw ContractError("W may read a weight in `" + reads + "`, but the stage is resharded");
}

bool ModuleStage::set_recompute(bool recomputes) {
  recomputes_ = recomputes;
  return true;
}

// Before its backward waits for the gradient. The parts of a model that checkpoint themselves, and
// what comes before a loss, which waits for none, recompute in the backward.
void ModuleStage::recompute(int microbatch) {
  Kept& work = kept(microbatch, "recompute");
  begin_backward(work, microbatch);
  autograd::recompute(work.roots);
  work.is_recomputed = true;
}

void ModuleStage::begin_backward(Kept& work, int microbatch) {
  if (work.saved) work.saved->await();
  if (slices_ && !work.is_recomputed) slices_->begin(SliceCache::Phase::kBackward, microbatch);
}

bool ModuleStage::set_offload(bool offloads) {
  if (offloads) install_offload();
  offloads_ = offloads;
  return true;
}

void ModuleStage::copy_to_host(int microbatch, comms::SideStream& stream) {
  Kept& work = kept(microbatch, "copy_to_host");
  if (work.saved->bytes() == 0) {
    throw ContractError(
        "offload: expected a forward that saves tensors of at least " +
        std::to_string(least_offload_bytes_) +
        " bytes beside its inputs and weights (ModuleStage::set_least_offload), got none");
  }
  work.saved->copy_to_host(stream);
}

void ModuleStage::free_on_device(int microbatch) {
  kept(microbatch, "free_on_device").saved->free_on_device();
}

void ModuleStage::copy_back(int microbatch, comms::SideStream& stream) {
  kept(microbatch, "copy_back").saved->copy_back(stream);
}

bool ModuleStage::set_slices(int slices) {
  if (slices_) slices_->set_slices(slices);
  return slices == 1 || runs_slices_;
}

void ModuleStage::clear() {
  kept_.clear();
  if (slices_) slices_->clear();
}

ModuleStage::Kept& ModuleStage::kept(int microbatch, const char* what) {
  const auto found = kept_.find(microbatch);
  if (found == kept_.end()) {
    throw ContractError(std::string(what) + " of microbatch " + std::to_string(microbatch) +
                        ": expected its forward before, got none");
  }
  return *found->second;
}

}  // namespace pipewright::executor
