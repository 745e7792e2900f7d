#include "tests/executor/models.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedules/registry.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::executor {
namespace {

constexpr int64_t kWidth = 8, kHeads = 2, kTokens = 6, kVocabulary = 11;

class Random {
 public:
  explicit Random(uint64_t seed) : generator_(at::detail::createCPUGenerator(seed)) {}
  at::Tensor weight(at::IntArrayRef sizes) { return data(sizes).mul_(0.3).requires_grad_(); }
  at::Tensor data(at::IntArrayRef sizes) {
    return at::randn(sizes, generator_, at::TensorOptions(at::kDouble)).to(tests::here());
  }
  at::Tensor tokens(at::IntArrayRef sizes) {
    return at::randint(kVocabulary, sizes, generator_, at::TensorOptions(at::kLong))
        .to(tests::here());
  }

 private:
  at::Generator generator_;
};

at::Tensor block(const at::Tensor& x, const Tensors& w) {
  const auto qkv = at::linear(at::layer_norm(x, {kWidth}, w[0], w[1]), w[2])
                       .unflatten(-1, {3, kHeads, kWidth / kHeads})
                       .transpose(1, 3)
                       .unbind(2);
  const at::Tensor mixed = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, true);
  const at::Tensor h = x + at::linear(mixed.transpose(1, 2).reshape(x.sizes()), w[3]);
  return h + at::linear(at::gelu(at::linear(h, w[4])), w[5]);
}

Model make_mlp(int num_stages, int64_t batch, Random random) {
  Model model;
  for (int stage = 0; stage < num_stages; ++stage) {
    const Tensors weights = {random.weight({kWidth, kWidth}), random.weight({kWidth})};
    model.weights.push_back(weights);
    model.stages.push_back([weights](const Tensors& in) -> Tensors {
      return {at::tanh(at::linear(in[0], weights[0], weights[1]))};
    });
  }
  model.loss = [](const Tensors& outputs, const Tensors& targets) {
    return at::mse_loss(outputs[0], targets[0]);
  };
  model.inputs = {random.data({batch, kWidth})};
  model.targets = {random.data({batch, kWidth})};
  return model;
}

// The first stage embeds tokens. In addition to its output it passes on a gate, which the last
// stage uses, and the tokens: two tensors with gradients, and one that cannot have one.
Model make_transformer(int num_stages, int64_t batch, Random random) {
  Model model;
  for (int stage = 0; stage < num_stages; ++stage) {
    Tensors weights = {random.weight({kWidth}),
                       random.weight({kWidth}),
                       random.weight({3 * kWidth, kWidth}),
                       random.weight({kWidth, kWidth}),
                       random.weight({2 * kWidth, kWidth}),
                       random.weight({kWidth, 2 * kWidth})};
    const bool first = stage == 0, last = stage == num_stages - 1;
    if (first) weights.push_back(random.weight({kVocabulary, kWidth}));
    if (last) weights.push_back(random.weight({kVocabulary, kWidth}));
    model.weights.push_back(weights);
    model.stages.push_back([=](const Tensors& in) -> Tensors {
      const at::Tensor tokens = first ? in[0] : in[2];
      const at::Tensor x = first ? at::embedding(weights[6], tokens) : in[0];
      const at::Tensor gate = first ? weights[0] * x.mean(1, /*keepdim=*/true) : in[1];
      const at::Tensor y = block(x, weights);
      if (!last) return {y, gate, tokens};
      return {at::linear(y * gate, weights.back())};
    });
  }
  model.loss = [](const Tensors& outputs, const Tensors& targets) {
    return at::cross_entropy_loss(outputs[0].flatten(0, 1), targets[0].flatten());
  };
  model.inputs = {random.tokens({batch, kTokens})};
  model.targets = {random.tokens({batch, kTokens})};
  return model;
}

torch::optim::AdamW optimizer_of(const Tensors& weights) {
  return torch::optim::AdamW(weights, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
}

Tensors grads_of(const Tensors& weights) {
  Tensors grads;
  for (const at::Tensor& weight : weights)
    grads.push_back(weight.grad().defined() ? weight.grad().clone().cpu() : at::Tensor());
  return grads;
}

Tensors on_host(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.cpu());
  return copies;
}

