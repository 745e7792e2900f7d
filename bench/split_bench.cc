// Measures the cost of splitting a backward: I and W against one B, for 4 layers of Linear and ReLU
// of several widths on one intra-op thread.
//
//   bazel run //bench:split_bench
//
// Prints the lower quartiles of B and of I + W in microseconds, over 600 pairs run alternately,
// then by how many percent I + W is slower: the ratio of the quartiles and the median ratio of the
// pairs. The same for F and B of these layers as one checkpointed part, against F, F and B. Then
// the memory that one microbatch uses after F and between I and W, in units of one activation,
// [batch, width] floats.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/executor/module_stage.h"
#include "tests/support/meter/meter.h"

namespace pipewright::executor {
namespace {

struct Mlp {
  explicit Mlp(int64_t width) {
    for (int layer = 0; layer < 4; ++layer) {
      weights.push_back((at::randn({width, width}) / width).set_requires_grad(true));
      weights.push_back(at::zeros({width}).set_requires_grad(true));
    }
  }
  Tensors forward(const Tensors& inputs) const {
    at::Tensor x = inputs[0];
    for (size_t i = 0; i < weights.size(); i += 2)
      x = at::relu(at::linear(x, weights[i], weights[i + 1]));
    return {x};
  }
  Tensors weights;
};

double microseconds(const auto& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

double quantile(std::vector<double> values, double at) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(at * static_cast<double>(values.size() - 1))];
}

void time_split(int64_t width, int64_t batch) {
  const Mlp mlp(width);
  ModuleStage stage([&](const Tensors& inputs) { return mlp.forward(inputs); });
  const at::Tensor x = at::randn({batch, width}).set_requires_grad(true);
  const at::Tensor grad = at::randn({batch, width});
  std::vector<double> whole, split, ratios;
  for (int pair = 0; pair < 600; ++pair) {
    stage.forward(0, {x});
    whole.push_back(microseconds([&] { stage.backward(0, {grad}); }));
    stage.forward(0, {x});
    split.push_back(microseconds([&] {
      stage.backward_input(0, {grad});
      stage.backward_weight(0);
    }));
    ratios.push_back(split.back() / whole.back());
  }
  std::printf(
      "width %4lld, batch %lld: B %.0f us, I + W %.0f us (lower quartiles: %+.1f %%; median "
      "of pairs: %+.1f %%)\n",
      static_cast<long long>(width), static_cast<long long>(batch), quantile(whole, 0.25),
      quantile(split, 0.25), 100 * (quantile(split, 0.25) / quantile(whole, 0.25) - 1),
      100 * (quantile(ratios, 0.5) - 1));
}

// Against the same work without a checkpoint: F twice, and B.
void time_checkpointed(int64_t width, int64_t batch) {
  const Mlp mlp(width);
  ModuleStage plain([&](const Tensors& inputs) { return mlp.forward(inputs); });
  ModuleStage checkpointed([&](const Tensors& inputs) {
    return autograd::checkpoint([&](const Tensors& in) { return mlp.forward(in); }, inputs);
  });
  const at::Tensor x = at::randn({batch, width}).set_requires_grad(true);
  const at::Tensor grad = at::randn({batch, width});
  std::vector<double> ratios;
  for (int pair = 0; pair < 600; ++pair) {
    const double twice = microseconds([&] {
      {
        const c10::NoGradGuard no_grad;
        mlp.forward({x});
      }
      plain.forward(0, {x});
      plain.backward(0, {grad});
    });
    const double part = microseconds([&] {
      checkpointed.forward(0, {x});
      checkpointed.backward(0, {grad});
    });
    ratios.push_back(part / twice);
  }
  std::printf("width %4lld, batch %lld: checkpointed F + B against F + F + B: %+.1f %%\n",
              static_cast<long long>(width), static_cast<long long>(batch),
              100 * (quantile(ratios, 0.5) - 1));
}

void measure_memory(int64_t width, int64_t batch) {
  const Mlp mlp(width);
  ModuleStage stage([&](const Tensors& inputs) { return mlp.forward(inputs); });
  const at::Tensor x = at::randn({batch, width}).set_requires_grad(true);
  const at::Tensor grad = at::randn({batch, width});
  const tests::Meter meter;
  const double activation = static_cast<double>(batch * width * 4);
  stage.forward(0, {x});
  const double after_forward = static_cast<double>(meter.bytes()) / activation;
  stage.backward_input(0, {grad});
  const double after_input = static_cast<double>(meter.bytes()) / activation;
  std::printf("width %4lld: held after F %.2f activations [batch, width], between I and W %.2f\n",
              static_cast<long long>(width), after_forward, after_input);
  stage.clear();
}

}  // namespace
}  // namespace pipewright::executor

int main() {
  at::set_num_threads(1);
  for (const int64_t width : {64, 128, 256, 512, 1024}) pipewright::executor::time_split(width, 64);
  for (const int64_t width : {16, 64, 256}) pipewright::executor::time_checkpointed(width, 16);
  pipewright::executor::measure_memory(512, 64);
}
