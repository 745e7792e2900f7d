// Training in fp16 with scaled losses, sharded and replicated: steps that overflow are skipped on
// all ranks, and the others are those of a plain copy, bit by bit.
#include "pipewright/modules/grad_scaler.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "pipewright/ddp/replicate.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/mixed_reference.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using tests::in_float;
using tests::ModulePtr;
using tests::Rank;

bool is_finite(const std::vector<at::Tensor>& parameters) {
  return std::ranges::all_of(parameters, [](const at::Tensor& parameter) {
    return at::isfinite(parameter.grad().cpu()).all().item<bool>();
  });
}

// 65536 is beyond fp16, so the first steps overflow, and so does each step after the scale has
// grown.
void expect_parity(Rank& self, bool is_sharded, const modules::MixedPrecisionPolicy& policy) {
  constexpr int kSteps = 12, kGrowthInterval = 3;
  const ModulePtr plain = in_float(tests::make_mlps(8, 3, 42));
  const ModulePtr module = in_float(tests::make_mlps(8, 3, 42));
  tests::MixedReference reference(self, plain, in_float(tests::make_mlps(8, 3, 42)), policy);
  std::shared_ptr<ddp::Replicated> replicated;
  std::unique_ptr<tests::Sharding> sharding;
  if (is_sharded)
    sharding = std::make_unique<tests::Sharding>(self, *module, tests::mlps(3),
                                                 Options{.mixed_precision = policy});
  else
    replicated = ddp::replicate(*module, self.group, {.mixed_precision = policy});
  const auto plain_optimizer = tests::adam(*plain), optimizer = tests::adam(*module);
  modules::GradScaler scaler(self.group, {.growth_interval = kGrowthInterval});
  double scale = 65536;
  int good = 0, skipped = 0;
  for (int step = 0; step < kSteps; ++step) {
    // On one rank alone, in some steps.
    const double size = self.rank == 1 && step % 4 == 3 ? 30 : 1;
    const at::Tensor input =
        size * tests::random_input({4, 8}, tests::data_seed(step, self.rank)).to(at::kFloat);
    reference.begin_step();
    reference.backward(input, scale);
    reference.reduce();
    for (const at::Tensor& parameter : plain->parameters()) parameter.grad().div_(scale);
    const bool is_good = is_finite(plain->parameters());
    if (is_good) plain_optimizer->step();

    optimizer->zero_grad();
    scaler.scale(modules::forward(module, input).sum()).backward();
    EXPECT_EQ(scaler.step(*optimizer), is_good) << step;
    scaler.update();

    good = is_good ? good + 1 : 0;
    skipped += is_good ? 0 : 1;
    if (!is_good) scale /= 2;
    if (good == kGrowthInterval) {
      scale *= 2;
      good = 0;
    }
    EXPECT_EQ(scaler.get_scale(), scale) << step;
    const auto want = plain->parameters(), got = module->parameters();
    for (size_t i = 0; i < want.size(); ++i) {
      const at::Tensor mine = is_sharded ? tests::part_of(want[i], self.rank, 2) : want[i];
      EXPECT_TRUE(at::equal(got[i], mine)) << "step " << step << ", parameter " << i;
    }
  }
  EXPECT_GT(skipped, 1);
  EXPECT_LT(skipped, kSteps - 3);
}

TEST(GradScaler, TrainsInHalfPrecision) {
  for (const bool is_sharded : {true, false}) {
    for (const auto& policy :
         {modules::MixedPrecisionPolicy{.param_dtype = at::kHalf},
          modules::MixedPrecisionPolicy{.param_dtype = at::kHalf, .reduce_dtype = at::kFloat}})
      tests::on_ranks(2, [&](Rank& self) { expect_parity(self, is_sharded, policy); });
  }
}

}  // namespace
}  // namespace pipewright::fsdp
