// What callers do with the outputs of units, compared with plain copies.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/fsdp/fully_shard.h"
#include "tests/fsdp/sharding.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"
#include "tests/support/training/parity.h"

namespace pipewright::fsdp {
namespace {

using modules::Tensors;
using tests::on_ranks;
using tests::Parity;
using tests::random_input;
using tests::Rank;
using tests::Sharding;
using tests::shards_of;
using tests::sum_of;

// Runs a backward that throws, frees what it has gathered, and throws again.
void stop_backward(const Sharding& sharding, const at::Tensor& loss) {
  try {
    loss.backward();
  } catch (...) {
    for (const auto& unit : sharding.units) unit->reshard();
    throw;
  }
}

struct Layer : torch::nn::Module {
  explicit Layer(uint64_t seed)
      : weight(register_parameter("weight", random_input({4, 4}, seed))),
        head(register_parameter("head", random_input({4, 4}, seed + 1))) {}
  at::Tensor weight, head;
  at::Tensor side;  // computed by a forward, which does not return it
};

struct Model;
// The forward of a layer, and what the model does around it.
using Forward = Tensors (*)(Layer&, const at::Tensor& x);
using Body = at::Tensor (*)(Model&, const at::Tensor& x);

struct Model : tests::TestModule {
  Model(Forward its_run, Body its_body)
      : run(its_run), body(its_body), p(register_parameter("p", random_input({4}, 3))) {
    for (uint64_t i = 0; i < 2; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), std::make_shared<Layer>(i)));
  }
  at::Tensor forward(const at::Tensor& x) override { return body(*this, x * p); }
  Tensors call(size_t i, const at::Tensor& x) {
    return modules::call(*layers[i],
                         [this, i](const Tensors& in) { return run(*layers[i], in[0]); }, {x});
  }
  const Forward run;
  const Body body;
  std::vector<std::shared_ptr<Layer>> layers;
  at::Tensor p;
};

struct Case {
  const char* name;
  Forward run;
  Body body;
};

void expect_parity(const std::vector<Case>& cases) {
  for (const Case& each : cases) {
    for (const ReshardAfterForward& reshard :
         {ReshardAfterForward(true), ReshardAfterForward(false)}) {
      SCOPED_TRACE(each.name);
      on_ranks(2, [&](Rank& self) {
        const auto plain = std::make_shared<Model>(each.run, each.body);
        const auto module = std::make_shared<Model>(each.run, each.body);
        for (const auto& model : {plain, module}) model->to(tests::here());
        Parity parity(self, plain, module, shards_of(self));
        const Sharding sharding(self, *module, {{"layer0"}, {"layer1"}},
                                {.reshard_after_forward = reshard});
        for (int iteration = 0; iteration < 3; ++iteration) {
          parity.zero_grad(iteration);
          parity.backward(sum_of({2, 3, 4}), iteration);
          parity.step();
        }
      });
    }
  }
}

Tensors flat_linear(Layer& layer, const at::Tensor& x) {
  return {at::linear(x.flatten(0, 1), layer.weight).view(x.sizes())};
}

Tensors linear(Layer& layer, const at::Tensor& x) { return {at::linear(x, layer.weight)}; }

// Each layer's output is written to in place.
template <auto write>
at::Tensor write_to_outputs(Model& model, const at::Tensor& input) {
  at::Tensor x = input;
  for (size_t i = 0; i < 2; ++i) {
    x = model.call(i, x)[0];
    write(x, model.p);
  }
  return x.square();
}

