// Under `edge` a RECV shares its queue only with other RECVs from the same rank. It must be posted
// before the compute that uses it, and before the RECVs that follow it in that queue. So its latest
// position is just before the first compute that uses it or any of those RECVs. One pass along each
// row finds it: before each compute, the pass places the RECVs of the queue up to the one that the
// compute needs. Linear. This cannot deadlock: a RECV that waits for its SEND blocks only RECVs
// whose SENDs are later still.
//
// Under `peer` and `rank` a RECV also blocks SENDs, and the positions depend on each other: see
// receive_mover.cc.
#include "pipewright/schedule/lowering/latest_receives.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "pipewright/ir/rank_pairs.h"
#include "pipewright/ir/stage_dependencies.h"
#include "pipewright/schedule/lowering/receive_mover.h"
#include "pipewright/schedule/lowering/receives_of.h"

namespace pipewright::schedule {
namespace {

void place_at_first_user(ir::Program* program) {
  const ir::RankPairs pairs(program->placement);
  const ir::StageDependencies dependencies(program->placement);
  std::vector<ir::Row> waiting(pairs.size());  // RECVs in the order of their SENDs
  std::vector<size_t> next(pairs.size());
  PerReceive<uint8_t> is_placed(*program, false);
  for (ir::Row& row : program->rows) {
    for (const ir::Action& action : row) {
      if (ir::is_receive(action.kind())) waiting[pairs.of(action.parts()[0])].push_back(action);
    }
    ir::Row placed;
    placed.reserve(row.size());
    for (const ir::Action& action : row) {
      if (ir::is_receive(action.kind())) continue;
      for_each_receive_of(action, dependencies, [&](ir::ActionPart receive) {
        const uint32_t pair = pairs.of(receive);
        while (!is_placed[receive]) {
          placed.push_back(waiting[pair][next[pair]++]);
          is_placed[placed.back().parts()[0]] = true;
        }
      });
      placed.push_back(action);
    }
    row = std::move(placed);
  }
}

}  // namespace

ir::Program latest_receives(ir::Program program, ir::ChannelModel channels,
                            ir::ChannelCapacity capacity) {
  // Past a WAIT_SEND, a RECV may be too late even if it comes before its use.
  const bool awaits_sends = (ir::kinds_in(program.rows) & ir::kSendWaits) != 0;
  if (channels == ir::ChannelModel::kEdge && !awaits_sends) {
    place_at_first_user(&program);
  } else {
    program.rows = move_receives_later(program, channels, capacity);
  }
  program.lowering.receives = ir::Receives::kLatest;
  program.lowering.channels = channels;
  program.lowering.capacity = capacity;
  return program;
}

}  // namespace pipewright::schedule
