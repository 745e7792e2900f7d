// Mixed precision in replicate: PyTorch's test_replicate_mixed_precision.py, and what backward may
// do to the copies. A plain copy in the dtypes of the policy is the judge; ranks are threads, so
// results are equal bit by bit.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/ir/errors.h"
#include "pipewright/modules/forward.h"
#include "tests/ddp/wrap.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/mixed_reference.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::ddp {
namespace {

using modules::MixedPrecisionPolicy;
using tests::data_seed;
using tests::here;
using tests::ModulePtr;
using tests::on_ranks;
using tests::random_input;
using tests::Rank;

constexpr auto kBf16 = at::kBFloat16;

ModulePtr mlps() { return tests::in_float(tests::make_mlps(8, 3, 42)); }

std::shared_ptr<torch::nn::LinearImpl> make_linear() {
  auto linear = std::make_shared<torch::nn::LinearImpl>(8, 8);
  linear->to(here());
  return linear;
}

struct Case {
  const char* name;
  MixedPrecisionPolicy policy;
};

const Case kNone = {"none", {}};
const Case kInBf16 = {"bf16", {.param_dtype = kBf16}};
const Case kFp16 = {"fp16", {.param_dtype = at::kHalf, .reduce_dtype = at::kHalf}};
const Case kBf16InFp32 = {"bf16_reduced_in_fp32",
                          {.param_dtype = kBf16, .reduce_dtype = at::kFloat}};
const Case kFp32InBf16 = {"fp32_reduced_in_bf16", {.reduce_dtype = kBf16}};
const Case kClamped = {"clamped", {.param_dtype = kBf16, .reduce_dtype = kBf16}};

class Policies : public testing::TestWithParam<Case> {};
class OneRankPolicies : public Policies {};

std::string name_of(const testing::TestParamInfo<Case>& of) { return of.param.name; }

INSTANTIATE_TEST_SUITE_P(Dtypes, Policies,
                         testing::Values(kNone, kInBf16, kFp16, kBf16InFp32, kFp32InBf16, kClamped),
                         name_of);
// Without kFp16, for which the reference divides and one rank does not.
INSTANTIATE_TEST_SUITE_P(Dtypes, OneRankPolicies,
                         testing::Values(kNone, kInBf16, kBf16InFp32, kFp32InBf16, kClamped),
                         name_of);

struct How {
  int microbatches = 1;
  bool by_parts = false;  // one call per layer
  bool find_unused = false;
  bool is_double = false;  // cast after the call
};

// Losses, parameters and gradients of four steps equal the reference's.
void expect_parity(Rank& self, const MixedPrecisionPolicy& policy, const How& how) {
  const at::ScalarType dtype = how.is_double ? at::kDouble : at::kFloat;
  const ModulePtr plain = mlps(), module = mlps();
  plain->to(dtype);
  tests::MixedReference reference(self, plain, mlps(), policy);
  const Options options = {.bucket_cap_mb = 0.001,
                           .first_bucket_cap_mb = 0,
                           .find_unused_parameters = how.find_unused,
                           .mixed_precision = policy};
  const auto units = how.by_parts ? tests::wrap(*module, self.group, options)
                                  : std::vector{replicate(*module, self.group, options)};
  if (how.is_double) module->to(at::kDouble);
  const auto plain_optimizer = tests::adam(*plain), optimizer = tests::adam(*module);
  for (int iteration = 0; iteration < 4; ++iteration) {
    reference.begin_step();
    optimizer->zero_grad(iteration % 2 == 0);
    for (int m = 0; m < how.microbatches; ++m) {
      const at::Tensor input =
          random_input({4, 8}, data_seed(10 * iteration + m, self.rank)).to(dtype);
      const at::Tensor want = reference.backward(input);
      units.back()->set_requires_gradient_sync(m + 1 == how.microbatches);
      const at::Tensor loss = modules::forward(module, input).sum();
      EXPECT_TRUE(at::equal(loss, want)) << iteration;
      EXPECT_EQ(module->parameters()[0].scalar_type(), policy.param_dtype.value_or(dtype));
      loss.backward();
    }
    reference.reduce();
    const auto want = plain->parameters(), got = module->parameters();
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].scalar_type(), dtype);
      ASSERT_EQ(got[i].grad().scalar_type(), dtype);
      EXPECT_TRUE(at::equal(got[i], want[i])) << iteration << " " << i;
      EXPECT_TRUE(at::equal(got[i].grad(), want[i].grad())) << iteration << " " << i;
    }
    plain_optimizer->step();
    optimizer->step();
  }
}

