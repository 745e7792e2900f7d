#include "pipewright/schedule/bounds/chain.h"

namespace pipewright::schedule {

Chain::Chain(const Problem& problem, int microbatch) {
  const auto stages = static_cast<size_t>(problem.num_stages());
  for (const StageWork& work : problem.stages) {
    forward_.push_back(problem.scaled(work.forward, microbatch));
    backward_input_.push_back(problem.scaled(work.backward_input, microbatch));
    backward_weight_.push_back(problem.scaled(work.backward_weight, microbatch));
  }
  forward_start_.resize(stages);
  backward_end_.resize(stages);
  for (size_t stage = 0; stage < stages; ++stage) {
    forward_start_[stage] = turn_;
    turn_ += forward_[stage];
    if (stage + 1 < stages) turn_ += problem.stages[stage].output_transfer;
  }
  Ticks time = 0;
  for (size_t stage = stages; stage-- > 0;) {
    if (stage + 1 < stages) time += problem.stages[stage + 1].gradient_transfer;
    time += backward_input_[stage];
    backward_end_[stage] = time;
  }
}

}  // namespace pipewright::schedule
