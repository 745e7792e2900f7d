#ifndef PIPEWRIGHT_PYTHON_TORCH_WORLD_H_
#define PIPEWRIGHT_PYTHON_TORCH_WORLD_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/comms/world.h"
#include "pipewright/python/torch/interrupts.h"

namespace pipewright::python {

// The world of a Python process: over Gloo, with a store that rank 0 hosts. Methods are called
// without the GIL. For one thread at a time.
class World {
 public:
  // Rank 0 returns at once; the others when they are connected. Throws std::runtime_error if
  // that fails, on rank 0 also if the port is taken.
  World(int rank, int size, const std::string& host, uint16_t port, int restarts,
        std::chrono::milliseconds timeout);
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