// Whether the gradients of a stage are added up in the order of the microbatches.
bool ascending(const ir::Program& program, int stage) {
  if (program.placement.num_replicas() > 1) return false;  // two sums, which are added up
  int last = -1;
  for (const ir::Action& action :
       program.rows[static_cast<size_t>(program.placement.rank_of(stage))]) {
    for (const ir::ActionPart part : action.parts()) {
      const bool accumulates = part.kind() == ir::ActionKind::kBackward ||
                               part.kind() == ir::ActionKind::kBackwardWeight;
      if (!accumulates || part.stage() != stage) continue;
      if (part.microbatch() < last) return false;
      last = part.microbatch();
    }
  }
  return true;
}

std::string difference(const at::Tensor& expected, const at::Tensor& got, bool bits) {
  if (!expected.defined() || !got.defined())
    return expected.defined() == got.defined() ? "" : "one is undefined";
  if (expected.sizes() != got.sizes()) return "sizes differ";
  if (bits && tests::has_hosts_bits()) return at::equal(expected, got) ? "" : "not the same bits";
  const double error = (expected - got).abs().max().item<double>();
  const double largest = expected.abs().max().item<double>();
  const double tolerance = tests::has_hosts_bits() ? 1e-12 : 1e-9;
  return error <= tolerance * largest ? "" : "they differ by " + std::to_string(error / largest);
}

}  // namespace

Model make_model(ModelKind kind, int num_stages, int64_t batch, uint64_t seed) {
  return kind == ModelKind::kMlp ? make_mlp(num_stages, batch, Random(seed))
                                 : make_transformer(num_stages, batch, Random(seed));
}

Trained train_reference(Model model, int num_microbatches) {
  // The bits of a product depend on the number of threads; ranks have one each.
  at::set_num_threads(1);
  Trained trained;
  Tensors all;
  for (const Tensors& weights : model.weights)
    all.insert(all.end(), weights.begin(), weights.end());
  torch::optim::AdamW optimizer = optimizer_of(all);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto inputs = at::tensor_split(model.inputs[0], num_microbatches);
    const auto targets = at::tensor_split(model.targets[0], num_microbatches);
    Tensors losses, outputs;
    for (size_t m = 0; m < inputs.size(); ++m) {
      Tensors h = {inputs[m]};
      for (const autograd::Forward& stage : model.stages) h = stage(h);
      const at::Tensor loss = model.loss(h, {targets[m]});
      (loss / num_microbatches).backward();
      losses.push_back(loss.detach());
      outputs.push_back(h[0].detach());
    }
    trained.results[0].push_back({losses, {at::cat(outputs)}});
    trained.grads.clear();
    for (const Tensors& weights : model.weights) trained.grads.push_back(grads_of(weights));
    optimizer.step();
  }
  for (const Tensors& weights : model.weights) {
    Tensors& copies = trained.weights.emplace_back();
    for (const at::Tensor& weight : weights) copies.push_back(weight.detach().clone());
  }
  return trained;
}

// Ties the weights of the stages that this rank shares with the other replica of the model.
std::shared_ptr<modules::TiedParameters> tie_replicas(const ir::Placement& placement,
                                                      const Model& model,
                                                      const std::map<int, LocalStage>& stages,
                                                      comms::World& world) {
  auto tied = std::make_shared<modules::TiedParameters>(world);
  for (const auto& [stage, local] : stages) {
    for (const at::Tensor& weight : model.weights[static_cast<size_t>(stage)])
      tied->tie("weight", placement.ranks_of(stage), {weight});
  }
  return tied;
}

void train_rank(const ir::Program& program, Model model, comms::World& world,
                ExecutorOptions options, Trained* trained) {
  const ir::Placement& placement = program.placement;
  const int last = placement.num_stages() - 1;
  std::vector<int> stages = placement.stages_of(world.rank());
  std::map<int, LocalStage> local;
  Tensors all;
  for (const int stage : stages) {
    const auto index = static_cast<size_t>(stage);
    auto made = std::make_shared<ModuleStage>(model.stages[index]);
    made->set_least_offload(1);  // the tensors of these models are small
    local[stage] = {std::move(made), nullptr};
    all.insert(all.end(), model.weights[index].begin(), model.weights[index].end());
  }
  if (placement.num_replicas() > 1) options.tied = tie_replicas(placement, model, local, world);
  options.loss = model.loss;
  options.device = tests::here();
  Executor executor(program, local, world, options);
  torch::optim::AdamW optimizer = optimizer_of(all);
  // Of two replicas, replica 0 writes the gradients and weights, and each its own results.
  std::erase_if(stages, [&](int stage) { return placement.ranks_of(stage)[0] != world.rank(); });
  const bool has_last = local.contains(last);
  const auto replica =
      static_cast<size_t>(placement.instance_on(world.rank(), last) / placement.num_stages());
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const StepResult result = executor.step({model.inputs, {}, model.targets}, true);
    if (has_last)
      trained->results[replica].push_back({on_host(result.losses), on_host(result.outputs)});
    for (const int stage : stages)
      trained->grads[static_cast<size_t>(stage)] =
          grads_of(model.weights[static_cast<size_t>(stage)]);
    optimizer.step();
  }
  for (const int stage : stages) {
    for (const at::Tensor& weight : model.weights[static_cast<size_t>(stage)])
      trained->weights[static_cast<size_t>(stage)].push_back(weight.detach().clone().cpu());
  }
}

