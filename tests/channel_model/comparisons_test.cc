// What else follows from the channel model, against judges that know nothing of the channel graph:
// slack against the clock with one action delayed, latest receives against the interpreter,
// certificates against counting, and compute orders against a simulation by repeated sweeps.
//
// PIPEWRIGHT_SEED and PIPEWRIGHT_ROUNDS set other random programs, and more of them:
//
//   PIPEWRIGHT_SEED=7 PIPEWRIGHT_ROUNDS=5000 bazel-bin/tests/channel_model/comparisons_test
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "pipewright/schedule/graph/channel_graph.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/lowering/place_receives.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedule/verify/verify.h"
#include "pipewright/schedules/registry.h"
#include "tests/channel_model/interpreter.h"
#include "tests/channel_model/programs.h"
#include "tests/channel_model/random.h"
#include "tests/channel_model/ticking_clock.h"

namespace pipewright::channel_model {
namespace {

constexpr ir::ChannelCapacity kCapacities[] = {0, 1, 2, 3, ir::kUnboundedCapacity};

int below(int limit, std::mt19937* random) {
  return static_cast<int>((*random)() % static_cast<unsigned>(limit));
}

schedule::Costs random_costs(std::mt19937* random) {
  schedule::Costs costs;
  costs.forward = below(4, random);
  costs.backward_input = 1 + below(3, random);
  costs.backward_weight = below(3, random);
  costs.link.latency = below(4, random);
  costs.links[{0, 1}].latency = below(6, random);
  costs.rank_scale = {1, 1 + static_cast<double>(below(2, random)), 2};
  return costs;
}

// Calls visit(program, model, capacity) for random programs that run to their end.
template <typename Visit>
void for_random_programs(uint32_t seed, int rounds, const Visit& visit) {
  std::mt19937 random(seed_or(seed));
  int visited = 0;
  for (int round = 0; round < rounds_or(rounds) && !testing::Test::HasFailure(); ++round) {
    const ir::Program program = random_program(random);
    for (const ir::ChannelModelInfo& model : ir::channel_models()) {
      const ir::ChannelCapacity capacity = kCapacities[below(5, &random)];
      Interpreter interpreter(program, model.model, capacity);
      if (interpreter.deadlocks() || interpreter.swaps()) continue;
      SCOPED_TRACE(testing::Message()
                   << "round " << round << ", " << ir::describe_channels(model.model, capacity));
      visit(program, model.model, capacity, &random);
      ++visited;
    }
  }
  EXPECT_GT(visited, rounds_or(rounds) / 10);
}

int last_end(const std::vector<std::vector<int>>& ends) {
  int last = 0;
  for (const std::vector<int>& row : ends) {
    for (const int end : row) last = std::max(last, end);
  }
  return last;
}

// An action may end later by its slack, and no more.
TEST(ComparisonsTest, SlackIsWhatADelayCosts) {
  int with_slack = 0, without = 0;
  for_random_programs(
      1, 150,
      [&](const ir::Program& program, ir::ChannelModel model, ir::ChannelCapacity capacity,
          std::mt19937* random) {
        schedule::Costs costs = random_costs(random);
        costs.rank_scale.resize(program.rows.size());
        const auto graph = schedule::ChannelGraph::of_program(program, model, capacity);
        const ir::Timeline timeline = schedule::simulate(graph, program, costs);
        const std::vector<double> slack = schedule::slack_of(graph, program, costs, timeline);
        const int makespan = last_end(TickingClock(program, model, capacity, costs).run());
        for (size_t rank = 0; rank < program.rows.size(); ++rank) {
          for (size_t step = 0; step < program.rows[rank].size(); ++step) {
            const int own = static_cast<int>(slack[timeline.index(rank, step)]);
            const auto delayed = [&](int by) {
              TickingClock clock(program, model, capacity, costs);
              clock.delay(rank, step, by);
              return last_end(clock.run());
            };
            ASSERT_EQ(delayed(own), makespan) << rank << ":" << step << " slack " << own;
            ASSERT_EQ(delayed(own + 1), makespan + 1) << rank << ":" << step << " slack " << own;
            (own > 0 ? with_slack : without) += 1;
          }
        }
      });
  EXPECT_GT(with_slack, 100);
  EXPECT_GT(without, 1000);
}

// Posting any RECV later, past the RECVs that follow it and one more action, breaks the program.
TEST(ComparisonsTest, NoReceiveCanBeLater) {
  int moved = 0, tried = 0;
  for_random_programs(2, 250,
                      [&](const ir::Program& program, ir::ChannelModel model,
                          ir::ChannelCapacity capacity, std::mt19937*) {
                        const ir::Program latest =
                            schedule::latest_receives(program, model, capacity);
                        Interpreter interpreter(latest, model, capacity);
                        ASSERT_FALSE(interpreter.deadlocks() || interpreter.swaps());
                        moved += latest.rows != program.rows;
                        const auto is_receive = [](const ir::Action& action) {
                          return ir::is_receive(action.kind());
                        };
                        for (size_t rank = 0; rank < latest.rows.size(); ++rank) {
                          ir::Row before = program.rows[rank], after = latest.rows[rank];
                          std::erase_if(before, is_receive);
                          std::erase_if(after, is_receive);
                          ASSERT_EQ(before, after);
                          for (size_t step = 0; step < latest.rows[rank].size(); ++step) {
                            if (!is_receive(latest.rows[rank][step])) continue;
                            ir::Program later = latest;
                            ir::Row& row = later.rows[rank];
                            const auto begin = row.begin() + static_cast<std::ptrdiff_t>(step);
                            const auto next = std::find_if_not(begin, row.end(), is_receive);
                            if (next == row.end()) continue;
                            std::rotate(begin, begin + 1, next + 1);
                            Interpreter judge(later, model, capacity);
                            ASSERT_TRUE(judge.deadlocks() || judge.swaps()) << rank << ":" << step;
                            ++tried;
                          }
                        }
                      });
  EXPECT_GT(moved, 50);
  EXPECT_GT(tried, 500);
}

using Tensor = std::tuple<ir::ActionKind, int, int>;  // RECV_F or RECV_B, stage, microbatch

// The most of a set's members at any step, and the first such step, when a step adds members and
// removes others at its end.
class Counter {
 public:
  template <typename Member>
  void at(int step, const std::set<Member>& members) {
    const int size = static_cast<int>(members.size());
    if (size > peak_.amount) peak_ = {size, step};
  }
  const schedule::Peak<int>& peak() const { return peak_; }

