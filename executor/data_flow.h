#ifndef PIPEWRIGHT_EXECUTOR_DATA_FLOW_H_
#define PIPEWRIGHT_EXECUTOR_DATA_FLOW_H_

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "pipewright/autograd/split_backward.h"
#include "pipewright/executor/loss_function.h"
#include "pipewright/executor/microbatches.h"
#include "pipewright/executor/stage.h"
#include "pipewright/executor/step_lock.h"
#include "pipewright/executor/transfers.h"
#include "pipewright/ir/placement.h"

namespace pipewright::executor {

// What a step returns to one rank.
struct StepOutputs {
  // Per microbatch that this rank's last stage runs; only on a rank that has it.
  std::vector<at::Tensor> losses;
  std::vector<Tensors> outputs;  // of the last stage, if requested
};

// The tensors between the stages of one rank during a step: where the inputs and output gradients
// of a stage come from (the batch, a stage of this rank, a RECV, the loss), and where its outputs
// and input gradients go.
//
// Between two stages of one rank, tensors are passed without a copy. Throws ContractError if an
// input of an action has not been produced. For one thread at a time.
class DataFlow {
 public:
  struct Options {
    LossFunction loss = {};
    bool scale_grads = true;   // scale the gradient of each loss by 1 / number of microbatches
    StepLock* lock = nullptr;  // may be null
  };

  // Of the stages of program rank `rank`. `placement` must outlive this object; `transfers` may be
  // null if this rank sends and receives nothing.
  DataFlow(const ir::Placement& placement, int num_microbatches, int rank, Transfers* transfers,
           Options options);

  // Starts a step. Each list of `microbatches` is empty or has num_microbatches elements.
  void begin(bool with_backward, bool keep_outputs, Microbatches microbatches);
  // Waits for all transfers of the step. Accumulates the gradients of inputs and extra inputs that
  // require one, also into what they were computed from.
  StepOutputs finish();
  // After a failure: frees all tensors.
  void clear();

  // F: all inputs of the stage, the rank's extra inputs last. Those of the batch require a gradient
  // in a training step if the caller's tensors do. Then takes the lock, for the forward and the
  // loss.
  Tensors inputs(ir::ActionPart part);
  // Passes the outputs of `stage`, detached from its graph, to the next stage or its SEND; on the
  // last stage, computes the loss.
  void put_outputs(ir::ActionPart part, Stage& stage, const Tensors& outputs);
  // B and I: one gradient per output; on the last stage that of the loss, if the stage joins it, or
  // else this runs the backward of the loss.
  Tensors output_grads(ir::ActionPart part);
  // Passes the gradients of the inputs to the previous stage or its SEND, and stores those of the
  // batch, which finish() accumulates into the caller's tensors.
  void put_input_grads(ir::ActionPart part, Tensors grads);
  // SEND_F sends the outputs of the stage, SEND_B its input gradients.
  void send(ir::ActionPart part);
  // RECV_F and RECV_B.
  void receive(ir::ActionPart part);
  // WAIT_SEND_F and WAIT_SEND_B.
  void wait_send(ir::ActionPart part);

 private:
  // The graph of a loss that the last stage does not join.
  struct Loss {
    torch::autograd::Edge root;
    Tensors inputs;             // its leaves
    autograd::NodeRange nodes;  // that the loss function created
  };
  // The tensors of one stage and microbatch.
  struct Slot {
    std::optional<Tensors> inputs;        // from the previous stage, on this rank
    std::optional<Tensors> outputs;       // until they are sent
    std::optional<Tensors> output_grads;  // from the next stage, on this rank, or of the loss
    std::optional<Tensors> input_grads;   // until they are sent
    size_t num_inputs = 0;                // without the extra inputs
    std::optional<Loss> loss;             // until its backward
  };

  // Whether this rank runs `stage` for a microbatch.
  bool is_local(int stage, int microbatch) const {
    return placement_.rank_of(stage, microbatch) == rank_;
  }
  bool is_first(int stage) const { return stage == 0; }
  bool is_last(int stage) const { return stage == placement_.num_stages() - 1; }
  Slot& slot(int stage, int microbatch);
  Slot& slot(ir::ActionPart part) { return slot(part.stage(), part.microbatch()); }
  Tensors stage_inputs(ir::ActionPart part);  // without the extra inputs
  Tensors stage_output_grads(ir::ActionPart part);
  void compute_loss(ir::ActionPart part, Stage& stage, const Tensors& outputs);
  // Leaves in the memory of the caller's tensors.
  Tensors leaves_of(const Tensors& tensors) const;
  void accumulate_into_batch();
  Transfers& transfers(ir::ActionPart part) const;

  const ir::Placement& placement_;
  const int num_microbatches_;
  const int rank_;
  Transfers* const transfers_;
  const Options options_;

  std::map<int, std::vector<Slot>> slots_;  // by stage and microbatch
  bool with_backward_ = false;
  bool keep_outputs_ = false;
  Microbatches microbatches_;
  // The gradients of the caller's tensors, by microbatch; for `extra_of` by stage and microbatch.
  std::vector<Tensors> input_grads_, extra_grads_;
  std::map<int, std::vector<Tensors>> extra_of_grads_;
  StepOutputs results_;
  int first_result_ = 0;  // its microbatch
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_DATA_FLOW_H_
