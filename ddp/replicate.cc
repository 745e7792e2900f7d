#include "pipewright/ddp/replicate.h"

#include <utility>

#include "pipewright/ddp/replicated_unit.h"

namespace pipewright::ddp {

std::shared_ptr<Replicated> replicate(const std::vector<torch::nn::Module*>& modules,
                                      comms::BackendPtr group, Options options) {
  const auto unit = std::make_shared<ReplicatedUnit>(modules, std::move(group), std::move(options));
  unit->begin(modules);
  return unit;
}

}  // namespace pipewright::ddp
