// Parameters and parts that some ranks, or none, use in a step.
#include <gtest/gtest.h>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/ir/errors.h"
#include "pipewright/modules/forward.h"
#include "tests/ddp/branches.h"
#include "tests/ddp/wrap.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::ddp {
namespace {

using tests::Branches;
using tests::data_seed;
using tests::errors_on_ranks;
using tests::Loss;
using tests::ModulePtr;
using tests::on_ranks;
using tests::Parity;
using tests::random_input;
using tests::Rank;
using tests::wrap;

// Rank 0 uses `a`, the other rank `b`, no rank `c`.
TEST(Replicate, UnusedParameters) {
  on_ranks(2, [](Rank& self) {
    Branches module;
    const auto unit = replicate(module, self.group, {.find_unused_parameters = true});
    for (int iteration = 0; iteration < 2; ++iteration) {
      for (at::Tensor& weight : module.parameters()) weight.mutable_grad().reset();
      (module.weights[static_cast<size_t>(self.rank)] * 4).sum().backward();
      EXPECT_TRUE(at::equal(module.weights[0].grad(), at::full({2}, 2.0, tests::here())));
      EXPECT_TRUE(at::equal(module.weights[1].grad(), at::full({2}, 2.0, tests::here())));
      EXPECT_FALSE(module.weights[2].grad().defined());
    }
  });
  const std::vector<std::string> errors = errors_on_ranks(2, [](Rank& self) {
    Branches module;
    const auto unit = replicate(module, self.group);
    try {
      (module.weights[0] * 4).sum().backward();
    } catch (const ContractError&) {
      throw;
    } catch (const std::exception&) {
      throw std::runtime_error("not a ContractError");
    }
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("replicate: no gradient in this backward for `b`, `c`: use all parameters "
                         "in every forward, or set find_unused_parameters"),
              std::string::npos)
        << error;
  }
}

// Each rank takes a different path through the parts, and each part has a separate replicate()
// call: buckets become ready in a different order on each rank, and whole calls are unused.
TEST(Replicate, UnusedParametersOfNestedCalls) {
  for (const double cap : {0.0, 25.0}) {
    tests::on_late_ranks(3, tests::Late::kBeforeReduction, [cap](Rank& self) {
      const ModulePtr module = tests::make_mlps(8, 4, 42);
      Parity parity(self, tests::make_mlps(8, 4, 42), module);
      const auto units =
          wrap(*module, self.group,
               {.bucket_cap_mb = cap, .first_bucket_cap_mb = cap, .find_unused_parameters = true});
      const Loss some_parts = [](const ModulePtr& each, int iteration, int rank) {
        at::Tensor x = random_input({2, 8}, data_seed(iteration, rank));
        for (const int part : {iteration % 4, (iteration + rank) % 4, rank})
          x = std::dynamic_pointer_cast<tests::TestModule>(each->parts()[static_cast<size_t>(part)])
                  ->forward(x);
        return x.sum();
      };
      for (int iteration = 0; iteration < 6; ++iteration) {
        parity.zero_grad(0);
        parity.backward(some_parts, iteration);
        parity.step();
      }
    });
  }
}

TEST(Replicate, NestedCallsMustAgreeOnUnusedParameters) {
  for (const std::string& error : errors_on_ranks(2, [](Rank& self) {
         const ModulePtr module = tests::make_mlps(4, 1, 42);
         const auto part = replicate(*module->parts()[0], self.group);
         (void)replicate(*module, self.group, {.find_unused_parameters = true});
       })) {
    EXPECT_NE(
        error.find("replicate: find_unused_parameters differs from that of a nested call: expected "
                   "false, got true"),
        std::string::npos)
        << error;
  }
}

// The backward of a checkpointed part ends last, and some parameters are unused.
TEST(Replicate, UnusedParametersAndCheckpointedTail) {
  on_ranks(2, [](Rank& self) {
    Branches module;
    const auto unit = replicate(module, self.group, {.find_unused_parameters = true});
    for (int iteration = 0; iteration < 2; ++iteration) {
      module.zero_grad();
      const auto part = [&](const std::vector<at::Tensor>& in) {
        return std::vector{in[0] * module.weights[static_cast<size_t>(self.rank)]};
      };
      const at::Tensor x = at::full({2}, 4.0, tests::here()).requires_grad_();
      autograd::checkpoint(part, {x})[0].sum().backward();
      for (const int used : {0, 1}) {
        EXPECT_TRUE(at::equal(module.weights[static_cast<size_t>(used)].grad(),
                              at::full({2}, 2.0, tests::here())))
            << iteration;
      }
      EXPECT_FALSE(module.weights[2].grad().defined());
    }
  });
}

// If a rank skips a parameter, the others get an error too.
TEST(Replicate, RankThatSkipsAParameter) {
  const std::vector<std::string> errors = errors_on_ranks(2, [](Rank& self) {
    Branches module;
    const auto unit = replicate(module, self.group, {.bucket_cap_mb = 0, .first_bucket_cap_mb = 0});
    at::Tensor sum = module.weights[0].sum() + module.weights[1].sum();
    if (self.rank == 0) sum = sum + module.weights[2].sum();
    sum.backward();
  });
  EXPECT_NE(errors[1].find("no gradient in this backward for `c`"), std::string::npos) << errors[1];
  EXPECT_NE(errors[0].find("rank 1 aborted the group"), std::string::npos) << errors[0];
}

// Two parts, each with a replicate() call of its own. A rank may skip the first part, whose
// backward runs last.
struct TwoParts : tests::TestModule {
  TwoParts() {
    for (const char* name : {"first", "second"})
      each.push_back(register_module(name, tests::make_mlp(4, 2, 42 + each.size())));
  }
  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor y = skips ? x * 2 : modules::forward(each[0], x);
    return modules::forward(each[1], y);
  }
  std::vector<std::shared_ptr<torch::nn::Module>> parts() override {
    return {each.begin(), each.end()};
  }
  bool skips = false;
  std::vector<ModulePtr> each;
};

