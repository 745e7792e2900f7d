#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_RECEIVES_OF_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_RECEIVES_OF_H_

#include <array>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/stage_dependencies.h"
#include "pipewright/ir/stage_microbatch_table.h"

namespace pipewright::schedule {

// Calls `use` with each RECV that brings an input of a compute. Does nothing for other actions.
template <typename Use>
void for_each_receive_of(const ir::Action& action, const ir::StageDependencies& dependencies,
                         const Use& use) {
  if (!ir::is_compute(action.kind())) return;
  for (const ir::ActionPart part : action.parts()) {
    for (const ir::StageDependencies::Need& need : dependencies.of(part)) {
      if (need.of_other_rank) use(need.receive_for(part));
    }
  }
}

// A table with one value per possible RECV of a program.
template <typename Value>
class PerReceive {
 public:
  PerReceive(const ir::Program& program, Value initial)
      : values_(program.placement, program.num_microbatches, {initial, initial}) {}

  Value& operator[](ir::ActionPart receive) {
    return values_.at(receive.stage(),
                      receive.microbatch())[receive.kind() == ir::ActionKind::kRecvB];
  }

 private:
  ir::StageMicrobatchTable<std::array<Value, 2>> values_;  // of RECV_F, of RECV_B
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_RECEIVES_OF_H_
