#include "pipewright/comms/gpu_index.h"

#include <stdexcept>
#include <string>

namespace pipewright::comms {

int gpu_index(const Environment& environment, int visible_gpus) {
  if (visible_gpus == 1) return 0;
  if (environment.local_rank < visible_gpus) return environment.local_rank;
  throw std::invalid_argument("GPU of local rank " + std::to_string(environment.local_rank) +
                              ": expected one visible GPU, or at least " +
                              std::to_string(environment.local_rank + 1) + ", got " +
                              std::to_string(visible_gpus));
}

}  // namespace pipewright::comms
