#ifndef PIPEWRIGHT_EXAMPLES_RUN_SUMMARY_H_
#define PIPEWRIGHT_EXAMPLES_RUN_SUMMARY_H_

#include <string>

#include "examples/local_model.h"
#include "examples/options.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/ir/schedule.h"

namespace pipewright::examples {

// What will run, in lines: the model, the mesh, the schedule and its predicted bubble, and for each
// rank of one pipeline its stages, its blocks, and the bytes of its weights, gradients and AdamW's
// state. Collective over the world; equal on all ranks.
std::string summary_of(const Options& options, const ir::Program& program, const LocalModel& model,
                       const comms::Mesh& mesh, comms::World& world);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_RUN_SUMMARY_H_
