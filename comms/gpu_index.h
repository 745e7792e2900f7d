#ifndef PIPEWRIGHT_COMMS_GPU_INDEX_H_
#define PIPEWRIGHT_COMMS_GPU_INDEX_H_

#include "pipewright/comms/environment.h"

namespace pipewright::comms {

// The index of this process's GPU among those that it sees: its local rank, or 0 if the launcher
// shows each process only its own (Slurm's --gpus-per-task=1). Throws std::invalid_argument if it
// sees no GPU, or several but none for its local rank.
int gpu_index(const Environment& environment, int visible_gpus);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_GPU_INDEX_H_