TEST_P(Policies, test_parity) {
  for (const bool by_parts : {false, true}) {
    for (const How& how : {How{1, by_parts}, How{3, by_parts}, How{2, by_parts, true}})
      on_ranks(4, [&](Rank& self) { expect_parity(self, GetParam().policy, how); });
  }
}

TEST_P(Policies, test_to_float64_after_init) {
  on_ranks(2, [](Rank& self) {
    expect_parity(self, GetParam().policy, {.microbatches = 2, .is_double = true});
  });
}

TEST_P(OneRankPolicies, WithoutCommunication) {
  on_ranks(1, [](Rank& self) {
    expect_parity(self, GetParam().policy, {.microbatches = 2, .by_parts = true});
    EXPECT_TRUE(self.log->calls().empty());
  });
}

// A gradient that fits into fp16 on each rank, but whose sum does not.
TEST(ReplicateMixedPrecision, SumsInFp16DoNotOverflow) {
  on_ranks(4, [](Rank& self) {
    const auto linear = std::make_shared<torch::nn::LinearImpl>(1, 1);
    linear->to(here());
    const auto unit =
        replicate(*linear, self.group, {.mixed_precision = {.param_dtype = at::kHalf}});
    modules::forward(linear, at::full({1, 1}, 30000.0, here())).sum().backward();
    EXPECT_EQ(linear->weight.grad().item<float>(), 30000);
  });
}

// test_float16_on_one_submodule and test_submodules_with_external_inputs.
struct Sees : torch::nn::Module {
  Sees() : linear(register_module("linear", torch::nn::Linear(8, 8))) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    x_dtype = x.scalar_type();
    y_dtype = y.scalar_type();
    return linear(x.to(linear->weight.scalar_type()));
  }
  torch::nn::Linear linear;
  at::ScalarType x_dtype{}, y_dtype{};
};

TEST(ReplicateMixedPrecision, test_what_modules_see) {
  on_ranks(2, [](Rank& self) {
    const at::Tensor x = at::zeros({2, 8}, here()), tokens = at::zeros({2}, here(at::kLong));
    using Dtypes = std::tuple<at::ScalarType, at::ScalarType, at::ScalarType>;
    const auto run = [&](const MixedPrecisionPolicy& policy, const at::Tensor& y) {
      const auto module = std::make_shared<Sees>();
      module->to(here());
      const auto unit = replicate(*module, self.group, {.mixed_precision = policy});
      const at::Tensor out = modules::forward(module, x, y);
      return Dtypes{module->x_dtype, module->y_dtype, out.scalar_type()};
    };
    EXPECT_EQ(run({.param_dtype = at::kHalf}, x), (Dtypes{at::kHalf, at::kHalf, at::kHalf}));
    EXPECT_EQ(run({.param_dtype = at::kHalf}, tokens), (Dtypes{at::kHalf, at::kLong, at::kHalf}));
    EXPECT_EQ(run({.param_dtype = at::kHalf, .cast_forward_inputs = false}, x),
              (Dtypes{at::kFloat, at::kFloat, at::kHalf}));
    EXPECT_EQ(run({.param_dtype = at::kHalf, .output_dtype = at::kFloat}, x),
              (Dtypes{at::kHalf, at::kHalf, at::kFloat}));
    EXPECT_EQ(run({.output_dtype = at::kHalf}, x), (Dtypes{at::kFloat, at::kFloat, at::kHalf}));
  });
}

// Only one layer computes in bf16.
TEST(ReplicateMixedPrecision, PartsWithOtherPolicies) {
  on_ranks(2, [](Rank& self) {
    const ModulePtr module = mlps();
    const auto part =
        replicate(*module->parts()[1], self.group,
                  {.mixed_precision = {.param_dtype = kBf16, .output_dtype = at::kFloat}});
    const auto whole = replicate(*module, self.group);
    modules::forward(module, at::ones({4, 8})).sum().backward();
    for (const auto& [name, weight] : module->named_parameters().pairs())
      EXPECT_EQ(weight.grad().scalar_type(), at::kFloat) << name;
  });
}