TEST(FullyShardOutputs, AreWrittenToByTheCaller) {
  constexpr auto add = [](at::Tensor& y, const at::Tensor& p) { y += p; };
  expect_parity({
      {"a view", flat_linear, write_to_outputs<add>},
      {"a view of a view",
       [](Layer& layer, const at::Tensor& x) {
         return Tensors{flat_linear(layer, x)[0].transpose(0, 1).transpose(0, 1)};
       },
       write_to_outputs<add>},
      {"a part of what was computed",
       [](Layer& layer, const at::Tensor& x) {
         return Tensors{at::stack({x, at::linear(x, layer.weight)})[1]};
       },
       write_to_outputs<add>},
      {"no view", linear, write_to_outputs<add>},
      {"several times", flat_linear, write_to_outputs<[](at::Tensor& y, const at::Tensor& p) {
         y.mul_(2).add_(p).transpose_(0, 1).transpose_(0, 1);
         y[0] -= p;
       }>},
      {"through a view of the output", linear,
       write_to_outputs<[](at::Tensor& y, const at::Tensor& p) { y[0][1] += p; }>},
      {"all of it", flat_linear,
       write_to_outputs<[](at::Tensor& y, const at::Tensor& p) { y.copy_(y.tanh() + p); }>},
      {"a part of it is overwritten", flat_linear,
       write_to_outputs<[](at::Tensor& y, const at::Tensor& p) {
         y[0].copy_(p.expand({3, 4}));
       }>},
      {"without grad mode", flat_linear, write_to_outputs<[](at::Tensor& y, const at::Tensor& p) {
         const c10::NoGradGuard no_grad;
         y += p;
       }>},
      {"and used twice", flat_linear,
       [](Model& model, const at::Tensor& x) {
         at::Tensor y = model.call(0, x)[0];
         const at::Tensor before = y * 2;
         y += model.p;
         return before + y.tanh() * model.call(1, y)[0];
       }},
      {"in a checkpointed part", flat_linear,
       [](Model& model, const at::Tensor& x) {
         const auto part = [&model](const Tensors& in) {
           return Tensors{write_to_outputs<add>(model, in[0])};
         };
         return autograd::checkpoint(part, {x})[0];
       }},
      {"of a checkpointed call", flat_linear,
       [](Model& model, const at::Tensor& x) {
         const auto part = [&model](const Tensors& in) { return model.call(0, in[0]); };
         at::Tensor y = autograd::checkpoint(part, {x})[0];
         y += model.p;
         return model.call(1, y)[0].square();
       }},
  });
}

TEST(FullyShardOutputs, ShareMemoryWithEachOther) {
  const Forward base_and_view = [](Layer& layer, const at::Tensor& x) {
    const at::Tensor y = at::linear(x, layer.weight);
    return Tensors{y, y.flatten(0, 1)};
  };
  expect_parity({
      {"the first is written to, the second used", base_and_view,
       [](Model& model, const at::Tensor& x) {
         Tensors y = model.call(0, x);
         y[0].mul_(model.p);
         return model.call(1, y[1].view_as(x))[0].square();
       }},
      {"the second is written to, the first used", base_and_view,
       [](Model& model, const at::Tensor& x) {
         Tensors y = model.call(0, x);
         y[1].mul_(model.p);
         return model.call(1, y[0])[0].square();
       }},
      {"two parts that overlap",
       [](Layer& layer, const at::Tensor& x) {
         const at::Tensor y = at::cat({at::linear(x, layer.weight), at::linear(x, layer.head)}, -1);
         return Tensors{y.narrow(-1, 0, 4), y.narrow(-1, 2, 4)};
       },
       [](Model& model, const at::Tensor& x) {
         Tensors y = model.call(0, x);
         y[0] *= model.p;
         return model.call(1, y[1])[0].square() + y[0];
       }},
  });
}

// A loss reads what a forward has put aside. It is computed before the view that is the output, so
// its backward comes after the output's.
TEST(FullyShardOutputs, ASideResultOfACallWhoseOutputIsAView) {
  expect_parity({{"side",
                  [](Layer& layer, const at::Tensor& x) {
                    const at::Tensor y = at::linear(x, layer.weight).tanh();
                    layer.side = at::linear(y, layer.head);
                    return Tensors{y.flatten(0, 1)};
                  },
                  [](Model& model, const at::Tensor& x) {
                    const at::Tensor y = model.call(0, x)[0];
                    return y.square().view_as(x) + model.layers[0]->side;
                  }}});
}

