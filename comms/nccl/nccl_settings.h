#ifndef PIPEWRIGHT_COMMS_NCCL_NCCL_SETTINGS_H_
#define PIPEWRIGHT_COMMS_NCCL_NCCL_SETTINGS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/comms/nccl/nccl_options.h"
#include "pipewright/comms/process/environment.h"

namespace pipewright::comms {

// The index of this process's GPU among those that it sees: its local rank, or 0 if the launcher
// shows each process only its own (Slurm's --gpus-per-task=1). Throws std::invalid_argument if it
// sees no GPU, or several but none for its local rank.
int gpu_index(const Environment& environment, int visible_gpus);

// The world ranks of a process group's members, in the order of their ranks in the group. World
// puts them into the name that a backend receives: {0, 4} for "dp[0,4]#0". Throws
// std::invalid_argument if the name has none.
std::vector<int> members_of(const std::string& group_name);

// The variables that nccl_backends() sets in the environment of this process, and their values:
// TORCH_NCCL_ASYNC_ERROR_HANDLING = 0, as PyTorch asks of those who abort communicators
// (torch.distributed._abort_process_group). Otherwise its watchdog ends the process a minute after
// an error, even if World::reset() has succeeded. A variable that the user has set stays as it
// is; torchrun sets this one to 1 for all its processes, so that is no choice of the user's.
std::map<std::string, std::string> nccl_environment(const Variables& variables);

// What nccl_backends() warns of: CUDA_DEVICE_MAX_CONNECTIONS below CUDA's default of 8. Empty:
// nothing.
std::string nccl_warning(const Variables& variables);

// The path of PyTorch's flight recorder of NCCL's operations, less the world rank that ends it:
// that of PyTorch, but with `nccl_` before the file's name where TORCH_FR_DUMP_TEMP_FILE is set:
// the executor's own dump has that name (executor/hang/watchdog.h).
std::string nccl_trace_prefix(const Variables& variables);

// What nccl.cc sets in the options of a ProcessGroupNCCL: plain values, so that they are tested
// without CUDA.
struct NcclSettings {
  bool high_priority_stream = false;
  std::chrono::milliseconds timeout{};
  std::string name, description;
  std::vector<uint64_t> global_ranks;
  std::optional<int> min_ctas, max_ctas, blocking;  // nullopt: NCCL's default
};

// The time limit of NCCL's own watchdog for each operation, in a world with the limit `world`.
//
// PyTorch's watchdog for NCCL ends the process when an operation is not done at its limit after it
// was enqueued. Ours ends the step with an error that names the cause, but its limit begins later:
// when the host has issued the whole step. So NCCL's comes after a second `world`, for issuing
// the step, and a minute, in which ranks notice the failure, gather their reports and abort. It
// ends only what none of ours can end.
std::chrono::milliseconds nccl_timeout(std::chrono::milliseconds world);

// The settings of the group `name`, as World names it, in a world with the time limit `world`.
// Throws std::invalid_argument if the name lacks its members (nccl_settings.h).
NcclSettings nccl_settings(const std::string& name, const NcclGroupOptions& options,
                           std::chrono::milliseconds world);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_NCCL_NCCL_SETTINGS_H_
