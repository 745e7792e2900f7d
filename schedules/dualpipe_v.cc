#include "pipewright/schedules/dualpipe_v.h"

#include <deque>

#include "pipewright/schedules/constraints.h"

namespace pipewright::schedules {
namespace {

// The row of a rank while it grows. Arm 0 leads down the V, arm 1 up; each takes its microbatches
// in order.
class Builder {
 public:
  Builder(const Shape& shape, int rank, ir::Row* row)
      : stages_{rank, shape.stages - 1 - rank}, row_(row) {}

  void forward(int arm) { row_->emplace_back(next_forward(arm)); }
  void backward(int arm) { row_->emplace_back(next_backward(arm)); }
  void overlap(int forward_arm, int backward_arm) {
    const ir::ActionPart forward = next_forward(forward_arm);
    row_->push_back(ir::Action::overlap(forward, next_backward(backward_arm)));
  }
  // I, whose W waits.
  void input(int arm) {
    const int microbatch = backwards_[arm]++;
    row_->emplace_back(ir::ActionKind::kBackwardInput, stages_[arm], microbatch);
    waiting_.emplace_back(ir::ActionKind::kBackwardWeight, stages_[arm], microbatch);
  }
  // The oldest W that waits, if any.
  void weight() {
    if (waiting_.empty()) return;
    row_->emplace_back(waiting_.front());
    waiting_.pop_front();
  }

 private:
  ir::ActionPart next_forward(int arm) {
    return {ir::ActionKind::kForward, stages_[arm], forwards_[arm]++};
  }
  ir::ActionPart next_backward(int arm) {
    return {ir::ActionKind::kBackward, stages_[arm], backwards_[arm]++};
  }

  int stages_[2];
  int forwards_[2] = {0, 0};
  int backwards_[2] = {0, 0};
  std::deque<ir::ActionPart> waiting_;
  ir::Row* row_;
};

ir::Row make_row(const Shape& shape, int rank) {
  const int below = shape.ranks - 1 - rank;  // ranks further down the V
  ir::Row row;
  Builder builder(shape, rank, &row);

  for (int i = 0; i < 2 * below; ++i) builder.forward(0);
  for (int i = 0; i < rank + 1; ++i) {
    builder.forward(0);
    builder.forward(1);
  }
  for (int i = 0; i < below; ++i) {
    builder.input(1);
    builder.weight();
    builder.forward(1);
  }
  for (int i = 0; i < shape.microbatches - 2 * shape.ranks + rank + 1; ++i) {
    // The two stages at the tip of the V are neighbours: at first there is nothing to hide.
    if (i == 0 && below == 0) {
      builder.forward(0);
      builder.backward(1);
    } else {
      builder.overlap(0, 1);
    }
    builder.overlap(1, 0);
  }
  for (int i = 0; i < below; ++i) {
    builder.backward(1);
    builder.overlap(1, 0);
  }
  // From the middle on backward is split, so that Ws are left for the end.
  bool split = false;
  const auto backward = [&](int arm) {
    if (split) {
      builder.input(arm);
    } else {
      builder.backward(arm);
    }
  };
  for (int i = 0; i < rank + 1; ++i) {
    const bool middle = i == (rank + 1) / 2;
    split = split || (middle && rank % 2 == 1);
    backward(1);
    split = split || (middle && rank % 2 == 0);
    backward(0);
  }
  for (int i = 0; i < below; ++i) {
    builder.weight();
    backward(0);
  }
  for (int i = 0; i < rank + 1; ++i) builder.weight();
  return row;
}

constexpr Constraint kConstraints[] = {
    kTwoStagesARank,
    {"microbatches >= stages", "both arms of the V must fill before they overlap",
     [](const Shape& shape) { return shape.microbatches >= shape.stages; }},
};

}  // namespace

const ScheduleSpec kDualPipeV = {
    .name = "DualPipeV",
    .aliases = {},
    .source = "github.com/deepseek-ai/DualPipe",
    .pattern = Pattern::kV,
    .default_stages_per_rank = 2,
    .splits_backward = true,
    .bubble = "(P-1)(F&B + B - 3W)",
    .memory = "2P+1",
    .constraints = kConstraints,
    .make_row = make_row,
};

}  // namespace pipewright::schedules
