#include "pipewright/python/torch/world.h"

#include <memory>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/gloo/gloo.h"
#include "pipewright/comms/threads/thread_backend.h"
#include "pipewright/ir/errors.h"

namespace pipewright::python {
namespace {

comms::World make_world(const comms::Environment& environment, std::chrono::milliseconds timeout,
                        at::Device device, NcclBackends nccl) {
  if (!nccl) return comms::gloo_world(environment, timeout);
  return comms::world_with_local_groups(environment, timeout, [&](const comms::StorePtr& store) {
    return nccl(environment.rank, device, store, {.timeout = timeout});
  });
}

}  // namespace

World::World(const comms::Environment& environment, std::chrono::milliseconds timeout,
             at::Device device, NcclBackends nccl)
    : world_(make_world(environment, timeout, device, nccl)) {
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
