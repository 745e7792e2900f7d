#ifndef PIPEWRIGHT_EXAMPLES_LEARNING_RATE_H_
#define PIPEWRIGHT_EXAMPLES_LEARNING_RATE_H_

#include <torch/optim/optimizer.h>

#include <cstdint>

namespace pipewright::examples {

// The flags --warmup and --cosine.
struct LearningRatePlan {
  int64_t warmup = 0;   // steps in which the learning rate grows in equal parts to its full value
  bool cosine = false;  // then it falls in half a cosine to a tenth of that, at the last step
};

// By what the learning rate is multiplied in `step` of `steps`, from 0. The k-th of w steps of the
// warm-up has k / w.
double learning_rate_factor(const LearningRatePlan& plan, int64_t step, int64_t steps);

// Calls optimizer.step() with all learning rates multiplied by `factor`. They have their full
// values again when it returns, so those are what a checkpoint has, and a resumed run goes on with
// them.
void scaled_step(torch::optim::Optimizer& optimizer, double factor);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_LEARNING_RATE_H_