// LayerNorm, whose node saves the weight itself, and Linear, whose node saves a view of it.
struct Norms : torch::nn::Module {
  explicit Norms(bool checkpointed) : is_checkpointed(checkpointed) {
    for (int i = 0; i < 2; ++i) {
      const std::string number = std::to_string(i);
      norms.push_back(
          register_module("norm" + number, torch::nn::LayerNorm(torch::nn::LayerNormOptions({8}))));
      linears.push_back(register_module("linear" + number, torch::nn::Linear(8, 8)));
      const at::Tensor values = at::arange(64, at::kFloat).mul_(0.3 + i).sin_().view({8, 8});
      linears.back()->weight.set_data(values);
      linears.back()->bias.set_data(values[0].clone());
    }
    unused = register_parameter("unused", at::ones({3}));
    to(here());
  }
  at::Tensor forward(at::Tensor x) {
    for (size_t i = 0; i < norms.size(); ++i) {
      const auto block = [this, i](const std::vector<at::Tensor>& in) {
        return std::vector{linears[i](norms[i](in[0])).relu()};
      };
      x = is_checkpointed ? autograd::checkpoint(block, {x})[0] : block({x})[0];
    }
    return x;
  }
  const bool is_checkpointed;
  std::vector<torch::nn::LayerNorm> norms;
  std::vector<torch::nn::Linear> linears;
  at::Tensor unused;
};

at::Tensor input_of_norms() { return at::arange(32, here(at::kFloat)).cos_().view({4, 8}); }

// The gradients of a plain module in bf16, in fp32.
std::vector<at::Tensor> gradients_in_bf16() {
  Norms plain(false);
  plain.to(kBf16);
  plain.forward(input_of_norms().to(kBf16)).sum().backward();
  std::vector<at::Tensor> grads;
  for (const at::Tensor& weight : plain.parameters())
    grads.push_back(weight.grad().defined() ? weight.grad().to(at::kFloat) : at::Tensor());
  return grads;
}

void expect_gradients(Norms& module, const std::vector<at::Tensor>& want, double times = 1) {
  const auto weights = module.named_parameters();
  for (size_t i = 0; i < want.size(); ++i) {
    const at::Tensor grad = weights[i].value().grad();
    EXPECT_EQ(weights[i].value().scalar_type(), at::kFloat) << weights[i].key();
    ASSERT_EQ(grad.defined(), want[i].defined()) << weights[i].key();
    if (grad.defined()) {
      EXPECT_TRUE(at::equal(grad, want[i] * times)) << weights[i].key();
    }
  }
}

// The backward of a checkpointed part ends inside that of the model; copies are still needed then,
// also if nothing is reduced. A parameter that no rank uses has no gradient.
TEST(ReplicateMixedPrecision, CopiesLastUntilTheOutermostBackwardEnds) {
  for (const bool checkpointed : {false, true}) {
    for (const bool by_parts : {false, true}) {
      on_ranks(2, [&](Rank& self) {
        const at::Tensor input = input_of_norms();
        const std::vector<at::Tensor> want = gradients_in_bf16();
        const auto module = std::make_shared<Norms>(checkpointed);
        const Options options = {.find_unused_parameters = true,
                                 .mixed_precision = kBf16InFp32.policy};
        std::vector<std::shared_ptr<Replicated>> units;
        if (by_parts) units.push_back(replicate(*module->linears[0], self.group, options));
        units.push_back(replicate(*module, self.group, options));
        const auto run = [&] {
          modules::forward(module, input.clone().requires_grad_()).sum().backward();
        };
        run();
        expect_gradients(*module, want);
        module->zero_grad();
        {
          const NoSync no_sync(*units.back());
          run();
        }
        EXPECT_EQ(module->linears[1]->weight.scalar_type(), at::kFloat);
        run();
        expect_gradients(*module, want, 2);
      });
    }
  }
}

