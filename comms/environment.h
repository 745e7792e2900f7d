#ifndef PIPEWRIGHT_COMMS_ENVIRONMENT_H_
#define PIPEWRIGHT_COMMS_ENVIRONMENT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

// Which process this is, as whoever started it says in the environment. No LibTorch.
//
//   torchrun, `pipewright launch`   RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
//   Slurm's srun                    SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, and the first host
//   of
//                                   SLURM_STEP_NODELIST or SLURM_JOB_NODELIST; the port is made
//                                   from SLURM_JOB_ID and SLURM_STEP_ID
//   neither                         one process
//
// RANK or WORLD_SIZE decides for torchrun's variables, though Slurm's stand beside them.
// MASTER_ADDR and MASTER_PORT, where they are set, hold under Slurm too.

namespace pipewright::comms {

struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // on its machine: which GPU to take
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = 0;  // 0: any, for one process
  // torchrun's agent serves the store, so rank 0 must not.
  bool agent_has_store = false;
  // How often torchrun has started the ranks again, on the same store.
  int restarts = 0;
};

// The value of a variable; none where it is not set.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;

// Throws std::invalid_argument that names the variable, what it holds and what was wanted.
Environment read_environment(const Variables& variables);
// Of this process.
Environment read_environment();

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_ENVIRONMENT_H_
