// Backwards inside nodes of a user's own, such as another library's checkpointing: they do not end
// the backward around them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::ModulePtr;
using tests::on_ranks;
using tests::Parity;
using tests::Rank;
using tests::Sharding;
using tests::shards_of;
using tests::sum_of;

// A node that runs the forward again, and a backward of it.
struct OwnCheckpoint : torch::autograd::Function<OwnCheckpoint> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const ModulePtr* module) {
    context->save_for_backward({x});
    context->saved_data["module"] = reinterpret_cast<int64_t>(module);
    return modules::forward(*module, x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const c10::AutoGradMode with_grad(true);
    const auto* module = reinterpret_cast<const ModulePtr*>(context->saved_data["module"].toInt());
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({modules::forward(*module, x)}, grads);
    return {x.grad(), at::Tensor()};
  }
};

struct OwnCheckpoints : tests::TestModule {
  OwnCheckpoints() {
    for (const char* name : {"mlp0", "mlp1", "mlp2"})
      layers.push_back(register_module(name, tests::make_mlp(4, 2, 42 + layers.size())));
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = modules::forward(layers[0], input);
    for (const size_t i : {1u, 2u, 1u}) x = x + OwnCheckpoint::apply(x, &layers[i]);
    return modules::forward(layers[0], x);
  }
  std::vector<ModulePtr> layers;
};

TEST(InnerBackward, OfShardedModules) {
  for (const bool reshard : {true, false}) {
    on_ranks(2, [&](Rank& self) {
      const auto plain = std::make_shared<OwnCheckpoints>();
      const auto module = std::make_shared<OwnCheckpoints>();
      Parity parity(self, plain, module, shards_of(self));
      const Sharding sharding(self, *module, tests::mlps(3), {.reshard_after_forward = reshard});
      parity.train(sum_of({2, 4}));
    });
  }
}

TEST(InnerBackward, OfReplicatedModules) {
  on_ranks(2, [](Rank& self) {
    const auto plain = std::make_shared<OwnCheckpoints>();
    const auto module = std::make_shared<OwnCheckpoints>();
    Parity parity(self, plain, module);
    const auto unit = ddp::replicate(*module, self.group, {.bucket_cap_mb = 0.0001});
    parity.train(sum_of({2, 4}));
  });
}

}  // namespace
}  // namespace pipewright::fsdp
