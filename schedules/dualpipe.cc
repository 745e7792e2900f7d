#include "pipewright/schedules/dualpipe.h"

#include <algorithm>
#include <deque>

#include "pipewright/schedules/constraints.h"

namespace pipewright::schedules {
namespace {

// A stage of a rank, and the first of the microbatches that it runs.
struct Arm {
  int stage;
  int microbatch = 0;
};

// Builds the row of one rank, which has two arms. On each arm, forwards and backwards take the
// microbatches in ascending order.
class Builder {
 public:
  Builder(const Arm& first, const Arm& second, ir::Row* row)
      : stages_{first.stage, second.stage},
        forwards_{first.microbatch, second.microbatch},
        backwards_{first.microbatch, second.microbatch},
        row_(row) {}

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
  int forwards_[2], backwards_[2];      // the next microbatches
  std::deque<ir::ActionPart> pending_;  // Ws whose I has run, oldest first
  ir::Row* row_;
};

// The eight phases of DualPipe, as in deepseek-ai/DualPipe's dualpipe.py and dualpipev.py. Arm 0 is
// the one that begins nearer to the rank. `above` ranks come before it on the way to the place
// where the arms meet, `below` after it; each arm runs `microbatches`. F0 is a forward on arm 0, I1
// an I on arm 1, F1&B0 a compound; W is the oldest pending weight half.
void phases(Builder builder, int above, int below, int microbatches) {
  // 1: F0
  for (int i = 0; i < 2 * below; ++i) builder.forward(0);
  // 2: F0 F1
  for (int i = 0; i < above + 1; ++i) {
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
  for (int i = 0; i < microbatches - above - 2 * below - 1; ++i) {
    // Where the arms meet, the first F0 and B1 have no communication to hide.
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
  for (int i = 0; i < above + 1; ++i) {
    const bool middle = i == (above + 1) / 2;
    split = split || (middle && above % 2 == 1);
    backward(1);
    split = split || (middle && above % 2 == 0);
    backward(0);
  }
  // 7: W I0
  for (int i = 0; i < below; ++i) {
    builder.weight();
    backward(0);
  }
  // 8: W
  for (int i = 0; i < above + 1; ++i) builder.weight();
}

ir::Row make_row(const Shape& shape, int rank) {
  const int half = shape.microbatches / 2, mirrored = shape.ranks - 1 - rank;
  const Arm replicas[] = {{rank, 0}, {mirrored, half}};
  const bool is_first = rank < mirrored;
  const int above = std::min(rank, mirrored);
  ir::Row row;
  phases(Builder(replicas[is_first ? 0 : 1], replicas[is_first ? 1 : 0], &row), above,
         shape.ranks / 2 - 1 - above, half);
  return row;
}

ir::Row make_v_row(const Shape& shape, int rank) {
  ir::Row row;
  phases(Builder({rank}, {shape.stages - 1 - rank}, &row), rank, shape.ranks - 1 - rank,
         shape.microbatches);
  return row;
}

constexpr Constraint kConstraints[] = {
    kOneStageARank,
    kEvenRanks,
    kEvenMicrobatches,
    {"microbatches >= 2 ranks", "both replicas must fill before they overlap",
     [](const Shape& shape) { return shape.microbatches >= 2 * shape.ranks; }},
};
constexpr Constraint kVConstraints[] = {
    kTwoStagesARank,
    {"microbatches >= stages", "both arms of the V must fill before they overlap",
     [](const Shape& shape) { return shape.microbatches >= shape.stages; }},
};
constexpr std::string_view kVAliases[] = {"ScheduleDualPipeV"};

}  // namespace

const ScheduleSpec kDualPipe = {
    .name = "DualPipe",
    .aliases = {},
    .source = "arXiv 2412.19437",
    .pattern = Pattern::kBothWays,
    .default_stages_per_rank = 1,
    .splits_backward = true,
    .bubble = "(P/2-1)(F&B + B - 3W)",
    .bubble_where = "F&B = F+B, F = I and W <= F",
    .memory = "P+1",
    .constraints = kConstraints,
    .make_row = make_row,
};

const ScheduleSpec kDualPipeV = {
    .name = "DualPipeV",
    .aliases = kVAliases,
    .source = "github.com/deepseek-ai/DualPipe",
    .pattern = Pattern::kV,
    .default_stages_per_rank = 2,
    .splits_backward = true,
    .bubble = "(P-1)(F&B + B - 3W)",
    .bubble_where = "F&B = F+B, F = I and W <= F",
    .memory = "2P+1",
    .constraints = kVConstraints,
    .make_row = make_v_row,
};

}  // namespace pipewright::schedules