std::string train_threads(const ir::Program& program, ModelKind kind, int64_t batch,
                          std::vector<comms::World>& worlds, Trained* trained) {
  // Otherwise each rank would start its own pool of threads.
  at::set_num_threads(1);
  const int num_stages = program.placement.num_stages();
  trained->grads.resize(static_cast<size_t>(num_stages));
  trained->weights.resize(static_cast<size_t>(num_stages));
  return tests::run_ranks(program.placement.num_ranks(), [&](int rank) {
    train_rank(program, make_model(kind, num_stages, batch), worlds[static_cast<size_t>(rank)], {},
               trained);
  });
}

std::string compare(const Trained& reference, const Trained& trained, const ir::Program& program,
                    const std::vector<int>& stages) {
  // After the first step all weights depend on the order of accumulation, so losses are compared
  // bit for bit only if every stage accumulates in microbatch order.
  bool all_ascending = true;
  for (const int stage : all_stages(program))
    all_ascending = all_ascending && ascending(program, stage);
  std::string text;
  const auto add = [&](const std::string& what, const at::Tensor& want, const at::Tensor& got,
                       bool bits) {
    const std::string found = difference(want, got, bits);
    if (!found.empty()) text += what + ": " + found + "\n";
  };
  for (const int stage : stages) {
    const auto s = static_cast<size_t>(stage);
    if (trained.grads[s].size() != reference.grads[s].size()) return "gradients are missing\n";
    for (size_t i = 0; i < reference.weights[s].size(); ++i) {
      const std::string what = "stage " + std::to_string(stage) + ", weight " + std::to_string(i);
      add("gradient of " + what, reference.grads[s][i], trained.grads[s][i], all_ascending);
      add(what, reference.weights[s][i], trained.weights[s][i], all_ascending);
    }
    if (stage != program.placement.num_stages() - 1) continue;
    for (size_t step = 0; step < kSteps; ++step) {
      const bool bits = all_ascending || step == 0;
      const std::string what = " of step " + std::to_string(step);
      // Replica 0 has the first microbatches.
      Tensors losses, outputs;
      for (int replica = 0; replica < program.placement.num_replicas(); ++replica) {
        const std::vector<Trained::Step>& steps = trained.results[static_cast<size_t>(replica)];
        if (steps.size() != kSteps) return "losses are missing\n";
        losses.insert(losses.end(), steps[step].losses.begin(), steps[step].losses.end());
        outputs.push_back(steps[step].outputs.at(0));
      }
      const Trained::Step& expected = reference.results[0][step];
      if (losses.size() != expected.losses.size()) return "losses are missing\n";
      for (size_t m = 0; m < losses.size(); ++m)
        add("loss " + std::to_string(m) + what, expected.losses[m], losses[m], bits);
      add("output" + what, expected.outputs[0], at::cat(outputs), bits);
    }
  }
  return text;
}

std::vector<int> all_stages(const ir::Program& program) {
  std::vector<int> stages;
  for (int stage = 0; stage < program.placement.num_stages(); ++stage) stages.push_back(stage);
  return stages;
}

ir::Program make_program(const schedules::ScheduleSpec& spec, const schedules::Shape& shape,
                         const ir::Lowering& policies) {
  ir::Diagnostics diagnostics;
  std::optional<ir::Program> program =
      schedule::lower(schedules::make_order(spec, shape), policies, &diagnostics);
  EXPECT_TRUE(program.has_value()) << spec.name;
  return program.value_or(ir::Program());
}

}  // namespace pipewright::executor
