// The overlap of a column-parallel layer's backward where replicate or activation checkpointing
// works in the same backward, and where several layers share a communication.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/modules/forward.h"
#include "pipewright/tp/parallelize.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"
#include "tests/tp/noted_group.h"
#include "tests/tp/whole_model.h"

namespace pipewright::tp {
namespace {

namespace nn = torch::nn;
using comms::Mesh;
using tests::on_ranks;
using tests::Rank;

enum class Around { kReplicated, kCheckpoint };

// Layers that take the same input.
struct Columns : nn::Module {
  Columns(int layers, bool bias) {
    for (int i = 0; i < layers; ++i) {
      columns.push_back(register_module("column" + std::to_string(i),
                                        nn::Linear(nn::LinearOptions(5, 7).bias(bias))));
    }
    const torch::NoGradGuard no_grad;
    to(at::kDouble);
    uint64_t seed = 1;
    for (at::Tensor& weight : parameters())
      weight.copy_(tests::random_input(weight.sizes(), ++seed));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor sum;
    for (const nn::Linear& column : columns) {
      const at::Tensor y = modules::forward(column, x);
      sum = sum.defined() ? sum + y : y;
    }
    return sum;
  }
  std::vector<nn::Linear> columns;
};

// One step on 2 copies with tp 2: the events of backward; gradients are those of the whole model.
void expect_events(Rank& self, const std::shared_ptr<Columns>& plain,
                   const std::shared_ptr<Columns>& module, Mesh& mesh, bool checkpointed,
                   const Events& expected) {
  const at::Tensor whole_input =
      tests::random_input({4, 6, 5}, static_cast<uint64_t>(mesh.coordinate("dp"))).requires_grad_();
  const at::Tensor input = whole_input.detach().clone().requires_grad_();
  const at::Tensor whole = plain->forward(whole_input);
  const at::Tensor weights = at::cos(at::arange(whole.numel(), at::kDouble)).view_as(whole);
  whole.backward(weights);
  tests::average_grads(*plain, *self.by_hand);
  const auto function = [&](const modules::Tensors& in) {
    return modules::Tensors{modules::forward(module, in[0])};
  };
  const at::Tensor output =
      checkpointed ? autograd::checkpoint(function, {input})[0] : function({input})[0];
  EXPECT_EQ(events_of([&] { output.backward(chunk_of(weights, -1, 2, mesh.coordinate("tp"))); }),
            expected);
  EXPECT_TRUE(is_close(whole_input.grad(), input.grad()));
  expect_parts(*plain, *module, "");
}

// The layer's own order, and after it what the wrapper reduces.
TEST(Overlap, OfALayerThatIsWrapped) {
  for (const Around around : {Around::kReplicated, Around::kCheckpoint}) {
    for (const bool bias : {true, false}) {
      on_ranks(4, [&](Rank& self) {
        comms::World world = noted(*self.world);
        Mesh mesh(world, {{"dp", 2}, {"tp", 2}});
        const auto plain = std::make_shared<Columns>(1, bias),
                   module = std::make_shared<Columns>(1, bias);
        const auto split = parallelize(*module, {{"column*", colwise_parallel()}}, mesh, "tp");
        Events expected = {"products", "all-reduce", "products", "wait"};
        const auto wrapper = ddp::replicate(*module, mesh, {"dp"});
        expected.insert(expected.end(), {"all-reduce", "wait"});
        expect_events(self, plain, module, mesh, around == Around::kCheckpoint, expected);
      });
    }
  }
}

// The sum of several layers' gradients is communicated when all have computed, as replicate's.
TEST(Overlap, NotOfAPreparedInput) {
  on_ranks(4, [](Rank& self) {
    comms::World world = noted(*self.world);
    Mesh mesh(world, {{"dp", 2}, {"tp", 2}});
    const auto plain = std::make_shared<Columns>(2, true),
               module = std::make_shared<Columns>(2, true);
    const auto split = parallelize(
        *module,
        {{"", prepare_input()}, {"column*", colwise_parallel({.input_is_prepared = true})}}, mesh,
        "tp");
    const auto wrapper = ddp::replicate(*module, mesh, {"dp"});
    expect_events(self, plain, module, mesh, false,
                  {"products", "all-reduce", "all-reduce", "wait", "wait"});
  });
}

}  // namespace
}  // namespace pipewright::tp