// The part's backward goes on into what computed the captured tensor, and leaves the call's inputs,
// before the backward of the rest of the call has read the weight.
TEST(FullyShardOutputs, OfACheckpointedPartThatCapturesATensorOfTheCall) {
  expect_parity({{"captures",
                  [](Layer& layer, const at::Tensor& x) {
                    const at::Tensor captured = x * 2;
                    const auto part = [captured](const Tensors& in) {
                      return Tensors{in[0] * captured};
                    };
                    return autograd::checkpoint(part, Tensors{at::linear(x, layer.weight)});
                  },
                  [](Model& model, const at::Tensor& x) {
                    return model.call(1, model.call(0, x)[0])[0].square();
                  }}});
}

// A unit may return its input. What is written to it then changes the caller's tensor too.
TEST(FullyShardOutputs, ShareMemoryWithAnInput) {
  const Forward input = [](Layer&, const at::Tensor& x) { return Tensors{x}; };
  const Forward view_of_input = [](Layer& layer, const at::Tensor& x) {
    return Tensors{x.flatten(0, 1), at::linear(x * 2, layer.weight)};
  };
  expect_parity({
      {"the input", input,
       [](Model& model, const at::Tensor& x) {
         const at::Tensor h = x * model.p;
         at::Tensor y = model.call(0, h)[0];
         y += model.p;
         return (h * y).square();
       }},
      {"a view of it", view_of_input,
       [](Model& model, const at::Tensor& x) {
         const at::Tensor h = x * model.p;
         Tensors y = model.call(0, h);
         y[0].mul_(model.p);
         return model.call(1, h)[1] * y[0].view_as(x) + y[1];
       }},
      {"a view of a view", view_of_input,
       [](Model& model, const at::Tensor& x) {
         const at::Tensor base = at::cat({x, x}) * model.p, h = base.narrow(0, 1, 2);
         Tensors y = model.call(0, h);
         y[0].mul_(model.p);
         return (base.narrow(0, 0, 2) + base.narrow(0, 1, 2)) * y[1];
       }},
  });
}

// What a unit writes to its input, the caller sees, and the gradient too.
TEST(FullyShardOutputs, AreWrittenToAnInput) {
  const Forward relu_first = [](Layer& layer, const at::Tensor& x) {
    at::Tensor in = x;
    return Tensors{at::linear(in.relu_(), layer.weight)};
  };
  const Forward scale = [](Layer& layer, const at::Tensor& x) {
    at::Tensor in = x;
    in.mul_(layer.weight[0]);
    return Tensors{in};
  };
  const Forward scale_beside = [](Layer& layer, const at::Tensor& x) {
    at::Tensor in = x;
    in.mul_(layer.weight[0]);
    return Tensors{layer.weight.sum()};
  };
  const Body use_input = [](Model& model, const at::Tensor& x) {
    const at::Tensor h = x * model.p, y = model.call(0, h)[0];
    return model.call(1, h + y)[0] * h;
  };
  const Body use_input_alone = [](Model& model, const at::Tensor& x) {
    const at::Tensor h = x * model.p;
    model.call(0, h);
    return (model.call(1, h * 2)[0] + h).square();
  };
  const Body use_base = [](Model& model, const at::Tensor& x) {
    const at::Tensor base = at::cat({x, x}) * model.p, h = base.narrow(0, 1, 2);
    const at::Tensor y = model.call(0, h)[0];
    return (base.narrow(0, 0, 2) + h) * (y + base.narrow(0, 2, 2));
  };
  expect_parity({
      {"and used", relu_first, use_input},
      {"and used alone", scale, use_input_alone},
      {"and used, but no output is", scale_beside,
       [](Model& model, const at::Tensor& x) {
         const at::Tensor h = x * model.p;
         model.call(0, h);
         return h.square();
       }},
      {"a view, whose base is used", relu_first, use_base},
      {"a view, which is the output", scale, use_base},
      {"and by the caller", scale,
       [](Model& model, const at::Tensor& x) {
         at::Tensor h = x * model.p;
         const at::Tensor y = model.call(0, h)[0];
         h += y;
         return model.call(1, h)[0] * h;
       }},
  });
  // As without the unit.
  tests::expect_errors(2,
                       "a leaf Variable that requires grad is being used in an in-place operation",
                       [](Rank& self) {
                         const auto module = std::make_shared<Model>(
                             [](Layer&, const at::Tensor& x) {
                               at::Tensor in = x;
                               return Tensors{in.relu_()};
                             },
                             nullptr);
                         module->to(tests::here());
                         const auto unit = fully_shard(*module->layers[0], self.group);
                         module->call(0, random_input({2, 3, 4}, 1).requires_grad_());
                       });
}

