#include "pipewright/tp/input_check.h"

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pipewright/comms/agreement.h"

namespace pipewright::tp {
namespace {

std::string describe(size_t index, const at::Tensor& input) {
  const std::string name = "input " + std::to_string(index) + " of the parallelized module, ";
  if (!input.defined()) return name + "undefined";
  const at::Tensor values = input.detach().cpu().contiguous();
  const std::string_view bytes(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  return c10::str(name, input.scalar_type(), " ", input.sizes(), " with hash ",
                  std::hash<std::string_view>()(bytes));
}

class InputCheck final : public modules::ForwardHook {
 public:
  explicit InputCheck(comms::BackendPtr group) : group_(std::move(group)) {}

  modules::Tensors run(const torch::nn::Module* /*module*/, const Function& forward,
                       modules::Tensors inputs) override {
    std::vector<std::string> lines;
    at::Device device = at::kCPU;
    for (const at::Tensor& input : inputs) {
      if (input.defined()) device = input.device();
      lines.push_back(describe(lines.size(), input));
    }
    comms::compare_lines(lines, *group_, device);
    return forward(inputs);
  }

 private:
  const comms::BackendPtr group_;
};

}  // namespace

std::shared_ptr<modules::ForwardHook> input_check(comms::BackendPtr group) {
  return std::make_shared<InputCheck>(std::move(group));
}

}  // namespace pipewright::tp
