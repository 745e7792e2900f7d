#include "pipewright/fsdp/layouts.h"

#include "pipewright/fsdp/sharded_unit.h"
#include "pipewright/modules/unit_tensors.h"

namespace pipewright::fsdp {
namespace {

comms::LocalLayout layout_of(const ShardedUnit& unit, const at::Tensor& tensor) {
  for (const ShardedParam& param : unit.params().params()) {
    if (param.registered.is_same(tensor)) return unit.layout(param.sizes, param.dim);
  }
  return unit.layout(tensor.sizes().vec(), std::nullopt);
}

}  // namespace

std::map<std::string, comms::LocalLayout> layouts(const torch::nn::Module& module) {
  std::map<std::string, comms::LocalLayout> result;
  modules::for_each_unit_tensor(
      module, sharded_modules(),
      [&](const ShardedUnit& unit, const std::string& name, const at::Tensor& tensor) {
        result.emplace(name, layout_of(unit, tensor));
      });
  return result;
}

}  // namespace pipewright::fsdp