// LibTorch's error, as without units: what is written to was saved for backward.
TEST(FullyShardOutputs, AWriteToWhatBackwardNeedsIsAnError) {
  tests::expect_errors(2, "modified by an inplace operation", [](Rank& self) {
    const auto module = std::make_shared<Model>(
        [](Layer& layer, const at::Tensor& x) {
          return Tensors{at::linear(x, layer.weight).tanh().flatten(0, 1)};
        },
        [](Model& model, const at::Tensor& x) { return model.call(0, x)[0].mul_(model.p); });
    module->to(tests::here());
    const Sharding sharding(self, *module, {{"layer0"}, {"layer1"}}, {});
    stop_backward(sharding, forward(module, random_input({2, 3, 4}, 1)).sum());
  });
}

// A layer also returns its weight, or what is in the memory of it.
Tensors and_weight(Layer& layer, const at::Tensor& x) {
  return {at::linear(x, layer.head), layer.weight};
}

at::Tensor use_second_output(Model& model, const at::Tensor& input) {
  at::Tensor x = input;
  for (size_t i = 0; i < 2; ++i) {
    const Tensors y = model.call(i, x);
    x = at::linear(y[0], y[1]).tanh();
  }
  return x;
}

TEST(FullyShardOutputs, AreParameters) {
  expect_parity({
      {"a parameter", and_weight, use_second_output},
      {"a view of it",
       [](Layer& layer, const at::Tensor& x) {
         return Tensors{at::linear(x, layer.head), layer.weight.t()};
       },
       use_second_output},
      {"a part of it",
       [](Layer& layer, const at::Tensor& x) {
         return Tensors{at::linear(x, layer.head), layer.weight[1].expand({4, 4})};
       },
       use_second_output},
      {"without a gradient",
       [](Layer& layer, const at::Tensor& x) {
         return Tensors{at::linear(x, layer.head), layer.weight.detach()};
       },
       use_second_output},
      {"twice",
       [](Layer& layer, const at::Tensor& x) {
         return Tensors{x, layer.weight, layer.weight.flatten()};
       },
       [](Model& model, const at::Tensor& x) {
         const Tensors y = model.call(0, x);
         return at::linear(x, y[1]) * y[2].sum() + model.call(1, x)[2].sum();
       }},
      {"alone", [](Layer& layer, const at::Tensor&) { return Tensors{layer.weight}; },
       [](Model& model, const at::Tensor& x) {
         return at::linear(x, model.call(0, x)[0]) * model.call(1, x)[0].sum();
       }},
      {"of a checkpointed call", and_weight,
       [](Model& model, const at::Tensor& x) {
         const auto part = [&model](const Tensors& in) { return model.call(0, in[0]); };
         const Tensors y = autograd::checkpoint(part, {x});
         return model.call(1, at::linear(y[0], y[1]))[0];
       }},
      {"of the model",
       [](Layer& layer, const at::Tensor& x) { return Tensors{at::linear(x, layer.weight)}; },
       [](Model& model, const at::Tensor& x) {
         model.call(1, model.call(0, x)[0]);
         return model.p.view({2, 2});
       }},
  });
}

