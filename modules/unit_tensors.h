#ifndef PIPEWRIGHT_MODULES_UNIT_TENSORS_H_
#define PIPEWRIGHT_MODULES_UNIT_TENSORS_H_

#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "pipewright/modules/names.h"
#include "pipewright/modules/registry.h"

namespace pipewright::modules {

// Calls `visit(const Unit& unit, const std::string& name, const at::Tensor& tensor)` for each
// parameter and buffer of a module, with its name in the module and the innermost unit around it.
// Leaves out those without a unit. `outer` and `path` are those of the module itself.
template <typename Unit, typename Visit>
void for_each_unit_tensor(const torch::nn::Module& module,
                          ModuleRegistry<torch::nn::Module, Unit>& units, const Visit& visit,
                          const std::shared_ptr<Unit>& outer = nullptr,
                          const std::string& path = "") {
  const std::shared_ptr<Unit> own = units.find(&module);
  const std::shared_ptr<Unit>& unit = own ? own : outer;
  const auto visit_all = [&](const auto& tensors) {
    for (const auto& named : tensors) {
      if (unit && named.value().defined())
        visit(*unit, join_path(path, named.key()), named.value());
    }
  };
  visit_all(module.named_parameters(/*recurse=*/false));
  visit_all(module.named_buffers(/*recurse=*/false));
  for (const auto& child : module.named_children())
    for_each_unit_tensor(*child.value(), units, visit, unit, join_path(path, child.key()));
}

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_UNIT_TENSORS_H_