 private:
  schedule::Peak<int> peak_;
};

// The certificate of one rank, by keeping the sets of what is in memory.
void expect_certificate(const ir::Program& program, size_t rank,
                        const schedule::RankCertificate& certificate) {
  Counter activations, buffers, unsharded;
  std::map<std::pair<int, ir::ActionKind>, Counter> separate;
  std::set<std::pair<int, int>> live;
  std::set<Tensor> received;
  std::set<int> stages;
  for (size_t index = 0; index < program.rows[rank].size(); ++index) {
    const int step = static_cast<int>(index);
    const auto parts = program.rows[rank][index].parts();
    for (const ir::ActionPart part : parts) {
      if (part.kind() == ir::ActionKind::kForward) live.insert({part.stage(), part.microbatch()});
      if (ir::is_receive(part.kind()))
        received.insert({part.kind(), part.stage(), part.microbatch()});
      if (part.kind() == ir::ActionKind::kUnshard) stages.insert(part.stage());
      if (part.kind() == ir::ActionKind::kReshard) stages.erase(part.stage());
    }
    activations.at(step, live);
    buffers.at(step, received);
    unsharded.at(step, stages);
    for (const ir::ActionPart part : parts) {
      std::set<Tensor> of_kind;
      for (const Tensor& one : received) {
        if (std::get<0>(one) == part.kind() && std::get<1>(one) == part.stage())
          of_kind.insert(one);
      }
      if (ir::is_receive(part.kind())) separate[{part.stage(), part.kind()}].at(step, of_kind);
      if (part.kind() == ir::ActionKind::kBackward ||
          part.kind() == ir::ActionKind::kBackwardWeight)
        live.erase({part.stage(), part.microbatch()});
      if (part.kind() == ir::ActionKind::kForward)
        received.erase({ir::ActionKind::kRecvF, part.stage(), part.microbatch()});
      if (part.kind() == ir::ActionKind::kBackward || part.kind() == ir::ActionKind::kBackwardInput)
        received.erase({ir::ActionKind::kRecvB, part.stage(), part.microbatch()});
    }
  }
  EXPECT_EQ(certificate.activations, activations.peak());
  EXPECT_EQ(certificate.receive_buffers, buffers.peak());
  EXPECT_EQ(certificate.unsharded_stages, unsharded.peak());
  EXPECT_EQ(certificate.receive_slots.pooled, buffers.peak().amount);
  std::map<std::pair<int, ir::ActionKind>, int> claimed;
  for (const schedule::StageReceiveSlots& stage : certificate.receive_slots.stages) {
    if (stage.forward > 0) claimed[{stage.stage, ir::ActionKind::kRecvF}] = stage.forward;
    if (stage.backward > 0) claimed[{stage.stage, ir::ActionKind::kRecvB}] = stage.backward;
  }
  std::map<std::pair<int, ir::ActionKind>, int> counted;
  for (const auto& [key, counter] : separate) counted[key] = counter.peak().amount;
  EXPECT_EQ(claimed, counted);
}

TEST(ComparisonsTest, CertificatesOfRandomProgramsAreCounts) {
  for_random_programs(
      3, 1000,
      [](const ir::Program& program, ir::ChannelModel, ir::ChannelCapacity, std::mt19937*) {
        const auto certificates = schedule::certify(program);
        for (size_t rank = 0; rank < program.rows.size(); ++rank)
          expect_certificate(program, rank, certificates[rank]);
      });
}

// A schedule of the catalogue with a random shape.
ir::ComputeOrder random_order(std::mt19937* random) {
  const auto all = schedules::all_schedules();
  for (;;) {
    const schedules::ScheduleSpec& spec =
        *all[static_cast<size_t>(below(static_cast<int>(all.size()), random))];
    const int ranks = 1 + below(6, random);
    const schedules::Shape shape{ranks, schedules::default_stages(spec, ranks),
                                 1 + below(16, random)};
    if (spec.plan_rows == nullptr && !schedules::shape_error(spec, shape))
      return schedules::make_order(spec, shape);
  }
}

// With UNSHARD, RESHARD, REDUCE_GRAD and compounds.
TEST(ComparisonsTest, CertificatesOfTheCatalogueAreCounts) {
  std::mt19937 random(seed_or(4));
  for (int round = 0; round < rounds_or(300) && !HasFailure(); ++round) {
    ir::Lowering policies;
    policies.residency = 2 + below(3, &random);
    if (below(2, &random) == 0) policies.evict = ir::Eviction::kFarthest;
    if (below(2, &random) == 0) policies.receives = ir::Receives::kLatest;
    ir::Diagnostics diagnostics;
    const auto program = schedule::lower(random_order(&random), policies, &diagnostics);
    ASSERT_TRUE(program);
    const auto certificates = schedule::certify(*program);
    for (size_t rank = 0; rank < program->rows.size(); ++rank)
      expect_certificate(*program, rank, certificates[rank]);
  }
}

// Ends of the computes of an order, by sweeps along the rows until nothing changes: an action
// starts when the one before it has ended and its inputs of other stages have arrived.
std::vector<std::vector<int>> ends_by_sweeps(const ir::ComputeOrder& order,
                                             const schedule::Costs& costs) {
  const schedule::CostTable table(costs, order.placement);
  const auto latency = [&](int from, int to, int microbatch) {
    const int source = order.placement.rank_of(from, microbatch),
              sink = order.placement.rank_of(to, microbatch);
    if (source == sink) return 0;
    const auto link = costs.links.find({source, sink});
    return static_cast<int>(link != costs.links.end() ? *link->second.latency : costs.link.latency);
  };
  std::map<std::tuple<bool, int, int>, int> made;  // forward, stage, microbatch: its end
  std::vector<std::vector<int>> ends(order.rows.size());
  const int last = order.placement.num_stages() - 1;
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t rank = 0; rank < order.rows.size(); ++rank) {
      std::vector<int> row;
      int now = 0;
      for (const ir::Action& action : order.rows[rank]) {
        if (!action.is_idle()) {
          for (const ir::ActionPart part : action.parts()) {
            const bool forward = part.kind() == ir::ActionKind::kForward;
            const int from = part.stage() + (forward ? -1 : 1);
            if (part.kind() == ir::ActionKind::kBackwardWeight || from < 0 || from > last) continue;
            now = std::max(now, made[{forward, from, part.microbatch()}] +
                                    latency(from, part.stage(), part.microbatch()));
          }
          now += static_cast<int>(table.duration(action, rank));
          for (const ir::ActionPart part : action.parts()) {
            if (part.kind() == ir::ActionKind::kBackwardWeight) continue;
            made[{part.kind() == ir::ActionKind::kForward, part.stage(), part.microbatch()}] = now;
          }
        }
        row.push_back(now);
      }
      changed = changed || row != ends[rank];
      ends[rank] = row;
    }
  }
  return ends;
}

TEST(ComparisonsTest, OrdersWithIdealTransfers) {
  std::mt19937 random(seed_or(5));
  for (int round = 0; round < rounds_or(400) && !HasFailure(); ++round) {
    const ir::ComputeOrder order = random_order(&random);
    schedule::Costs costs = random_costs(&random);
    costs.rank_scale.resize(order.rows.size(), 1);
    const auto graph = schedule::ChannelGraph::of_order(order);
    const ir::Timeline timeline = schedule::simulate(graph, order, costs);
    const auto ends = ends_by_sweeps(order, costs);
    for (size_t rank = 0; rank < order.rows.size(); ++rank) {
      for (size_t step = 0; step < order.rows[rank].size(); ++step) {
        if (order.rows[rank][step].is_idle()) continue;
        ASSERT_EQ(timeline.at(rank, step).end, ends[rank][step])
            << order.name << " " << rank << ":" << step;
      }
    }
  }
}

}  // namespace
}  // namespace pipewright::channel_model
