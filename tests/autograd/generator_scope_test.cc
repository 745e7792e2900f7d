// Random numbers of ranks that are threads: those of a rank depend on its own seed only.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/ir/errors.h"

namespace pipewright::autograd {
namespace {

using Tensors = std::vector<at::Tensor>;

// The gradients of a model with dropout, also in checkpointed parts, one in the other.
Tensors train(uint64_t seed) {
  const GeneratorScope generator(seed);
  const at::Tensor w = at::randn({16, 16}).set_requires_grad(true);
  const auto inner = [&](const Tensors& in) {
    return Tensors{at::dropout(in[0].mm(w), 0.3, /*train=*/true)};
  };
  const auto outer = [&](const Tensors& in) {
    return Tensors{at::dropout(checkpoint(inner, in)[0], 0.3, /*train=*/true)};
  };
  Tensors grads;
  for (int step = 0; step < 50; ++step) {
    const at::Tensor x = at::randn({8, 16}).set_requires_grad(true);
    const at::Tensor y = at::dropout(checkpoint(outer, {x})[0], 0.3, /*train=*/true);
    (y * at::rand({8, 16})).sum().backward();
    grads.insert(grads.end(), {x.grad(), w.grad().clone()});
  }
  return grads;
}

TEST(GeneratorScope, ThreadsDrawAsIfEachWereAlone) {
  constexpr uint64_t kThreads = 4;
  std::vector<Tensors> alone(kThreads), together(kThreads);
  for (uint64_t seed = 0; seed < kThreads; ++seed) alone[seed] = train(seed);
  {
    std::vector<std::jthread> threads;
    for (uint64_t seed = 0; seed < kThreads; ++seed)
      threads.emplace_back([&, seed] { together[seed] = train(seed); });
  }
  for (uint64_t seed = 0; seed < kThreads; ++seed) {
    for (size_t i = 0; i < alone[seed].size(); ++i)
      ASSERT_TRUE(at::equal(together[seed][i], alone[seed][i])) << seed << ' ' << i;
  }
  EXPECT_FALSE(at::equal(alone[0][0], alone[1][0]));
}

// A part during one of whose forwards another thread draws from the generator of the process.
std::string error_with_another_thread(int in_forward, bool part_draws, bool has_scope) {
  std::optional<GeneratorScope> scope;
  if (has_scope) scope.emplace(7);
  int forwards = 0;
  const auto part = [&](const Tensors& in) {
    if (++forwards == in_forward) std::jthread([] { at::rand({3}); }).join();
    return Tensors{part_draws ? at::dropout(in[0], 0.5, /*train=*/true) : in[0] * 2};
  };
  const at::Tensor y = checkpoint(part, Tensors{at::ones({64}).requires_grad_()})[0];
  try {
    y.sum().backward();
  } catch (const ContractError& error) {
    return error.what();
  }
  return forwards == 2 ? "" : "expected two forwards";
}

TEST(GeneratorScope, IsNamedWhereAnotherThreadDrawsToo) {
  for (const int in_forward : {1, 2}) {
    EXPECT_NE(error_with_another_thread(in_forward, true, false).find("GeneratorScope"),
              std::string::npos);
    EXPECT_EQ(error_with_another_thread(in_forward, false, false), "");
    EXPECT_EQ(error_with_another_thread(in_forward, true, true), "");
  }
  EXPECT_EQ(error_with_another_thread(0, true, false), "");
}

TEST(GeneratorScope, EveryOperatorDrawsFromIt) {
  using Draw = std::function<at::Tensor(std::optional<at::Generator>)>;
  const at::Tensor ones = at::ones({64});
  const std::vector<std::pair<const char*, Draw>> draws = {
      {"rand", [](auto g) { return g ? at::rand({64}, g) : at::rand({64}); }},
      {"randn", [](auto g) { return g ? at::randn({64}, g) : at::randn({64}); }},
      {"randint", [](auto g) { return g ? at::randint(99, {64}, g) : at::randint(99, {64}); }},
      {"randperm", [](auto g) { return g ? at::randperm(64, g) : at::randperm(64); }},
      {"bernoulli", [&](auto g) { return at::bernoulli(ones * 0.5, g); }},
      {"multinomial", [&](auto g) { return at::multinomial(ones, 9, false, g); }},
      {"normal", [&](auto g) { return at::normal(ones, 1, g); }},
      {"uniform_", [](auto g) { return at::empty({64}).uniform_(0, 1, g); }},
      {"exponential_", [](auto g) { return at::empty({64}).exponential_(1, g); }},
      {"rrelu", [&](auto g) { return at::rrelu(-ones, 0.1, 0.9, /*training=*/true, g); }},
  };
  const at::Tensor before = cpu_generator().get_state();
  for (const auto& [name, draw] : draws) {
    const at::Tensor expected = draw(at::detail::createCPUGenerator(3));
    const GeneratorScope scope(3);
    EXPECT_TRUE(at::equal(draw(std::nullopt), expected)) << name;
    // A generator that the caller passes is used.
    EXPECT_TRUE(at::equal(draw(at::detail::createCPUGenerator(3)), expected)) << name;
  }
  EXPECT_TRUE(at::equal(cpu_generator().get_state(), before));
}

TEST(GeneratorScope, ScopesNest) {
  const auto first = [](uint64_t seed) {
    return at::rand({1}, at::detail::createCPUGenerator(seed));
  };
  at::manual_seed(1);
  const at::Tensor first_of_process = at::rand({1});
  at::manual_seed(1);
  {
    const GeneratorScope outer(2);
    {
      const GeneratorScope inner(3);
      EXPECT_TRUE(at::equal(at::rand({1}), first(3)));
    }
    EXPECT_TRUE(at::equal(at::rand({1}), first(2)));
    std::jthread([&] { EXPECT_TRUE(at::equal(at::rand({1}), first_of_process)); });
  }
  at::manual_seed(1);
  EXPECT_TRUE(at::equal(at::rand({1}), first_of_process));
}

// As on a device, where autograd has threads of its own.
TEST(GeneratorScope, ABackwardOnAnotherThreadDrawsTheSame) {
  const at::Tensor x = at::ones({64}).set_requires_grad(true);
  at::Tensor y;
  {
    const GeneratorScope scope(5);
    y = checkpoint([](const Tensors& in) { return Tensors{at::dropout(in[0], 0.5, true)}; },
                   {x})[0];
  }
  const at::Tensor before = cpu_generator().get_state();
  std::jthread([&] { y.sum().backward(); }).join();
  EXPECT_TRUE(at::equal(x.grad(), y));
  EXPECT_TRUE(at::equal(cpu_generator().get_state(), before));
}

}  // namespace
}  // namespace pipewright::autograd
