// The greedy algorithm plans all ranks together, in the order of the pipeline and not of time:
//
//   start    F of microbatch 0 on every rank. Then, from the last rank to the first, as many more
//            Fs as memory allows until the first gradient arrives; ranks nearer to the start get
//            more. Then I of microbatch 0, from the last rank to the first.
//   rounds   For each other microbatch: one F on every rank that is to run one, from the first
//            rank to the last; then I of the microbatch on every rank, from the last to the first.
//   end      The Ws that are left.
//
// Ws run where memory requires one, and where a rank would otherwise wait for the input of its next
// F or I: as long as a whole W fits, and once more, beyond the arrival of the input, if the wait
// would make the rank's idle time the largest of all ranks.
//
// Three switches change the choices (Switches); the best of their eight combinations is the result,
// planned with the sizes of the microbatches and without.
// A plan keeps, for each rank, its time, its idle time since its first F, its memory and its row.
// It never runs an action before its inputs are placed, so rows can be executed; and it never
// exceeds the memory limit.
#include "pipewright/schedules/zb_auto.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "pipewright/ir/check.h"
#include "pipewright/schedules/constraints.h"
#include "pipewright/schedules/plan_cost.h"

namespace pipewright::schedules {
namespace {

using ir::ActionKind;

constexpr int kForwardMemory = 2, kInputMemory = 1, kWeightMemory = 1;  // half activations

struct Switches {
  bool wait_for_first_gradient;  // no F at the start that would delay the first I
  bool skip_forwards;            // a rank that is ahead may skip its F of a round
  bool always_fill;              // run a W in every wait, even beyond the arrival of the input
};

class Plan {
 public:
  Plan(const Shape& shape, const PlanTimes& times, int memory_limit, Switches switches)
      : num_microbatches_(shape.microbatches),
        memory_limit_(memory_limit),
        times_(times),
        switches_(switches),
        ranks_(static_cast<size_t>(shape.ranks)) {}

  // False if the memory does not suffice.
  bool run() {
    start();
    for (int microbatch = 1; microbatch < num_microbatches_; ++microbatch) {
      if (!run_round()) return false;
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      while (ranks_[rank].pending() > 0) put_weight(rank);
    }
    return true;
  }

  ir::Rows rows() && {
    ir::Rows rows;
    for (Rank& rank : ranks_) rows.push_back(std::move(rank.row));
    return rows;
  }

 private:
  struct Rank {
    int64_t start = 0, time = 0, idle = 0;
    int memory = 0;
    std::vector<int64_t> forward_ends, input_ends;  // by microbatch
    int weights = 0;                                // Ws that have run
    ir::Row row;

    int forwards() const { return static_cast<int>(forward_ends.size()); }
    int inputs() const { return static_cast<int>(input_ends.size()); }
    int pending() const { return inputs() - weights; }
  };

  // ---- times

  const StageTimes& stage(size_t rank) const { return times_.stages[rank]; }
  int64_t forward_time(size_t rank, int microbatch) const {
    return times_.scaled(stage(rank).forward, microbatch);
  }
  int64_t input_time(size_t rank, int microbatch) const {
    return times_.scaled(stage(rank).backward_input, microbatch);
  }
  int64_t weight_time(size_t rank, int microbatch) const {
    return times_.scaled(stage(rank).backward_weight, microbatch);
  }
  // The time of the rank's next W.
  int64_t weight_time(size_t rank) const { return weight_time(rank, ranks_[rank].weights); }

  // ---- actions

