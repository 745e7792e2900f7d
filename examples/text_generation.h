#ifndef PIPEWRIGHT_EXAMPLES_TEXT_GENERATION_H_
#define PIPEWRIGHT_EXAMPLES_TEXT_GENERATION_H_

#include <string>

#include "examples/options.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/executor/executor.h"

namespace pipewright::examples {

// The most likely continuation of `prompt`, of so many bytes. Collective over the world, whatever
// its mesh; returns the same on all ranks. Each byte is one evaluation of the whole pipeline, on
// the last bytes that fit into the context. The prompt must not be empty. The executor forgets the
// shapes of batches.
std::string generate_text(const Options& options, executor::Executor& executor,
                          const comms::Mesh& mesh, comms::World& world, const std::string& prompt,
                          int64_t bytes);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_TEXT_GENERATION_H_
