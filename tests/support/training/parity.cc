#include "tests/support/training/parity.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <utility>

#include "pipewright/modules/forward.h"

namespace pipewright::tests {
namespace {

// Also of tensors on different devices, and in fp8, which operators do not take.
bool close(const at::Tensor& expected, const at::Tensor& got) {
  if (expected.sizes() != got.sizes() || expected.dtype() != got.dtype()) return false;
  if (at::isFloat8Type(got.scalar_type()))
    return close(expected.to(at::kDouble), got.to(at::kDouble));
  return at::allclose(got, expected.to(got.device()), 1e-9, 1e-11);
}

// Without the prefix of a checkpointing wrapper, as PyTorch's test does.
std::string plain_name(std::string name) {
  const std::string wrapper = std::string(kCheckpointed) + ".";
  const size_t at = name.find(wrapper);
  return at == std::string::npos ? name : name.erase(at, wrapper.size());
}

}  // namespace

OptimizerPtr adam(torch::nn::Module& module) {
  return std::make_unique<torch::optim::Adam>(module.parameters(), torch::optim::AdamOptions(1e-2));
}

OptimizerPtr adam_w(torch::nn::Module& module) {
  return std::make_unique<torch::optim::AdamW>(module.parameters(),
                                               torch::optim::AdamWOptions(1e-2));
}

void average_grads(torch::nn::Module& module, c10d::Backend& group) {
  std::vector<at::Tensor> weights = module.parameters(), used, flat;
  std::erase_if(weights, [](const at::Tensor& weight) {  // these are never trained
    return !weight.is_floating_point() || at::isFloat8Type(weight.scalar_type());
  });
  for (at::Tensor& weight : weights) {
    const bool is_used = weight.grad().defined();
    used.push_back(at::full({1}, is_used, weight.options().requires_grad(false)));
    flat.push_back((is_used ? weight.grad() : at::zeros_like(weight)).reshape(-1));
  }
  std::vector<at::Tensor> all = {at::cat(flat), at::cat(used)};
  for (at::Tensor& tensor : all) {
    std::vector<at::Tensor> sent = {tensor};
    group.allreduce(sent)->wait();
  }
  int64_t number = 0, begin = 0;
  for (at::Tensor& weight : weights) {
    const at::Tensor sum = all[0].narrow(0, begin, weight.numel()).view_as(weight);
    if (all[1][number].item<double>() > 0) weight.mutable_grad() = sum / group.getSize();
    begin += weight.numel();
    ++number;
  }
}

std::string difference(const torch::nn::Module& expected, const torch::nn::Module& got,
                       const Part& part) {
  const auto part_of = [&](const at::Tensor& whole) { return part ? part(whole) : whole; };
  const auto left = expected.named_parameters(), right = got.named_parameters();
  if (left.size() != right.size()) return "different numbers of parameters";
  for (size_t i = 0; i < left.size(); ++i) {
    const std::string& name = left[i].key();
    if (name != plain_name(right[i].key())) return name + " is " + right[i].key();
    if (!close(part_of(left[i].value()), right[i].value())) return name + " differs";
    const at::Tensor &one = left[i].value().grad(), &other = right[i].value().grad();
    if (one.defined() != other.defined()) return "one gradient of " + name + " is undefined";
    if (one.defined() && !close(part_of(one), other)) return "the gradient of " + name + " differs";
  }
  return "";
}

Loss sum_of(std::vector<int64_t> sizes) {
  return [sizes](const ModulePtr& module, int iteration, int rank) {
    return modules::forward(module, random_input(sizes, data_seed(iteration, rank))).sum();
  };
}

Loss sum_of_tokens(std::vector<int64_t> sizes, int64_t vocabulary) {
  return [=](const ModulePtr& module, int iteration, int rank) {
    const at::Tensor tokens = random_tokens(sizes, vocabulary, data_seed(iteration, rank));
    return modules::forward(module, tokens).sum();
  };
}

Parity::Parity(Rank& self, ModulePtr plain, ModulePtr module, Part part,
               OptimizerPtr (*make_optimizer)(torch::nn::Module&))
    : self_(self),
      plain_(std::move(plain)),
      module_(std::move(module)),
      part_(std::move(part)),
      plain_optimizer_(make_optimizer(*plain_)),
      optimizer_(make_optimizer(*module_)) {}

std::string Parity::difference() const { return tests::difference(*plain_, *module_, part_); }

void Parity::zero_grad(int iteration) {
  const bool to_none = iteration % 2 == 0;
  plain_optimizer_->zero_grad(to_none);
  optimizer_->zero_grad(to_none);
}

void Parity::backward(const Loss& loss, int iteration) {
  const at::Tensor expected = loss(plain_, iteration, self_.rank);
  const at::Tensor got = loss(module_, iteration, self_.rank);
  self_.be_late(Late::kAfterForward);
  EXPECT_TRUE(at::allclose(expected, got, 1e-9, 1e-11)) << iteration;
  expected.backward();
  got.backward();
}

void Parity::step() {
  average_grads(*plain_, *self_.by_hand);
  self_.be_late(Late::kBeforeStep);
  EXPECT_EQ(difference(), "") << "after backward";
  plain_optimizer_->step();
  optimizer_->step();
  EXPECT_EQ(difference(), "") << "after step";
}

void Parity::train(const Loss& loss, const std::function<void(int iteration)>& each) {
  for (int iteration = 0; iteration < 10; ++iteration) {
    zero_grad(iteration);
    if (each) each(iteration);
    backward(loss, iteration);
    step();
  }
}

void train_whole_and_part(Parity& parity) {
  const Loss of_whole = sum_of({4, 32});
  const Loss of_part = [&](const ModulePtr& module, int iteration, int rank) {
    return of_whole(std::dynamic_pointer_cast<TestModule>(module->parts()[0]), iteration, rank);
  };
  for (int iteration = 0; iteration < 10; ++iteration) {
    for (const Loss& loss : {of_whole, of_part}) {
      parity.zero_grad(iteration);
      parity.backward(loss, iteration);
      parity.step();
    }
  }
}

}  // namespace pipewright::tests
