#ifndef PIPEWRIGHT_EXAMPLES_PROGRAM_H_
#define PIPEWRIGHT_EXAMPLES_PROGRAM_H_

#include <string>

#include "examples/options.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/problem/layers.h"

namespace pipewright::examples {

// The verified program of --schedule: a name of the catalogue, or a file that `pipewright` writes
// or that is written by hand, whose ranks and microbatches are those of --pp and --microbatches.
// Throws UsageError for a name or a shape that there is not, for a file with errors, all of which
// it shows, for one that names stages that recompute if --activation-checkpointing does so too, and
// for one whose cut is not of this model or comes with --balance; std::runtime_error if the file
// cannot be read.
ir::Program make_program(const Options& options);

// The blocks of each stage for the program's cut, which is of the blocks, or of all layers: the
// embedding, the blocks, the output layer, as `pipewright costs` has them. Empty if it has no cut.
// Embedding and output layer are in the first and the last stage whatever it says.
schedule::Cut blocks_of(const ir::Program& program, int64_t num_blocks);

// "stage 1", "stages 0, 2": those of program.recompute or program.offload.
std::string stages_text(const std::vector<int>& stages);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_PROGRAM_H_
