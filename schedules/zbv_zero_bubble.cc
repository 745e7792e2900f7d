#include "pipewright/schedules/zbv_zero_bubble.h"

#include <algorithm>

#include "pipewright/schedules/constraints.h"

namespace pipewright::schedules {
namespace {

// One of the two stages of a rank. Each kind of action takes the microbatches in ascending order;
// an action of a microbatch that does not exist is appended as an idle slot.
class Arm {
 public:
  Arm(int stage, int num_microbatches, ir::Row* row)
      : stage_(stage), num_microbatches_(num_microbatches), row_(row) {}

  void forward() { add(ir::ActionKind::kForward, forwards_++); }
  void input() { add(ir::ActionKind::kBackwardInput, inputs_++); }
  void weight() { add(ir::ActionKind::kBackwardWeight, weights_++); }
  int forwards() const { return forwards_; }
  int weights() const { return weights_; }

 private:
  void add(ir::ActionKind kind, int microbatch) {
    row_->push_back(microbatch < num_microbatches_ ? ir::Action(kind, stage_, microbatch)
                                                   : ir::Action());
  }

  int stage_, num_microbatches_;
  ir::Row* row_;
  int forwards_ = 0, inputs_ = 0, weights_ = 0;
};

ir::Row make_row(const Shape& shape, int rank) {
  const int ranks = shape.ranks;
  const int generated = std::max(2 * ranks - 1, shape.microbatches);  // microbatches
  ir::Row row(static_cast<size_t>(rank));
  Arm down(rank, shape.microbatches, &row);
  Arm up(shape.stages - 1 - rank, shape.microbatches, &row);

  // Warm-up: fill both arms of the V.
  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) down.forward();
  for (int i = 0; i < rank; ++i) {
    up.forward();
    down.forward();
  }
  for (int i = 0; i < ranks - rank; ++i) {
    up.forward();
    up.input();
    up.weight();
  }
  // Steady state.
  while (up.forwards() < down.forwards() || down.forwards() < generated) {
    if (down.forwards() < generated) down.forward();
    down.input();
    down.weight();
    up.forward();
    up.input();
    up.weight();
  }
  // Cool-down: Is first, because other ranks wait for them; Ws fill the rest.
  for (int i = 0; i < rank; ++i) {
    down.input();
    up.input();
  }
  for (int i = 0; i < ranks - rank; ++i) {
    down.input();
    down.weight();
  }
  while (up.weights() < generated) up.weight();
  while (down.weights() < generated) down.weight();
  return row;
}

constexpr Constraint kConstraints[] = {kTwoStagesARank};
constexpr std::string_view kAliases[] = {"ZBV", "ZB-V", "ScheduleZBVZeroBubble"};

}  // namespace

const ScheduleSpec kZbvZeroBubble = {
    .name = "ZBVZeroBubble",
    .aliases = kAliases,
    .source = "arXiv 2401.10241",
    .pattern = Pattern::kV,
    .default_stages_per_rank = 2,
    .splits_backward = true,
    .bubble = "2 max(0, 2P-1-M) F",
    .bubble_where = "F = I = W",
    .memory = "min(2P, 2M, M+1+r)",
    .constraints = kConstraints,
    .make_row = make_row,
};

}  // namespace pipewright::schedules
