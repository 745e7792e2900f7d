// Backwards that fail, ranks that disagree or die, and what replicate refuses.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>

#include <csignal>
#include <cstdio>

#include "pipewright/ddp/replicate.h"
#include "pipewright/modules/forward.h"
#include "tests/ddp/branches.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::ddp {
namespace {

using tests::average_grads;
using tests::Branches;
using tests::data_seed;
using tests::difference;
using tests::errors_on_ranks;
using tests::ModulePtr;
using tests::on_ranks;
using tests::random_input;
using tests::Rank;

// A backward that stops on an error has no effect on the next one, as long as no reduction has
// started.
TEST(Replicate, BackwardThatStopsOnAnError) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr plain = tests::make_mlp(4, 2, 42), module = tests::make_mlp(4, 2, 42);
    const auto unit = replicate(*module, self.group);
    const at::Tensor input = random_input({2, 4}, data_seed(0, self.rank));
    const at::Tensor x = (input * 1).requires_grad_();
    x.register_hook([](const at::TensorBase&) { throw std::runtime_error("user hook failed"); });
    // The first layer's gradients, otherwise the last, are ready before the hook runs.
    EXPECT_THROW((at::linear(input, module->parameters()[0]).sum() + x.sum()).backward(),
                 std::runtime_error);
    module->zero_grad();
    plain->forward(input).sum().backward();
    module->forward(input).sum().backward();
    average_grads(*plain, *self.by_hand);
    EXPECT_EQ(difference(*plain, *module), "");
  });
}

// Reductions cannot be undone: ranks may have stopped at different places.
TEST(Replicate, BackwardThatStopsAfterItsReductionsStarted) {
  for (const std::string& error : errors_on_ranks(2, [](Rank& self) {
         Branches module;
         const auto unit =
             replicate(module, self.group, {.bucket_cap_mb = 0, .first_bucket_cap_mb = 0});
         // Gradients are ready in the order of the buckets: c, b, a.
         const auto backward = [&](bool stops) {
           const at::Tensor x = at::ones({2}, tests::here()).requires_grad_();
           if (stops) {
             x.register_hook(
                 [](const at::TensorBase&) { throw std::runtime_error("user hook failed"); });
           }
           (x * module.weights[0] * module.weights[1] * module.weights[2]).sum().backward();
         };
         EXPECT_THROW(backward(true), std::runtime_error);
         // The next backward of one rank aborts the group, which the other may still be using.
         self.by_hand->barrier()->wait();
         backward(false);
       })) {
    EXPECT_NE(
        error.find("an earlier backward stopped on an error after its reductions had started"),
        std::string::npos)
        << error;
  }
}

TEST(Replicate, ErrorsNameTheParameter) {
  const auto expect = [](const std::string& what, const std::function<void(Rank&)>& body) {
    for (const std::string& error : errors_on_ranks(2, body))
      EXPECT_NE(error.find(what), std::string::npos) << error;
  };
  expect(
      "parameter `0.weight` of torch::nn::EmbeddingImpl: expected dense gradients, got the option "
      "sparse(true)",
      [](Rank& self) {
        torch::nn::Sequential layers(
            torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true)));
        (void)replicate(*layers, self.group);
      });
  // Only backward sees what a function asks for.
  for (const bool reduces : {true, false}) {
    expect("parameter `weight`: expected a dense gradient, got Sparse", [&](Rank& self) {
      torch::nn::Embedding embedding(4, 2);
      const auto unit = replicate(*embedding, self.group);
      unit->set_requires_gradient_sync(reduces);
      at::embedding(embedding->weight, at::arange(3), -1, false, /*sparse=*/true).sum().backward();
    });
  }
  // In a plain call gradients would stay unreduced. One rank may only hear of the other's.
  for (const bool casts : {true, false}) {
    expect(casts ? "was cast, moved or unfrozen: expected a call of the module through "
                   "modules::forward() after that"
                 : "replicate: ",
           [casts](Rank& self) {
             const ModulePtr module = tests::make_mlp(4, 2, 42);
             if (!casts) module->parameters()[0].set_requires_grad(false);
             const auto unit = replicate(*module, self.group);
             module->parameters()[0].set_requires_grad(true);
             const at::ScalarType dtype = casts ? at::kFloat : at::kDouble;
             module->to(dtype);
             module->forward(random_input({2, 4}, 1).to(dtype)).sum().backward();
           });
  }
  expect("while their gradients were accumulated: reduce the gradients first", [](Rank& self) {
    const ModulePtr module = tests::make_mlp(4, 2, 42);
    const auto unit = replicate(*module, self.group);
    unit->set_requires_gradient_sync(false);
    module->forward(random_input({2, 4}, 1)).sum().backward();
    module->to(at::kFloat);
    modules::forward(module, random_input({2, 4}, 1).to(at::kFloat));
  });
  expect("expected all parameters on one device, cpu, got `b` on meta", [](Rank& self) {
    torch::nn::Module module;
    module.register_parameter("a", at::ones({2}));
    module.register_parameter("b", at::ones({2}, at::kMeta));
    (void)replicate(module, self.group);
  });
}

