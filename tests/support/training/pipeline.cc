#include "tests/support/training/pipeline.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <random>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/schedule/lowering/lower.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/training/modules.h"

namespace pipewright::tests {
namespace {

constexpr int kDim = 10;

at::Tensor input_of(const PipelineCase& pipeline, int step, int copy) {
  const int data = pipeline.same_data ? 0 : copy;
  return random_input({kPipelineMicrobatches, kDim}, static_cast<uint64_t>(100 + 10 * step + data))
      .to(pipeline.compute.value_or(pipeline.layers.dtype));
}

at::Tensor target_of(const PipelineCase& pipeline, int step, int copy) {
  return input_of(pipeline, step + 50, copy);
}

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

// Computes in the dtype of `low`, and accumulates in that of `model`.
void add_grads_of_microbatches(Layers& low, Layers& model, const at::Tensor& input,
                               const at::Tensor& target, int copies) {
  const std::vector<at::Tensor> to = model.parameters(), from = low.parameters();
  for (size_t i = 0; i < to.size(); ++i) from[i].detach().copy_(to[i].detach());
  for (int microbatch = 0; microbatch < kPipelineMicrobatches; ++microbatch) {
    low.zero_grad();
    const auto rows = [microbatch](const at::Tensor& of) { return of.narrow(0, microbatch, 1); };
    (loss_of(low.forward(rows(input)), rows(target)) / kPipelineMicrobatches).backward();
    for (size_t i = 0; i < to.size(); ++i) {
      if (!from[i].grad().defined()) continue;
      const at::Tensor grad = from[i].grad().to(to[i].scalar_type()) / copies;
      at::Tensor& sum = to[i].mutable_grad();
      sum = sum.defined() ? sum + grad : grad;
    }
  }
}

void keep(Trained& trained, const torch::nn::Module& module) {
  for (const auto& named : module.named_parameters()) {
    trained.parameters.insert(named.key(), named.value().detach().clone().cpu());
    const at::Tensor& grad = named.value().grad();
    trained.grads.insert(named.key(), grad.defined() ? grad.clone().cpu() : grad);
  }
}

}  // namespace

Layer::Layer(int number, at::ScalarType dtype, bool partial) : number_(number), partial_(partial) {
  const auto add = [&](const std::string& name, int offset, at::IntArrayRef sizes) {
    const at::Tensor values = random_input(sizes, static_cast<uint64_t>(10 * number + offset)) / 3;
    weights_.push_back(register_parameter(name, values.to(dtype)));
  };
  add("weight1", 0, {kDim, kDim});
  add("bias1", 1, {kDim});
  add("weight2", 2, {kDim, kDim});
  add("bias2", 3, {kDim});
  if (partial) add("shift", 4, {kDim});
}

at::Tensor Layer::forward(const at::Tensor& x) {
  at::Tensor hidden = at::relu(at::linear(x, weights_[0], weights_[1]));
  if (partial_ && (number_ + copy_) % 2 == 0) hidden = hidden + weights_[4];
  return x + at::linear(hidden, weights_[2], weights_[3]);
}

Layers::Layers(int begin, int end, LayersArgs args) : args_(std::move(args)) {
  for (int layer = begin; layer < end; ++layer) {
    layers_.push_back(register_module("layer" + std::to_string(layer),
                                      std::make_shared<Layer>(layer, args_.dtype, args_.partial)));
  }
  if (args_.unused) {
    register_parameter("unused" + std::to_string(begin),
                       at::ones({3}, at::TensorOptions(args_.dtype).device(here())));
  }
  for (auto& named : named_parameters())
    named.value().set_requires_grad(!args_.frozen.contains(named.key()));
}

void Layers::set_copy(int copy) {
  for (const auto& layer : layers_) layer->set_copy(copy);
}

at::Tensor Layers::forward(const at::Tensor& input) {
  at::Tensor x = input;
  for (const auto& layer : layers_) {
    const auto call = [this, layer](const at::Tensor& in) {
      return args_.call ? args_.call(layer, in) : layer->forward(in);
    };
    const auto part = [call](const std::vector<at::Tensor>& in) {
      return std::vector{call(in[0])};
    };
    const bool checkpointed =
        args_.checkpointed || args_.checkpointed_layers.contains(layer->number());
    x = checkpointed ? autograd::checkpoint(part, {x})[0] : call(x);
  }
  return x;
}

ir::Program program_of(const PipelineCase& pipeline) {
  if (pipeline.program) return *pipeline.program;
  const schedules::Shape shape{2, schedules::default_stages(*pipeline.schedule, 2),
                               kPipelineMicrobatches};
  ir::Lowering policies;
  policies.reduce_every = pipeline.reduce_every;
  ir::Diagnostics diagnostics;
  return schedule::lower(schedules::make_order(*pipeline.schedule, shape), policies, &diagnostics)
      .value();
}

std::vector<Trained> train_pipeline(const PipelineCase& pipeline, const Wrap& wrap) {
  at::set_num_threads(1);
  const ir::Program program = program_of(pipeline);
  const int stage_ranks = program.placement.num_ranks(), ranks = stage_ranks * pipeline.copies;
  std::vector<Trained> trained(static_cast<size_t>(ranks));
  std::vector<comms::World> worlds = make_worlds(ranks);
  const auto run_rank = [&](int rank) {
    comms::World& world = worlds[static_cast<size_t>(rank)];
    comms::Mesh mesh(world, {{"dp", pipeline.copies}, {"pp", stage_ranks}});
    const auto log = std::make_shared<comms::CallLog>();
    const auto injector = [&](const comms::CallRecord& call) {
      thread_local std::mt19937 random(static_cast<unsigned>(rank));
      comms::Fault fault;
      if (pipeline.delays && call.op != "broadcast") {
        fault.delay = std::chrono::microseconds(random() % 500);
        fault.work_delay = std::chrono::microseconds(random() % 2000);
      }
      return fault;
    };
    const comms::BackendPtr group = comms::record(mesh.group({"dp"}), log, injector);
    std::map<int, executor::LocalStage> stages;
    std::vector<std::shared_ptr<Layers>> modules;
    std::vector<at::Tensor> weights;
    for (const int stage : program.placement.stages_of(mesh.coordinate("pp"))) {
      const int each = kPipelineLayers / program.placement.num_stages();
      const auto module =
          std::make_shared<Layers>(stage * each, (stage + 1) * each, pipeline.layers);
      module->set_copy(mesh.coordinate("dp"));
      const auto made = executor::make_stage(module);
      made->set_least_offload(1);  // its tensors are small
      stages[stage] = {made, wrap ? wrap(module, group) : nullptr};
      modules.push_back(module);
      for (const at::Tensor& weight : module->parameters()) weights.push_back(weight);
    }
    executor::Executor executor(
        program, std::move(stages), world,
        {.loss = [](const executor::Tensors& outputs,
                    const executor::Tensors& targets) { return loss_of(outputs[0], targets[0]); },
         .device = here(),
         .ranks = mesh.ranks({"pp"})});
    torch::optim::AdamW optimizer(weights, torch::optim::AdamWOptions(1e-2));
    Trained& mine = trained[static_cast<size_t>(rank)];
    mine.copy = mesh.coordinate("dp");
    for (int step = 0; step < pipeline.steps; ++step) {
      optimizer.zero_grad(step % 2 == 0);
      log->clear();
      const auto result = executor.step(
          {{input_of(pipeline, step, mine.copy)}, {}, {target_of(pipeline, step, mine.copy)}});
      for (const at::Tensor& loss : result.losses) mine.losses.push_back(loss.cpu());
      // As in PyTorch's test: a reduction that is still running would overwrite one of the two.
      for (const at::Tensor& weight : weights) {
        if (weight.grad().defined()) weight.grad().div_(2).mul_(2);
      }
      optimizer.step();
    }
    mine.calls = log->calls();
    for (const auto& module : modules) keep(mine, *module);
  };
  EXPECT_EQ(run_ranks(ranks, run_rank), "");
  return trained;
}

Trained train_reference(const PipelineCase& pipeline) {
  LayersArgs plain = pipeline.layers;
  plain.checkpointed = false;
  plain.checkpointed_layers.clear();
  plain.call = nullptr;
  plain.unused = false;
  Layers model(0, kPipelineLayers, plain);
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
  plain.dtype = pipeline.compute.value_or(plain.dtype);
  Layers low(0, kPipelineLayers, plain);
  for (int step = 0; step < pipeline.steps; ++step) {
    optimizer.zero_grad();
    for (int copy = 0; copy < pipeline.copies; ++copy) {
      const at::Tensor input = input_of(pipeline, step, copy);
      const at::Tensor target = target_of(pipeline, step, copy);
      model.set_copy(copy);
      low.set_copy(copy);
      if (pipeline.compute)
        add_grads_of_microbatches(low, model, input, target, pipeline.copies);
      else
        (loss_of(model.forward(input), target) / pipeline.copies).backward();
    }
    optimizer.step();
  }
  Trained trained;
  keep(trained, model);
  return trained;
}

void expect_trained(const Trained& expected, const std::vector<Trained>& got,
                    const std::function<at::Tensor(const at::Tensor&, int)>& part,
                    Tolerance tolerance) {
  for (const Trained& rank : got) {
    EXPECT_FALSE(rank.parameters.is_empty());
    const auto expect_close = [&](const at::Tensor& mine, const at::Tensor& whole,
                                  const std::string& what) {
      EXPECT_TRUE(
          at::allclose(mine, part(whole, rank.copy), tolerance.relative, tolerance.absolute))
          << what;
    };
    for (const auto& [name, value] : rank.parameters.pairs()) {
      const at::Tensor grad = rank.grads[name];
      if (!expected.parameters.contains(name)) {  // the unused one
        EXPECT_FALSE(grad.defined()) << name;
        continue;
      }
      expect_close(value, expected.parameters[name], name);
      if (!expected.grads[name].defined()) {  // frozen
        EXPECT_FALSE(grad.defined()) << name;
        continue;
      }
      ASSERT_TRUE(grad.defined()) << name;
      expect_close(grad, expected.grads[name], "gradient of " + name);
    }
  }
}

std::string name_of_schedule(const schedules::ScheduleSpec& spec) {
  std::string name(spec.name);
  std::erase(name, '-');
  return name;
}

}  // namespace pipewright::tests