  void put(size_t rank, ActionKind kind, int microbatch, int64_t input, int64_t duration) {
    Rank& own = ranks_[rank];
    const int64_t begin = std::max(own.time, input);
    if (own.row.empty()) {
      own.start = begin;
    } else {
      own.idle += begin - own.time;
    }
    own.time = begin + duration;
    own.row.emplace_back(kind, static_cast<int>(rank), microbatch);
  }
  // When the inputs of the rank's next F and I arrive.
  int64_t forward_arrival(size_t rank) const {
    if (rank == 0) return 0;
    const auto microbatch = static_cast<size_t>(ranks_[rank].forwards());
    return ranks_[rank - 1].forward_ends[microbatch] + stage(rank - 1).output_transfer;
  }
  int64_t input_arrival(size_t rank) const {
    const auto microbatch = static_cast<size_t>(ranks_[rank].inputs());
    if (rank + 1 == ranks_.size()) return ranks_[rank].forward_ends[microbatch];
    return ranks_[rank + 1].input_ends[microbatch] + stage(rank + 1).gradient_transfer;
  }
  void put_forward(size_t rank) {
    Rank& own = ranks_[rank];
    put(rank, ActionKind::kForward, own.forwards(), forward_arrival(rank),
        forward_time(rank, own.forwards()));
    own.forward_ends.push_back(own.time);
    own.memory += kForwardMemory;
  }
  void put_input(size_t rank) {
    Rank& own = ranks_[rank];
    put(rank, ActionKind::kBackwardInput, own.inputs(), input_arrival(rank),
        input_time(rank, own.inputs()));
    own.input_ends.push_back(own.time);
    own.memory -= kInputMemory;
  }
  void put_weight(size_t rank) {
    Rank& own = ranks_[rank];
    put(rank, ActionKind::kBackwardWeight, own.weights, own.time, weight_time(rank));
    ++own.weights;
    own.memory -= kWeightMemory;
  }

  int64_t largest_idle() const {
    int64_t largest = 0;
    for (const Rank& rank : ranks_) largest = std::max(largest, rank.idle);
    return largest;
  }
  // How much longer the rank may idle without idling longer than all others.
  int64_t slack(size_t rank) const { return largest_idle() - ranks_[rank].idle; }

  // Runs Ws before an action whose input arrives at `arrival`.
  void fill_with_weights(size_t rank, int64_t arrival) {
    Rank& own = ranks_[rank];
    while (own.pending() > 0 && own.time + weight_time(rank) <= arrival) put_weight(rank);
    if (own.pending() > 0 && own.time < arrival &&
        (switches_.always_fill || arrival - own.time > slack(rank)))
      put_weight(rank);
  }

  // ---- the start

  void start() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) put_forward(rank);
    std::vector<int> extra = extra_forwards();
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (; extra[rank] > 0; --extra[rank]) put_forward(rank);
    }
    for (size_t rank = ranks_.size(); rank-- > 0;) put_input(rank);
  }

  // How many Fs each rank runs after its first F and before its first I.
  std::vector<int> extra_forwards() const {
    std::vector<int> extra(ranks_.size());
    const size_t last = ranks_.size() - 1;
    int64_t gradient = ranks_[last].time + input_time(last, 0);  // end of I one rank below
    for (size_t rank = last; rank-- > 0;) {
      const int64_t arrival = gradient + stage(rank + 1).gradient_transfer;
      int64_t time = ranks_[rank].time;
      const auto fits = [&] {
        return kForwardMemory * (extra[rank] + 2) <= memory_limit_ &&
               extra[rank] + 1 < num_microbatches_ &&
               (switches_.wait_for_first_gradient
                    ? time + forward_time(rank, extra[rank] + 1) <= arrival
                    : time < arrival);
      };
      for (; fits(); ++extra[rank]) time += forward_time(rank, extra[rank] + 1);
      gradient = std::max(time, arrival) + input_time(rank, 0);
    }
    // A rank stays ahead of the next one.
    for (size_t rank = 1; rank < ranks_.size(); ++rank) {
      while (extra[rank] > 0 && extra[rank] >= extra[rank - 1]) --extra[rank];
    }
    return extra;
  }

  // ---- the rounds

  bool run_round() {
    const std::vector<bool> runs_forward = forwards_of_round();
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!runs_forward[rank]) continue;
      while (ranks_[rank].memory + kForwardMemory > memory_limit_) {
        if (ranks_[rank].pending() == 0) return false;
        put_weight(rank);
      }
      fill_with_weights(rank, forward_arrival(rank));
      put_forward(rank);
    }
    for (size_t rank = ranks_.size(); rank-- > 0;) {
      // After its last F, nothing waits for the first rank.
      if (rank == 0 && ranks_[rank].forwards() == num_microbatches_) {
        while (ranks_[rank].pending() > 0) put_weight(rank);
      }
      fill_with_weights(rank, input_arrival(rank));
      put_input(rank);
    }
    return true;
  }

  // Which ranks run an F in this round. A rank that skips its F makes the earlier ranks skip
  // theirs.
  std::vector<bool> forwards_of_round() const {
    std::vector<bool> runs(ranks_.size());
    bool next_runs = true;
    for (size_t rank = ranks_.size(); rank-- > 0;) {
      runs[rank] = next_runs && ranks_[rank].forwards() < num_microbatches_ && !skips(rank);
      next_runs = runs[rank];
    }
    return runs;
  }

  // Whether the rank, which is at least two Fs ahead of the next one, would run its F too late for
  // the next rank's F and I to wait for it, so that another round will do.
  bool skips(size_t rank) const {
    if (!switches_.skip_forwards || rank + 1 == ranks_.size()) return false;
    const Rank &own = ranks_[rank], &next = ranks_[rank + 1];
    if (own.forwards() < next.forwards() + 2) return false;
    const int64_t needed = next.time + forward_time(rank + 1, next.forwards()) +
                           input_time(rank + 1, next.inputs()) + stage(rank + 1).gradient_transfer;
    if (own.time >= needed) return true;
    const int too_much = std::max(0, own.memory + kForwardMemory - memory_limit_);
    const int weights = (too_much + kWeightMemory - 1) / kWeightMemory;
    int64_t end = own.time + forward_time(rank, own.forwards());
    for (int weight = 0; weight < weights; ++weight) end += weight_time(rank, own.weights + weight);
    if (end <= needed) return false;
    return needed - own.time <= slack(rank);
  }

  int num_microbatches_, memory_limit_;
  PlanTimes times_;
  Switches switches_;
  std::vector<Rank> ranks_;
};

