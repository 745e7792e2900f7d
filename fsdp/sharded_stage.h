#ifndef PIPEWRIGHT_FSDP_SHARDED_STAGE_H_
#define PIPEWRIGHT_FSDP_SHARDED_STAGE_H_

#include "pipewright/fsdp/sharded_unit.h"
#include "pipewright/modules/data_parallel.h"

namespace pipewright::fsdp {

// A tree of sharded units as a pipeline stage. While it exists, the executor's program decides when
// the units gather and free their parameters. Forwards install no hooks on inputs and outputs: a
// unit is ready to be reduced when all its parameters have accumulated their gradients, in a B or a
// W. A unit without gradients on this rank is reduced too, as zeros: whether there are any may
// differ between ranks. A parameter that no rank used keeps its .grad.
class ShardedStage final : public modules::DrivenStage<ShardedUnit> {
 public:
  using DrivenStage::DrivenStage;

  c10d::Backend* group() const override { return root().params().group().get(); }
  void unshard() override;
  void wait_unshard() override;
  void reshard() override;
  bool frees_parameters() const override { return true; }
  // Throws ContractError if a resharded unit has frozen parameters, which a W may read.
  void before_backward(int microbatch, bool last) override;
  void wait_reduce() override;

 protected:
  void reduce_all() override;
};

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_SHARDED_STAGE_H_
