#include "pipewright/fsdp/sharded_stage.h"

#include "pipewright/ir/errors.h"

namespace pipewright::fsdp {
namespace {

// A W on a resharded stage computes gradients of trainable parameters from activations and
// gradients, but a frozen parameter may be one of the factors.
void expect_trainable_if_sharded(const ShardedUnit& unit) {
  if (unit.is_unsharded()) return;
  for (const ShardedParam& param : unit.params().params()) {
    if (param.registered.requires_grad()) continue;
    throw ContractError("fully_shard: a W on the resharded " + unit.display_name() +
                        " may read its frozen parameter `" + param.name +
                        "`: expected an UNSHARD before the W");
  }
}

}  // namespace

void ShardedStage::unshard() {
  // Gathers units in the order in which forward enters them.
  root().for_each_outer_first([](ShardedUnit& unit) { unit.unshard_async(); });
}

void ShardedStage::wait_unshard() {
  root().for_each_outer_first([](ShardedUnit& unit) { unit.wait_unshard(); });
}

void ShardedStage::reshard() {
  root().for_each([](ShardedUnit& unit) { unit.reshard(); });
}

void ShardedStage::before_backward(int microbatch, bool last) {
  root().for_each([](ShardedUnit& unit) { expect_trainable_if_sharded(unit); });
  // The reductions of an earlier REDUCE_GRAD: their buffers are freed before this backward
  // allocates others.
  root().backward().finish(0);
  DrivenStage::before_backward(microbatch, last);
  if (last) root().backward().open_for_all();
}

void ShardedStage::reduce_all() {
  BackwardOrder& order = root().backward();
  order.open_for_all();
  set_last_backward(true);
  root().for_each([](ShardedUnit& unit) { unit.set_done(0); });
  order.reduce_ready();
  order.reduce_rest();
  order.close();
  set_last_backward(false);
  root().for_each([](ShardedUnit& unit) { unit.begin_backward(); });
}

void ShardedStage::wait_reduce() { root().backward().complete(); }

}  // namespace pipewright::fsdp
