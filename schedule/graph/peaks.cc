#include "pipewright/schedule/graph/peaks.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "pipewright/ir/dependencies.h"

namespace pipewright::schedule {

Peak<int> peak_activations(const ir::Row& row, bool has_backward) {
  Peak<int> peak;
  int live = 0;
  for (size_t step = 0; step < row.size(); ++step) {
    int freed = 0;
    for (const ir::ActionPart part : row[step].parts()) {
      const bool is_forward = part.kind() == ir::ActionKind::kForward;
      if (is_forward) peak.add(++live, static_cast<int>(step));
      freed += ir::completes_backward(part.kind()) || (is_forward && !has_backward);
    }
    live -= freed;  // at the end of the whole action
  }
  return peak;
}

namespace {

// A number of buffers along a row, and the largest so far.
struct Level {
  int now = 0;
  int most = 0;

  void add() { most = std::max(most, ++now); }
};

size_t direction_of(ir::ActionKind receive) { return receive == ir::ActionKind::kRecvF ? 0 : 1; }

}  // namespace

int ReceiveSlots::separate() const {
  int sum = 0;
  for (const StageReceiveSlots& one : stages) sum += one.forward + one.backward;
  return sum;
}

std::vector<ReceiveSlots> receive_slots(const ir::Program& program) {
  const ir::StageDependencies dependencies(program.placement);
  const ir::Placement& placement = program.placement;
  std::vector<std::array<Level, 2>> instances(static_cast<size_t>(placement.num_instances()));
  std::vector<ReceiveSlots> slots(program.rows.size());
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    Level pool;
    for (const ir::Action& action : program.rows[rank]) {
      for (const ir::ActionPart part : action.parts()) {
        std::array<Level, 2>& instance = instances[static_cast<size_t>(
            placement.instances().of(part.stage(), part.microbatch()))];
        if (ir::is_receive(part.kind())) {
          instance[direction_of(part.kind())].add();
          pool.add();
        } else if (ir::is_compute(part.kind())) {
          for (const ir::StageDependencies::Need& need : dependencies.of(part)) {
            if (!need.of_other_rank) continue;
            --instance[direction_of(need.receive_for(part).kind())].now;
            --pool.now;
          }
        }
      }
    }
    slots[rank].pooled = pool.most;
  }
  // By stage, then replica, so that each rank's stages ascend.
  for (int stage = 0; stage < placement.num_stages(); ++stage) {
    for (int one = stage; one < placement.num_instances(); one += placement.num_stages()) {
      const std::array<Level, 2>& of = instances[static_cast<size_t>(one)];
      if (of[0].most + of[1].most == 0) continue;
      slots[static_cast<size_t>(placement.rank_of_instance(one))].stages.push_back(
          {stage, of[0].most, of[1].most});
    }
  }
  return slots;
}

}  // namespace pipewright::schedule
