#include "pipewright/schedules/dualpipe_v.h"

#include <deque>

#include "pipewright/schedules/constraints.h"

namespace pipewright::schedules {
namespace {

// Builds the row of one rank. Arm 0 is the rank's stage on the way down the V, arm 1 the one on the
// way up. On each arm, forwards and backwards take the microbatches in ascending order.
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
  // An I, whose W becomes pending.
  void input(int arm) {
    const int microbatch = backwards_[arm]++;
    row_->emplace_back(ir::ActionKind::kBackwardInput, stages_[arm], microbatch);
    pending_.emplace_back(ir::ActionKind::kBackwardWeight, stages_[arm], microbatch);
  }
  // The oldest pending W, if any.
  void weight() {
    if (pending_.empty()) return;
    row_->emplace_back(pending_.front());
    pending_.pop_front();
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
  std::deque<ir::ActionPart> pending_;  // Ws whose I has run, oldest first
  ir::Row* row_;
};

// The eight phases of DualPipe, as in deepseek-ai/DualPipe's dualpipev.py. F0 is a forward on arm
// 0, I1 an I on arm 1, F1&B0 a compound; W is the oldest pending weight half.
ir::Row make_row(const Shape& shape, int rank) {
  const int below = shape.ranks - 1 - rank;  // ranks further down the V
  ir::Row row;
  Builder builder(shape, rank, &row);

  // 1: F0
  for (int i = 0; i < 2 * below; ++i) builder.forward(0);
  // 2: F0 F1
  for (int i = 0; i < rank + 1; ++i) {
    builder.forward(0);
    builder.forward(1);
  }
  // 3: I1 W F1
  for (int i = 0; i < below; ++i) {
    builder.input(1);
    builder.weight();
    builder.forward(1);
  }
  // 4, the steady state: F0&B1 F1&B0
  for (int i = 0; i < shape.microbatches - 2 * shape.ranks + rank + 1; ++i) {
    // Both stages at the tip of the V are on the last rank: its first F0 and B1 have no
    // communication to hide.
    if (i == 0 && below == 0) {
      builder.forward(0);
      builder.backward(1);
    } else {
      builder.overlap(0, 1);
    }
    builder.overlap(1, 0);
  }
  // 5: B1 F1&B0
  for (int i = 0; i < below; ++i) {
    builder.backward(1);
    builder.overlap(1, 0);
  }
  // 6: B1 B0. From the middle of this phase on, backwards are split to leave Ws for the end.
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
  // 7: W I0
  for (int i = 0; i < below; ++i) {
    builder.weight();
    backward(0);
  }
  // 8: W
  for (int i = 0; i < rank + 1; ++i) builder.weight();
  return row;
}

constexpr Constraint kConstraints[] = {
    kTwoStagesARank,
    {"microbatches >= stages", "both arms of the V must fill before they overlap",
     [](const Shape& shape) { return shape.microbatches >= shape.stages; }},
};
constexpr std::string_view kAliases[] = {"ScheduleDualPipeV"};

}  // namespace

const ScheduleSpec kDualPipeV = {
    .name = "DualPipeV",
    .aliases = kAliases,
    .source = "github.com/deepseek-ai/DualPipe",
    .pattern = Pattern::kV,
    .default_stages_per_rank = 2,
    .splits_backward = true,
    .bubble = "(P-1)(F&B + B - 3W)",
    .bubble_where = "F&B = F+B, F = I and W <= F",
    .memory = "2P+1",
    .constraints = kConstraints,
    .make_row = make_row,
};

}  // namespace pipewright::schedules