ir::Rows plan_rows(const Shape& shape, const PlanTimes& times, int memory_limit) {
  std::vector<PlanTimes> planned_times = {times};
  // The greedy does not always gain from what it knows about single microbatches.
  if (!times.microbatch_scale.empty()) planned_times.push_back({times.stages});
  ir::Rows best;
  int64_t least = 0;
  for (const PlanTimes& planned : planned_times) {
    for (int number = 0; number < 8; ++number) {
      Plan plan(shape, planned, memory_limit,
                {(number & 1) != 0, (number & 2) != 0, (number & 4) != 0});
      if (!plan.run()) continue;
      ir::Rows rows = std::move(plan).rows();
      const int64_t cost = plan_cost(ir::Placement::loop(shape.ranks, shape.stages),
                                     shape.microbatches, times, rows);
      if (!best.empty() && cost >= least) continue;
      least = cost;
      best = std::move(rows);
    }
  }
  PW_CHECK(!best.empty(), "memory for P activations suffices for one stage per rank");
  return best;
}

ir::Rows plan_1p(const Shape& shape, const PlanTimes& times) {
  return plan_rows(shape, times, kForwardMemory * shape.ranks);
}
ir::Rows plan_2p(const Shape& shape, const PlanTimes& times) {
  return plan_rows(shape, times, kForwardMemory * 2 * shape.ranks);
}

constexpr Constraint kConstraints[] = {kOneStageARank};

}  // namespace

const ScheduleSpec kZb1p = {
    .name = "ZB-1p",
    .aliases = {},
    .source = "arXiv 2401.10241",
    .pattern = Pattern::kLoop,
    .default_stages_per_rank = 1,
    .splits_backward = true,
    .bubble = "least that a greedy finds for the given times",
    .memory = "P, where I frees one half and W the other",
    .constraints = kConstraints,
    .plan_rows = plan_1p,
};

const ScheduleSpec kZb2p = {
    .name = "ZB-2p",
    .aliases = {},
    .source = "arXiv 2401.10241",
    .pattern = Pattern::kLoop,
    .default_stages_per_rank = 1,
    .splits_backward = true,
    .bubble = "least that a greedy finds for the given times",
    .memory = "2P, where I frees one half and W the other",
    .constraints = kConstraints,
    .plan_rows = plan_2p,
};

}  // namespace pipewright::schedules
