#include "pipewright/tp/input_check.h"

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include <functional>
#include <stdexcept>
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
  InputCheck(comms::BackendPtr group, comms::BackendPtr copies, std::string place)
      : group_(std::move(group)), copies_(std::move(copies)), place_(std::move(place)) {}

  modules::Tensors run(const torch::nn::Module* /*module*/, const Function& forward,
                       modules::Tensors inputs) override {
    std::vector<std::string> lines;
    at::Device device = at::kCPU;
    for (const at::Tensor& input : inputs) {
      if (input.defined()) device = input.device();
      lines.push_back(describe(lines.size(), input));
    }
    std::string wrong;
    try {
      comms::compare_lines(lines, *group_, device);
    } catch (const std::invalid_argument& error) {
      wrong = place_ + error.what();
    }
    if (copies_) wrong = comms::first_text(wrong, *copies_, device);
    if (!wrong.empty()) throw std::invalid_argument(wrong);
    return forward(inputs);
  }

 private:
  const comms::BackendPtr group_, copies_;
  const std::string place_;
};

}  // namespace

std::shared_ptr<modules::ForwardHook> input_check(comms::BackendPtr group, comms::BackendPtr copies,
                                                  std::string place) {
  return std::make_shared<InputCheck>(std::move(group), std::move(copies), std::move(place));
}

}  // namespace pipewright::tp
