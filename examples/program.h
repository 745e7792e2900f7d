#ifndef PIPEWRIGHT_EXAMPLES_PROGRAM_H_
#define PIPEWRIGHT_EXAMPLES_PROGRAM_H_

#include <string>

#include "examples/options.h"
#include "pipewright/ir/schedule.h"

namespace pipewright::examples {

// The verified program of --schedule: a name of the catalogue, or a file that `pipewright` writes
// or that is written by hand, whose ranks and microbatches are those of --pp and --microbatches.
// Throws UsageError for a name or a shape that there is not, for a file with errors, all of which
// it shows, and for one that names stages that recompute if --activation-checkpointing does so too;
// std::runtime_error if the file cannot be read.
ir::Program make_program(const Options& options);

// "stages 0, 2": those of program.recompute.
std::string recompute_text(const ir::Program& program);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_PROGRAM_H_