// The caller keeps what it got while the parameters are freed.
TEST(FullyShardOutputs, AreParametersThatTheCallerKeeps) {
  for (const bool trains : {true, false}) {
    for (const ReshardAfterForward& reshard :
         {ReshardAfterForward(true), ReshardAfterForward(false), ReshardAfterForward(2)}) {
      on_ranks(4, [&](Rank& self) {
        const Model plain(and_weight, use_second_output);
        const auto module = std::make_shared<Model>(and_weight, use_second_output);
        module->to(tests::here());
        const Sharding sharding(self, *module, {{"layer0"}, {"layer1"}},
                                {.reshard_after_forward = reshard});
        const c10::AutoGradMode mode(trains);
        const at::Tensor x = random_input({2, 3, 4}, 1);
        const Tensors y = module->call(0, x);
        for (const auto& unit : sharding.units) unit->reshard();
        EXPECT_TRUE(at::equal(y[1], plain.layers[0]->weight.to(tests::here())));
        EXPECT_EQ(y[1].requires_grad(), trains);
      });
    }
  }
}

// A unit in a unit returns its weight, which the outer one reads, and returns too.
TEST(FullyShardOutputs, AreParametersOfANestedUnit) {
  struct Outer : torch::nn::Module {
    Outer()
        : inner(register_module("inner", std::make_shared<Layer>(4))),
          scale(register_parameter("scale", random_input({4}, 8))) {}
    Tensors forward(const at::Tensor& x) {
      const auto run = [this](const Tensors& in) { return and_weight(*inner, in[0]); };
      const Tensors y = modules::call(*inner, run, {x});
      return {at::linear(y[0], y[1]) * scale, y[1], scale};
    }
    std::shared_ptr<Layer> inner;
    at::Tensor scale;
  };
  struct Whole : tests::TestModule {
    Whole() : outer(register_module("outer", std::make_shared<Outer>())) {}
    at::Tensor forward(const at::Tensor& x) override {
      const Tensors y = modules::forward(outer, x);
      return at::linear(y[0], y[1]) * y[2];
    }
    std::shared_ptr<Outer> outer;
  };
  on_ranks(2, [](Rank& self) {
    const auto plain = std::make_shared<Whole>(), module = std::make_shared<Whole>();
    for (const auto& model : {plain, module}) model->to(tests::here());
    Parity parity(self, plain, module, shards_of(self));
    const Sharding sharding(self, *module, {{"outer.inner"}, {"outer"}},
                            {.reshard_after_forward = true});
    for (int iteration = 0; iteration < 3; ++iteration) {
      parity.zero_grad(iteration);
      parity.backward(sum_of({2, 3, 4}), iteration);
      parity.step();
    }
  });
}

// An executor's RESHARD frees them too.
TEST(FullyShardOutputs, AreParametersOfAStage) {
  on_ranks(2, [](Rank& self) {
    const Model plain(and_weight, use_second_output);
    const auto module = std::make_shared<Model>(and_weight, use_second_output);
    module->to(tests::here());
    Sharding sharding(self, *module, {{"layer0"}, {"layer1"}}, {});
    const auto stage = sharding.root().data_parallel();
    stage->unshard();
    stage->wait_unshard();
    const Tensors y = module->call(0, random_input({2, 3, 4}, 1));
    stage->reshard();
    EXPECT_TRUE(at::equal(y[1], plain.layers[0]->weight.to(tests::here())));
  });
}

// It would be a part of the parameter, and another one on each rank.
TEST(FullyShardOutputs, AShardIsAnError) {
  for (const ReshardAfterForward& reshard : {ReshardAfterForward(true), ReshardAfterForward(2)}) {
    for (const bool view : {false, true}) {
      tests::expect_errors(
          4,
          "fully_shard: output 1 of the root is in the memory of parameter `head` of `layer0`, of "
          "which this rank has a shard",
          [&](Rank& self) {
            const auto module = std::make_shared<Model>(and_weight, use_second_output);
            module->to(tests::here());
            const Sharding sharding(self, *module, {{"layer0"}, {"layer1"}},
                                    {.reshard_after_forward = reshard});
            const auto run = [&](const Tensors& in) {
              module->call(0, in[0]);
              const at::Tensor& head = module->layers[0]->head;
              return Tensors{in[0], view ? head.flatten() : head};
            };
            call(*module, run, {random_input({2, 3, 4}, 1)});
          });
    }
  }
}

}  // namespace
}  // namespace pipewright::fsdp
