#ifndef PIPEWRIGHT_PYTHON_TORCH_WORLD_H_
#define PIPEWRIGHT_PYTHON_TORCH_WORLD_H_

#include <chrono>
#include <memory>
#include <optional>

#include "pipewright/comms/world.h"
#include "pipewright/python/torch/interrupts.h"
#include "pipewright/python/torch/nccl.h"

namespace pipewright::python {

// The world of a Python process, with a store that rank 0 hosts: over Gloo on the CPU, and over
// NCCL on a GPU. Methods are called without the GIL. For one thread at a time.
class World {
 public:
  // Rank 0 returns at once; the others when they are connected. `nccl` is null on the CPU. Throws
  // std::runtime_error if that fails, on rank 0 also if the port is taken.
  World(const comms::Environment& environment, std::chrono::milliseconds timeout, at::Device device,
        NcclBackends nccl);
  ~World();

  // Throws ContractError after close().
  comms::World& get();
  const Interrupts& interrupts();
  // Leaves the world. Executors of it must be gone.
  void close();

 private:
  std::optional<comms::World> world_;
  std::optional<Interrupts> interrupts_;
};

}  // namespace pipewright::python

#endif  // PIPEWRIGHT_PYTHON_TORCH_WORLD_H_
