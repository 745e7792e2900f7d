#include "pipewright/modules/forward_tensors.h"

#include <stdexcept>
#include <string>

namespace pipewright::modules::forward_tensors_internal {
namespace {

std::string to_string(const NumTensors& numbers) {
  return (numbers.or_more ? "at least " : "") + std::to_string(numbers.least);
}

}  // namespace

// "expected 1 or 3 tensors, got 2".
void refuse(const torch::nn::Module& module, std::vector<NumTensors> expected, size_t got) {
  for (const NumTensors open : std::vector(expected)) {
    if (!open.or_more) continue;
    std::erase_if(expected, [&](const NumTensors& each) {
      return !each.or_more && each.least >= open.least;
    });
  }
  std::string text;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (i > 0) text += i + 1 == expected.size() ? " or " : ", ";
    text += to_string(expected[i]);
  }
  throw std::invalid_argument("forward of " + module.name() + ": expected " + text +
                              (text == "1" ? " tensor" : " tensors") + ", got " +
                              std::to_string(got));
}

}  // namespace pipewright::modules::forward_tensors_internal
