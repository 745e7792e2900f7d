#ifndef PIPEWRIGHT_EXAMPLES_RECORDED_STEP_H_
#define PIPEWRIGHT_EXAMPLES_RECORDED_STEP_H_

#include <cstdint>
#include <string>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"

namespace pipewright::examples {

// The figures of a step that was recorded.
struct RecordedStep {
  int64_t step = 0;
  double seconds = 0;           // makespan
  double bubble = 0;            // measured, as a rate
  double predicted_bubble = 0;  // of the simulation with the costs that were recorded
};

// Throws std::runtime_error if no file could be created at `path`.
void check_writable(const std::string& path);

// The figures of a recorded step, executor::Executor::recording(). Also writes the recording to the
// file `path`, unless that is empty, which `pipewright` reads (ir/text/FORMAT.md); an older file is
// replaced at once or stays. Throws checkpoint::FileError.
RecordedStep take_recording(const std::string& path, int64_t step, const ir::Program& program,
                            ir::Timeline measured);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_RECORDED_STEP_H_
