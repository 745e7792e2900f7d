#ifndef PIPEWRIGHT_TESTS_EXECUTOR_RANDOM_MODELS_H_
#define PIPEWRIGHT_TESTS_EXECUTOR_RANDOM_MODELS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "pipewright/ir/schedule.h"
#include "tests/executor/against_plain.h"

namespace pipewright::executor {

// A random model in two to four stages, and a schedule of the catalogue for two ranks: expressions
// of weights that all microbatches share, Functions with side effects, views, writes in place,
// weights that are outputs, frozen weights, checkpointed parts that use tensors from outside,
// several inputs and outputs, losses that use tensors of the last stage.
struct RandomCase {
  ir::Program program;
  // Makes equal models in each thread and process. Without `checkpoints`, what is checkpointed is
  // computed once.
  std::function<PlainModel(bool checkpoints)> make = {};
  bool checkpoints = false;      // whether a part is checkpointed
  std::string description = {};  // for messages
};

// What a case may have.
struct Allowed {
  bool shares = true;       // microbatches share what is computed once
  bool side_values = true;  // the loss uses what a forward computes and does not return
};
RandomCase draw_case(uint64_t seed, const Allowed& allowed = {});

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_TESTS_EXECUTOR_RANDOM_MODELS_H_
