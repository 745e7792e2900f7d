#include "pipewright/schedules/zbv_zero_bubble.h"

#include <algorithm>

#include "pipewright/schedules/constraints.h"

namespace pipewright::schedules {
namespace {

// One of the two stages of a rank, which takes its microbatches in order.
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
  const int made = std::max(2 * ranks - 1, shape.microbatches);
  ir::Row row(static_cast<size_t>(rank));
  Arm down(rank, shape.microbatches, &row);
  Arm up(shape.stages - 1 - rank, shape.microbatches, &row);

  // Warm-up: until both arms of the V are full.
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
  while (up.forwards() < down.forwards() || down.forwards() < made) {
    if (down.forwards() < made) down.forward();
    down.input();
    down.weight();
    up.forward();
    up.input();
    up.weight();
  }
  // Cool-down: Ws are kept back where an I is waited for.
  for (int i = 0; i < rank; ++i) {
    down.input();
    up.input();
  }
  for (int i = 0; i < ranks - rank; ++i) {
    down.input();
    down.weight();
  }
  while (up.weights() < made) up.weight();
  while (down.weights() < made) down.weight();
  return row;
}

constexpr Constraint kConstraints[] = {kTwoStagesARank};
constexpr std::string_view kAliases[] = {"ZBV", "ZB-V"};

}  // namespace

const ScheduleSpec kZbvZeroBubble = {
    .name = "ZBVZeroBubble",
    .aliases = kAliases,
    .source = "arXiv 2401.10241",
    .pattern = Pattern::kV,
    .default_stages_per_rank = 2,
    .splits_backward = true,
    .bubble = "0 where F = I = W",
    .memory = "min(2P, 2M, M+1+r)",
    .constraints = kConstraints,
    .make_row = make_row,
};

}  // namespace pipewright::schedules
