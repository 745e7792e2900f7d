#include "pipewright/python/torch/world.h"

#include <memory>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/gloo/gloo.h"
#include "pipewright/comms/process/environment.h"
#include "pipewright/ir/errors.h"

namespace pipewright::python {
namespace {

comms::Environment environment_of(int rank, int size, const std::string& host, uint16_t port,
                                  int restarts) {
  comms::Environment environment;
  environment.rank = rank;
  environment.world_size = size;
  environment.master_addr = host;
  environment.master_port = port;
  environment.restarts = restarts;
  return environment;
}

}  // namespace

World::World(int rank, int size, const std::string& host, uint16_t port, int restarts,
             std::chrono::milliseconds timeout)
    : world_(comms::gloo_world(environment_of(rank, size, host, port, restarts), timeout)) {
  interrupts_.emplace([failures = world_->failures().weak_from_this()] {
    if (const auto domain = failures.lock()) domain->fail("KeyboardInterrupt");
  });
}

World::~World() { close(); }

comms::World& World::get() {
  if (!world_) throw ContractError("the world has ended");
  return *world_;
}

const Interrupts& World::interrupts() {
  get();
  return *interrupts_;
}

void World::close() {
  interrupts_.reset();
  world_.reset();
}

}  // namespace pipewright::python
