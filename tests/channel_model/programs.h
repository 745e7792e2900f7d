#ifndef PIPEWRIGHT_TESTS_CHANNEL_MODEL_PROGRAMS_H_
#define PIPEWRIGHT_TESTS_CHANNEL_MODEL_PROGRAMS_H_

#include <random>
#include <string>
#include <vector>

#include "pipewright/ir/schedule.h"

// Small programs that run or deadlock, for all tests that must agree on which do.

namespace pipewright::channel_model {

// A program from text: one string per rank, actions separated by blanks.
ir::Program program_of(const ir::Placement& placement, int microbatches,
                       const std::vector<std::string>& rows);

struct Case {
  const char* name;
  ir::Placement placement;
  std::vector<std::string> rows;
  // Verdicts at capacity 0, 1, unbounded: "." runs, "D" deadlocks.
  const char *rank, *peer, *edge;
  bool swaps;
};

// Programs with verdicts that were derived by hand.
const std::vector<Case>& cases();

// A lowered small order whose actions were swapped at random as far as data flow allows.
ir::Program random_program(std::mt19937& random);

}  // namespace pipewright::channel_model

#endif  // PIPEWRIGHT_TESTS_CHANNEL_MODEL_PROGRAMS_H_
