#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "pipewright/schedule/graph/peaks.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/verify/verify.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule {
namespace {

ir::Program lowered(const char* name, const schedules::Shape& shape, ir::Receives receives) {
  ir::Lowering policies;
  policies.receives = receives;
  ir::Diagnostics diagnostics;
  return lower(schedules::make_order(*schedules::find_schedule(name), shape), policies,
               &diagnostics)
      .value();
}

// Allocates numbered buffers as a runtime would: the lowest free one of the pool at each RECV,
// freed after the compute that uses it. Returns how many a pool has in the end, by pool.
template <typename Key>
std::map<Key, int> allocate(const ir::Program& program, size_t rank,
                            const std::function<Key(ir::ActionPart receive)>& pool_of) {
  std::map<Key, std::set<int>> used;
  std::map<Key, int> sizes;
  std::map<std::pair<ir::ActionKind, std::pair<int, int>>, int> buffer_of;
  for (const ir::Action& action : program.rows[rank]) {
    for (const ir::ActionPart part : action.parts()) {
      const auto name = [](ir::ActionKind kind, ir::ActionPart of) {
        return std::pair(kind, std::pair(of.stage(), of.microbatch()));
      };
      if (ir::is_receive(part.kind())) {
        std::set<int>& pool = used[pool_of(part)];
        int free = 0;
        while (pool.contains(free)) ++free;
        pool.insert(free);
        buffer_of[name(part.kind(), part)] = free;
        sizes[pool_of(part)] = std::max(sizes[pool_of(part)], free + 1);
      } else if (ir::is_compute(part.kind())) {
        for (const ir::ActionKind kind : {ir::ActionKind::kRecvF, ir::ActionKind::kRecvB}) {
          const bool forward = part.kind() == ir::ActionKind::kForward;
          if (part.kind() == ir::ActionKind::kBackwardWeight ||
              forward != (kind == ir::ActionKind::kRecvF))
            continue;
          const auto buffer = buffer_of.find(name(kind, part));
          if (buffer == buffer_of.end()) continue;
          used[pool_of({kind, part.stage(), part.microbatch()})].erase(buffer->second);
          buffer_of.erase(buffer);
        }
      }
    }
  }
  return sizes;
}

TEST(ReceiveSlotsTest, AreWhatARuntimeAllocates) {
  for (const char* name : {"GPipe", "1F1B", "Interleaved1F1B", "ZBV", "DualPipeV", "LoopedBFS"}) {
    for (const ir::Receives receives : {ir::Receives::kPytorch, ir::Receives::kLatest}) {
      const schedules::ScheduleSpec& spec = *schedules::find_schedule(name);
      const ir::Program program =
          lowered(name, {4, schedules::default_stages(spec, 4), 8}, receives);
      const std::vector<ReceiveSlots> slots = receive_slots(program);
      const std::vector<RankCertificate> certificate = certify(program);
      for (size_t rank = 0; rank < 4; ++rank) {
        const auto pooled = allocate<int>(program, rank, [](ir::ActionPart) { return 0; });
        EXPECT_EQ(slots[rank].pooled, pooled.empty() ? 0 : pooled.at(0)) << name;
        EXPECT_EQ(slots[rank].pooled, certificate[rank].receive_buffers.amount);
        EXPECT_EQ(slots[rank], certificate[rank].receive_slots);
        auto separate = allocate<std::pair<int, ir::ActionKind>>(
            program, rank,
            [](ir::ActionPart receive) { return std::pair(receive.stage(), receive.kind()); });
        for (const StageReceiveSlots& stage : slots[rank].stages) {
          EXPECT_EQ(stage.forward, (separate[{stage.stage, ir::ActionKind::kRecvF}])) << name;
          EXPECT_EQ(stage.backward, (separate[{stage.stage, ir::ActionKind::kRecvB}])) << name;
        }
        int sum = 0;
        for (const auto& [pool, size] : separate) sum += size;
        EXPECT_EQ(slots[rank].separate(), sum) << name;
        EXPECT_LE(slots[rank].pooled, sum);
      }
    }
  }
}

TEST(ReceiveSlotsTest, OfASmallProgram) {
  // 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1
  // 1: 1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1
  const std::vector<ReceiveSlots> slots =
      receive_slots(lowered("1F1B", {2, 2, 2}, ir::Receives::kPytorch));
  EXPECT_EQ(slots[0], (ReceiveSlots{1, {{0, 0, 1}}}));
  EXPECT_EQ(slots[1], (ReceiveSlots{1, {{1, 1, 0}}}));
  EXPECT_EQ(receive_slots(lowered("GPipe", {1, 1, 2}, ir::Receives::kPytorch))[0], ReceiveSlots());
}

}  // namespace
}  // namespace pipewright::schedule
