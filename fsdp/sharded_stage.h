#ifndef PIPEWRIGHT_FSDP_SHARDED_STAGE_H_
#define PIPEWRIGHT_FSDP_SHARDED_STAGE_H_

#include "pipewright/fsdp/sharded_unit.h"
#include "pipewright/modules/driven_stage.h"

namespace pipewright::fsdp {

// A tree of sharded units as a pipeline stage. While it lives, the units gather and free nothing by
// themselves: the executor's program says when. Forwards set no hooks, so I, W and B count alike;
// gradients are reduced as they become ready in the last backward before a REDUCE_GRAD, and the
// rest there.
class ShardedStage final : public modules::DrivenStage<ShardedUnit> {
 public:
  using DrivenStage::DrivenStage;

  void unshard() override;
  void wait_unshard() override;
  void reshard() override;
  bool frees_parameters() const override { return true; }
  // Throws ContractError if a resharded unit has frozen parameters, which a W may read.
  void before_backward(int microbatch, bool last) override;
  void reduce_grad() override;
  void wait_reduce() override;
  void abort() override;
};

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_SHARDED_STAGE_H_
