#ifndef PIPEWRIGHT_COMMS_PROCESS_ENVIRONMENT_H_
#define PIPEWRIGHT_COMMS_PROCESS_ENVIRONMENT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace pipewright::comms {

// The name of this machine, as `uname -n` prints it, or "unknown" if it has none that fits into 255
// characters. No LibTorch.
std::string host_name();

// The first host of a Slurm node list, which `scontrol show hostnames` prints first: node03 of
// "node[03-05,9],x1", rack1n3 of "rack[1-2]n[3-4]". Empty if `list` has no host or is malformed.
std::string first_host(const std::string& list);

// The rank, world size and rendezvous address of this process, read from the environment variables
// of its launcher. No LibTorch. The first of these whose variables are set is used:
//
//   torchrun, `pipewright launch`   RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
//   mpirun, mpiexec                 OMPI_COMM_WORLD_RANK and _SIZE, MV2_COMM_WORLD_RANK and _SIZE,
//                                   or PMI_RANK and PMI_SIZE, each with its variable of the local
//                                   rank; MASTER_ADDR, MASTER_PORT
//   Slurm's srun                    SLURM_PROCID, SLURM_STEP_NUM_TASKS or else SLURM_NTASKS,
//                                   SLURM_LOCALID; the master address is the first host of
//                                   SLURM_STEP_NODELIST, or else of SLURM_JOB_NODELIST; the port is
//                                   derived from SLURM_JOB_ID and SLURM_STEP_ID
//   none                            a world of one process
//
// RANK and WORLD_SIZE must be set together, except that either may accompany the variables of
// another launcher, and must agree with them. Both together must agree with mpirun's, unless
// LOCAL_WORLD_SIZE says that torchrun or `pipewright launch` has set them, which mpirun may start.
// srun's may differ from mpirun's: mpirun starts its daemons with srun. Under srun, MASTER_ADDR and
// MASTER_PORT override the derived address and port.
//
// A process that Slurm's batch script starts without srun is a world of one process if the job has
// one task. Otherwise it is refused: nobody would start the other ranks.

struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the ranks of this machine; also the index of the GPU
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = 0;  // 0 in a world of one process, which needs no port
  // Whether torchrun's agent hosts the store, so that rank 0 must not.
  bool agent_has_store = false;
  // How often torchrun has restarted the ranks with the same store.
  int restarts = 0;
  std::string master_variable = "MASTER_ADDR";  // that master_addr was read from, for errors
};

// Looks up a variable; nullopt if it is not set.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;
// Looks up variables of this process. Call it on any thread, as long as none calls setenv.
Variables variables_of_process();

// Throws std::invalid_argument naming the variable, its value and the expected one, or both
// variables and values if two contradict each other.
Environment read_environment(const Variables& variables);
// Reads variables_of_process().
Environment read_environment();

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_PROCESS_ENVIRONMENT_H_