// The rank knows at the end of its backward, and the other does not wait for the time limit. Also
// if the output is a view, which the caller writes to.
TEST(Replicate, RankThatSkipsAPart) {
  for (const bool writes : {false, true}) {
    const std::vector<std::string> errors = errors_on_ranks(2, [&](Rank& self) {
      const auto module = std::make_shared<TwoParts>();
      const auto units = wrap(*module, self.group);
      module->skips = self.rank == 1;
      const auto flat = [&](const modules::Tensors& in) {
        return modules::Tensors{(module->forward(in[0]) * 2).flatten()};
      };
      at::Tensor output = modules::call(*module, flat, {random_input({2, 4}, 1)})[0];
      if (writes) output += 1;
      output.sum().backward();
    });
    EXPECT_NE(errors[1].find("no gradient in this backward for `in_proj.weight`"),
              std::string::npos)
        << errors[1];
    EXPECT_NE(errors[0].find("rank 1 aborted the group"), std::string::npos) << errors[0];
  }
}

// A forward of one part expects that part alone, and backwards need not be in the order of the
// forwards.
TEST(Replicate, BackwardsOfPartsAndOfTheWhole) {
  on_ranks(2, [](Rank& self) {
    const auto plain = std::make_shared<TwoParts>(), module = std::make_shared<TwoParts>();
    Parity parity(self, plain, module);
    const auto units = wrap(*module, self.group);
    const auto loss = [&](bool whole) -> Loss {
      return [whole](const ModulePtr& of, int iteration, int rank) {
        const at::Tensor x = random_input({2, 4}, data_seed(iteration, rank));
        const auto part = std::dynamic_pointer_cast<tests::TestModule>(of->parts()[1]);
        return modules::forward(whole ? of : part, x).sum();
      };
    };
    for (const bool part_first : {true, false}) {
      parity.zero_grad(0);
      const at::Tensor of_whole = loss(true)(module, 0, self.rank);
      const at::Tensor of_part = loss(false)(module, 0, self.rank);
      (part_first ? of_part : of_whole).backward();
      (part_first ? of_whole : of_part).backward();
      loss(true)(plain, 0, self.rank).backward();
      loss(false)(plain, 0, self.rank).backward();
      parity.step();
    }
  });
}

// With an executor, a parameter is unused if it has no gradient between two REDUCE_GRADs.
TEST(Replicate, UnusedParametersWithAnExecutor) {
  for (const bool find : {false, true}) {
    const auto errors = errors_on_ranks(2, [&](Rank& self) {
      Branches module;
      const auto stage =
          replicate(module, self.group, {.find_unused_parameters = find})->data_parallel();
      // Rank 0 uses `a`, then `b`; the other rank uses `b` twice.
      for (const int microbatch : {0, 1}) {
        stage->before_backward(microbatch, /*last=*/microbatch == 1);
        (module.weights[self.rank == 0 ? static_cast<size_t>(microbatch) : 1] * 4).sum().backward();
      }
      stage->reduce_grad();
      stage->wait_reduce();
      EXPECT_TRUE(at::equal(module.weights[0].grad(), at::full({2}, 2.0, tests::here())));
      EXPECT_TRUE(at::equal(module.weights[1].grad(), at::full({2}, 6.0, tests::here())));
      EXPECT_FALSE(module.weights[2].grad().defined());
      // Two reductions in one step: `c` is used between them by one rank, and by none before the
      // first.
      module.zero_grad();
      for (const int microbatch : {0, 1}) {
        stage->before_backward(microbatch, /*last=*/true);
        at::Tensor sum = module.weights[0].sum();
        if (microbatch == 1 && self.rank == 0) sum = sum + module.weights[2].sum() * 4;
        sum.backward();
        stage->reduce_grad();
      }
      stage->wait_reduce();
      EXPECT_TRUE(at::equal(module.weights[0].grad(), at::full({2}, 2.0, tests::here())));
      EXPECT_FALSE(module.weights[1].grad().defined());
      ASSERT_TRUE(module.weights[2].grad().defined());
      EXPECT_TRUE(at::equal(module.weights[2].grad(), at::full({2}, 2.0, tests::here())));
    });
    if (find) {
      EXPECT_EQ(errors, std::vector<std::string>(2));
    } else {
      EXPECT_NE(errors[0].find("no gradient in this backward for `c`: use"), std::string::npos);
      EXPECT_NE(errors[1].find("no gradient in this backward for `a`, `c`"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace pipewright::ddp