// A graph that is passed twice, and two graphs at once.
TEST(ReplicateMixedPrecision, EachBackwardHasItsCopies) {
  on_ranks(2, [](Rank& self) {
    const at::Tensor input = input_of_norms();
    const std::vector<at::Tensor> want = gradients_in_bf16();
    const auto module = std::make_shared<Norms>(false);
    const auto unit =
        replicate(*module, self.group,
                  {.find_unused_parameters = true, .mixed_precision = kBf16InFp32.policy});
    const at::Tensor one = modules::forward(module, input).sum();
    const at::Tensor other = modules::forward(module, input).sum();
    one.backward({}, /*retain_graph=*/true);
    expect_gradients(*module, want);
    one.backward();
    expect_gradients(*module, want, 2);
    other.backward();
    expect_gradients(*module, want, 3);
  });
}

// Registered tensors hold the parameters themselves outside of forward and backward: after an
// evaluation, after reshard(), after a forward that threw, and after the end of the unit.
TEST(ReplicateMixedPrecision, ParametersComeBack) {
  on_ranks(2, [](Rank& self) {
    const auto linear = make_linear();
    auto unit = replicate(*linear, self.group, {.mixed_precision = {.param_dtype = kBf16}});
    const at::Tensor values = linear->weight.detach().clone();
    const auto expect_parameter = [&] {
      EXPECT_EQ(linear->weight.scalar_type(), at::kFloat);
      EXPECT_TRUE(linear->weight.equal(values));
    };
    {
      const c10::NoGradGuard no_grad;
      EXPECT_EQ(modules::forward(linear, at::ones({1, 8}, here())).scalar_type(), kBf16);
    }
    expect_parameter();
    at::Tensor out = modules::forward(linear, at::ones({1, 8}, here()));
    EXPECT_EQ(linear->weight.scalar_type(), kBf16);
    unit->reshard();
    expect_parameter();
    EXPECT_ANY_THROW(modules::forward(linear, at::ones({1, 9}, here())));
    expect_parameter();
    unit->unshard();
    EXPECT_EQ(linear->weight.scalar_type(), kBf16);
    unit.reset();
    expect_parameter();
  });
}

// An optimizer step after a forward without a backward would write to a copy.
TEST(ReplicateMixedPrecision, WritesToCopiesAreAnError) {
  on_ranks(2, [](Rank& self) {
    const auto linear = make_linear();
    const auto unit = replicate(*linear, self.group, {.mixed_precision = {.param_dtype = kBf16}});
    const auto expect_error = [&](const std::string& what) {
      try {
        unit->reshard();
        ADD_FAILURE() << "expected an error";
      } catch (const ContractError& error) {
        EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
      }
      unit->reshard();
    };
    unit->unshard();
    {
      const c10::NoGradGuard no_grad;
      linear->weight.add_(1);
    }
    expect_error(
        "parameter `weight`, which held its BFloat16 copy between a forward and its "
        "backward, was written to");
    EXPECT_EQ(linear->weight.scalar_type(), at::kFloat);
    unit->unshard();
    linear->to(at::kDouble);
    expect_error("was replaced: expected the BFloat16 [8] on " + here().str() +
                 " that replicate put there, got Double [8] on " + here().str());
  });
}

// All ranks must agree on the policy.
TEST(ReplicateMixedPrecision, PoliciesThatDiffer) {
  const auto errors = tests::errors_on_ranks(2, [](Rank& self) {
    const auto linear = make_linear();
    Options options;
    if (self.rank == 1) options.mixed_precision.reduce_dtype = kBf16;
    const auto unit = replicate(*linear, self.group, options);
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("reduce_dtype BFloat16"), std::string::npos) << error;
}

// What the caller has stays a copy in the policy's dtype when the parameter is itself again.
TEST(ReplicateMixedPrecision, AnOutputThatIsAParameter) {
  for (const bool trains : {true, false}) {
    on_ranks(2, [&](Rank& self) {
      const auto linear = make_linear();
      const auto unit = replicate(*linear, self.group, {.mixed_precision = {.param_dtype = kBf16}});
      const c10::AutoGradMode mode(trains);
      const auto run = [&](const modules::Tensors&) { return modules::Tensors{linear->weight}; };
      const at::Tensor y = modules::call(*linear, run, {})[0];
      if (trains) {
        (y.sum() + linear->bias.sum()).backward();
        EXPECT_TRUE(at::equal(linear->weight.grad(), at::ones({8, 8}, here())));
      }
      EXPECT_EQ(linear->weight.scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(y, linear->weight.to(kBf16)));
    });
  }
}

}  // namespace
}  // namespace pipewright::ddp
