#ifndef PIPEWRIGHT_TESTS_CHANNEL_MODEL_PROGRAMS_H_
#define PIPEWRIGHT_TESTS_CHANNEL_MODEL_PROGRAMS_H_

#include <random>
#include <string>
#include <vector>

#include "pipewright/ir/schedule.h"

// Small programs, some of which deadlock, shared by all tests that check deadlock.

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

// A small lowered order whose actions were swapped at random without violating data flow.
ir::Program random_program(std::mt19937& random);

}  // namespace pipewright::channel_model

#endif  // PIPEWRIGHT_TESTS_CHANNEL_MODEL_PROGRAMS_H_