TEST(Replicate, RankThatRunsOneStepMore) {
  const std::vector<std::string> errors = errors_on_ranks(
      2,
      [](Rank& self) {
        const ModulePtr module = tests::make_mlp(4, 2, 42);
        const auto unit = replicate(*module, self.group);
        for (int step = 0; step < (self.rank == 0 ? 2 : 1); ++step)
          module->forward(random_input({2, 4}, 1)).sum().backward();
      },
      nullptr, std::chrono::seconds(2));
  EXPECT_NE(errors[0].find("rank 0: allreduce of Double ["), std::string::npos) << errors[0];
  EXPECT_NE(errors[0].find("of group `dp[0,1]#0`, did not end within 2000 ms"), std::string::npos)
      << errors[0];
  EXPECT_EQ(errors[1], "");
}

// A process is killed; a thread returns early.
TEST(Replicate, RankThatDies) {
  std::signal(SIGTERM, SIG_IGN);  // the launcher terminates the remaining processes
  const std::vector<std::string> errors = errors_on_ranks(
      2,
      [](Rank& self) {
        const ModulePtr module = tests::make_mlp(4, 2, 42);
        const auto unit = replicate(*module, self.group);
        module->forward(random_input({2, 4}, 1)).sum().backward();
        if (self.rank == 1 && tests::ranks_are_processes()) std::raise(SIGKILL);
        if (self.rank == 1) return;
        std::string ended;
        try {
          module->forward(random_input({2, 4}, 1)).sum().backward();
        } catch (const std::exception& error) {
          ended = error.what();
        }
        std::printf("%s\n", ended.c_str());
        EXPECT_EQ(ended.find("replicate: the reduction of `"), 0u) << ended;
        EXPECT_NE(ended.find(" over ranks 0, 1 failed on rank 0: "), std::string::npos) << ended;
      },
      nullptr, std::chrono::seconds(2));
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(Replicate, DifferentParametersAreAnErrorOnEveryRank) {
  const std::vector<std::string> errors = errors_on_ranks(3, [](Rank& self) {
    const ModulePtr module = tests::make_two_linears({{4, self.rank == 2 ? 6 : 5}}, 42);
    (void)replicate(*module, self.group);
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error,
              "ranks disagree: expected `layer0.weight`, Double [5, 4] as on rank 0, got "
              "`layer0.weight`, Double [6, 4] on rank 2");
  }
}

TEST(Replicate, OptionsAndFrozenParametersMustAgree) {
  for (const std::string& error : errors_on_ranks(2, [](Rank& self) {
         const ModulePtr module = tests::make_mlp(4, 2, 42);
         if (self.rank == 1) module->parameters()[0].set_requires_grad(false);
         (void)replicate(*module, self.group);
       })) {
    EXPECT_EQ(error,
              "ranks disagree: expected `in_proj.weight`, Double [8, 4] as on rank 0, got "
              "`in_proj.weight`, Double [8, 4], frozen on rank 1");
  }
  for (const std::string& error : errors_on_ranks(2, [](Rank& self) {
         const ModulePtr module = tests::make_mlp(4, 2, 42);
         (void)replicate(*module, self.group, {.bucket_cap_mb = 1.0 + self.rank});
       })) {
    EXPECT_NE(error.find("expected options: bucket_cap_mb 1,"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace pipewright::ddp
