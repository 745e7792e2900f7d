// Operators, training steps and random numbers on the test device have the host's bits, with every
// seed, and without a race.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "tests/device/device.h"

namespace pipewright::testdevice {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr uint64_t kSeeds = 20;

// Runs with the host's attention composed of operators, as a device without a fused kernel does.
struct Environment final : testing::Environment {
  void SetUp() override { at::globalContext().setSDPUseFlash(false); }
};
[[maybe_unused]] testing::Environment* const environment =
    testing::AddGlobalTestEnvironment(new Environment);

struct Operator {
  const char* name;
  Tensors inputs;
  std::function<at::Tensor(const Tensors&)> call;
};

std::vector<Operator> operators() {
  at::manual_seed(11);
  const at::Tensor m = at::randn({5, 5}), v = at::randn({5}), q = at::randn({2, 2, 4, 8});
  const at::Tensor image = at::randn({2, 3, 6, 6});
  const at::Tensor index = at::randint(0, 5, {4}, at::kLong);
  const at::Tensor index2 = at::randint(0, 5, {5, 2}, at::kLong);
  using in = const Tensors&;
  return {
      {"add, mul, div by numbers", {m}, [](in i) { return (i[0] + 1) * 2 / 3 - i[0]; }},
      {"linear", {m, m, v}, [](in i) { return at::linear(i[0], i[1], i[2]); }},
      {"bmm, baddbmm",
       {at::randn({2, 3, 4}), at::randn({2, 4, 3})},
       [](in i) { return at::baddbmm(i[0].bmm(i[1]), i[0], i[1]); }},
      {"addmm, addmv, dot",
       {m, v},
       [](in i) {
         return at::addmm(i[0], i[0], i[0]) + at::addmv(i[1], i[0], i[1]) + at::dot(i[1], i[1]);
       }},
      {"einsum",
       {m, m},
       [](in i) {
         return at::einsum("ij,jk->ik", {i[0], i[1]});
       }},
      {"layer_norm", {m, v, v}, [](in i) { return at::layer_norm(i[0], {5}, i[1], i[2]); }},
      {"rms_norm", {m, v}, [](in i) { return at::rms_norm(i[0], {5}, i[1]); }},
      {"group_norm",
       {at::randn({2, 4, 6}), at::ones({4}), at::zeros({4})},
       [](in i) { return at::group_norm(i[0], 2, i[1], i[2]); }},
      {"softmax, log_softmax", {m}, [](in i) { return i[0].softmax(1) + i[0].log_softmax(0); }},
      {"cross entropy",
       {m, index2.select(1, 0)},
       [](in i) { return at::cross_entropy_loss(i[0], i[1], {}, 1, 2, 0.1); }},
      {"mse", {m, m * 2}, [](in i) { return at::mse_loss(i[0], i[1]); }},
      {"embedding", {m, index}, [](in i) { return at::embedding(i[0], i[1]); }},
      {"index, index_put",
       {m, index},
       [](in i) {
         return i[0].index({i[1], i[1]}).sum() +
                i[0].clone().index_put({i[1]}, at::ones({4, 5}, i[0].options()), true);
       }},
      {"gather, scatter_add",
       {m, index2},
       [](in i) {
         return i[0].gather(1, i[1]).sum() + i[0].scatter_add(1, i[1], i[0].slice(1, 0, 2));
       }},
      {"masked_select", {m}, [](in i) { return i[0].masked_select(i[0] > 0); }},
      {"where, masked_fill",
       {m},
       [](in i) { return at::where(i[0] > 0, i[0], -i[0]) + i[0].masked_fill(i[0] > 0, 2); }},
      {"sort, topk, max",
       {m},
       [](in i) {
         return std::get<0>(i[0].sort(1)) + std::get<0>(i[0].topk(5)) +
                std::get<0>(i[0].max(1, true));
       }},
      {"var, norm, cumsum, prod",
       {m},
       [](in i) { return i[0].var(1) + i[0].norm(2, 1) + i[0].cumsum(0) + i[0].prod(); }},
      {"attention",
       {q, q, q},
       [](in i) { return at::scaled_dot_product_attention(i[0], i[1], i[2], {}, 0, true); }},
      {"gelu, silu, elu, softplus, glu",
       {at::randn({4, 6})},
       [](in i) {
         return at::glu(at::gelu(i[0], "tanh") + at::silu(i[0]) + at::elu(i[0]) +
                        at::softplus(i[0]));
       }},
      {"split, chunk, stack, cat",
       {m},
       [](in i) {
         return at::stack(at::cat({i[0], i[0]}).chunk(2));
       }},
      {"views",
       {m},
       [](in i) {
         return i[0].unfold(0, 2, 1).sum(2) + i[0].flip(0).roll(1, 1).slice(0, 0, 4) +
                i[0].diagonal() + i[0].t().slice(0, 1) + i[0].expand({5, 5}).narrow(0, 0, 1);
       }},
      {"in place on a view",
       {m},
       [](in i) {
         at::Tensor copy = i[0].clone();
         copy.select(0, 1).mul_(3);
         copy.t()[2].add_(1);
         return copy * 2;
       }},
      {"convolution",
       {image, at::randn({4, 3, 3, 3}), at::randn({4})},
       [](in i) { return at::conv2d(i[0], i[1], i[2], 1, 1); }},
      {"convolution without bias",
       {image, at::randn({4, 3, 3, 3})},
       [](in i) { return at::conv2d(i[0], i[1]); }},
      {"complex, conj",
       {at::randn({4}, at::kComplexFloat)},
       [](in i) { return (i[0] * i[0].conj()).abs(); }},
      {"casts",
       {m},
       [](in i) { return i[0].t().to(at::kDouble).contiguous().to(at::kBFloat16).to(at::kFloat); }},
      {"random numbers",
       {m},
       [](in i) {
         return i[0] * at::empty_like(i[0]).normal_() + at::rand({5, 5}, i[0].options()) +
                at::randint(0, 9, {5, 5}, i[0].options());
       }},
      {"dropout", {m}, [](in i) { return std::get<0>(at::native_dropout(i[0], 0.3, true)); }},
      {"_foreach_",
       {m.abs() + 1},
       [](in i) {
         const c10::NoGradGuard no_grad;
         Tensors a = {i[0] * 1, i[0] * 2}, b = {i[0] + 1, i[0] + 2};
         at::_foreach_lerp_(a, b, 0.3);
         at::_foreach_addcdiv_(a, b, b, 0.5);
         at::_foreach_div_(a, 2.0);
         return at::stack(at::_foreach_norm(a));
       }},
      {"out=",
       {m},
       [](in i) {
         const c10::NoGradGuard no_grad;
         at::Tensor out = at::empty({0}, i[0].options());
         at::mm_out(out, i[0], i[0]);
         return out;
       }},
      {"double backward",
       {m},
       [](in i) {
         const at::Tensor y = (i[0].sin() * i[0]).sum();
         return torch::autograd::grad({y}, {i[0]}, {}, true, true)[0];
       }},
  };
}

void seed_generator(at::Device on, uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(on);
  generator.set_current_seed(seed);
}

// The result and the gradients of the inputs, on the host.
Tensors run(const Operator& op, at::Device on) {
  seed_generator(on, 3);
  Tensors inputs;
  for (const at::Tensor& input : op.inputs) {
    inputs.push_back(input.detach().clone().to(on));
    if (input.is_floating_point() || input.is_complex()) inputs.back().requires_grad_();
  }
  const at::Tensor result = op.call(inputs);
  if (result.requires_grad()) result.sum().backward();
  Tensors seen = {result.detach().cpu()};
  for (const at::Tensor& input : inputs)
    if (input.grad().defined()) seen.push_back(input.grad().cpu());
  return seen;
}

void expect_equal(const Tensors& expected, const Tensors& got, const std::string& what) {
  ASSERT_EQ(expected.size(), got.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(at::equal(expected[i], got[i])) << what << ", tensor " << i;
}

TEST(Operators, HaveTheHostsBits) {
  for (const Operator& op : operators()) {
    const Tensors expected = run(op, at::kCPU);
    for (const uint64_t of : {0, 1, 2}) {
      seed(of);
      expect_equal(expected, run(op, device(0)), op.name);
      drain();
      EXPECT_EQ(races(), std::vector<std::string>()) << op.name;
    }
  }
}

TEST(Operators, OfDifferentDevicesAreAnError) {
  seed(0);
  const at::Tensor x = at::ones({2}, device(0)), y = at::ones({2}, device(1));
  EXPECT_ANY_THROW(x + y);
  EXPECT_ANY_THROW(x + at::ones({2}));
  EXPECT_TRUE(at::equal((x + y.to(device(0))).cpu(), at::full({2}, 2.0)));
}

enum class Optimizer { kSgd, kAdamW };

// Three steps; returns the losses, parameters and gradients.
Tensors train(at::Device on, Optimizer kind, double dropout) {
  at::manual_seed(7);
  torch::nn::Sequential model(torch::nn::Embedding(17, 16),
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})),
                              torch::nn::Linear(16, 32), torch::nn::GELU(),
                              torch::nn::Dropout(dropout), torch::nn::Linear(32, 17));
  const at::Tensor tokens = at::randint(0, 17, {32}, at::kLong).to(on);
  const at::Tensor targets = at::randint(0, 17, {32}, at::kLong).to(on);
  model->to(on);
  seed_generator(on, 99);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (kind == Optimizer::kAdamW)
    optimizer = std::make_unique<torch::optim::AdamW>(model->parameters());
  else
    optimizer = std::make_unique<torch::optim::SGD>(model->parameters(),
                                                    torch::optim::SGDOptions(0.1).momentum(0.9));
  Tensors seen;
  forbid_host_syncs(true);
  for (int step = 0; step < 3; ++step) {
    optimizer->zero_grad();
    const at::Tensor loss = torch::nn::functional::cross_entropy(model->forward(tokens), targets);
    loss.backward();
    optimizer->step();
    seen.push_back(loss.detach());
  }
  forbid_host_syncs(false);
  for (const at::Tensor& parameter : model->parameters()) {
    seen.push_back(parameter.detach());
    seen.push_back(parameter.grad());
  }
  for (at::Tensor& tensor : seen) tensor = tensor.cpu();
  return seen;
}

// Masks scale by 1 / (1 - p), which is exact for 0.5.
TEST(Training, HasTheHostsBitsAndNoHostSync) {
  for (const Optimizer optimizer : {Optimizer::kSgd, Optimizer::kAdamW}) {
    for (const double dropout : {0.0, 0.5}) {
      const Tensors expected = train(at::kCPU, optimizer, dropout);
      for (uint64_t of = 0; of < kSeeds; ++of) {
        seed(of);
        const c10::StreamGuard guard(of % 2 == 0 ? c10::Stream(c10::Stream::DEFAULT, device(0))
                                                 : new_stream(0));
        expect_equal(expected, train(device(0), optimizer, dropout),
                     "seed " + std::to_string(of) + ", dropout " + std::to_string(dropout));
        drain();
        EXPECT_EQ(races(), std::vector<std::string>());
      }
    }
  }
}

}  // namespace
}  // namespace pipewright::testdevice
