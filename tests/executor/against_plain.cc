#include "tests/executor/against_plain.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <utility>

#include "pipewright/executor/module_stage.h"
#include "tests/executor/small_pipelines.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::executor {
namespace {

// Trains some stages; `run_step` computes losses and gradients.
template <typename RunStep>
Outcome train(const PlainModel& model, const std::vector<int>& stages, int steps,
              const RunStep& run_step) {
  Tensors weights;
  for (const int stage : stages) {
    const Tensors& of_stage = model.weights[static_cast<size_t>(stage)];
    weights.insert(weights.end(), of_stage.begin(), of_stage.end());
  }
  torch::optim::AdamW optimizer(weights, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  const auto take = [](const Tensors& tensors) {
    Tensors grads;
    for (const at::Tensor& tensor : tensors) {
      at::Tensor& grad = grads.emplace_back();
      if (!tensor.defined() || !tensor.requires_grad() || !tensor.grad().defined()) continue;
      grad = tensor.grad().cpu().clone();
      tensor.mutable_grad().reset();
    }
    return grads;
  };
  Outcome plain;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    if (model.before_step) model.before_step(step);
    plain.losses.push_back(run_step());
    std::map<int, Tensors>& grads = plain.grads.emplace_back();
    for (const int stage : stages) {
      for (const at::Tensor& weight : model.weights[static_cast<size_t>(stage)]) {
        grads[stage].push_back(weight.grad().defined() ? weight.grad().cpu().clone()
                                                       : at::Tensor());
      }
    }
    plain.input_grads.push_back(take(model.batch.inputs));
    plain.extra_grads.push_back(take(model.batch.extra));
    optimizer.step();
  }
  for (const int stage : stages) {
    for (const at::Tensor& weight : model.weights[static_cast<size_t>(stage)])
      plain.weights[stage].push_back(weight.detach().cpu().clone());
    if (!model.buffers.empty())
      plain.buffers[stage] = {model.buffers[static_cast<size_t>(stage)].cpu().clone()};
  }
  return plain;
}

Tensors run_stage(const PlainModel& model, int stage, const Tensors& inputs) {
  if (model.before_stage) model.before_stage(stage, inputs);
  return model.forward(stage, inputs);
}

std::string compared(const at::Tensor& expected, const at::Tensor& found, bool zeros_are_none) {
  if (!expected.defined() || !found.defined()) {
    if (expected.defined() == found.defined()) return "";
    const at::Tensor& one = expected.defined() ? expected : found;
    if (zeros_are_none && !one.any().item<bool>()) return "";
    return expected.defined() ? "expected a tensor, got none" : "expected none, got a tensor";
  }
  if (expected.sizes() != found.sizes()) return "sizes differ";
  if (expected.numel() == 0) return "";
  const double error = (expected - found).abs().max().item<double>();
  const double largest = std::max(1.0, expected.abs().max().item<double>());
  return error <= 1e-12 * largest ? "" : "they differ by " + std::to_string(error);
}

at::Tensor sum(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() ? a : b;
  return a + b;
}

}  // namespace

const std::vector<std::string> kUsualSchedules = {"1F1B", "ZB-H1", "ZBV", "Interleaved1F1B"};

Numbers::Numbers(uint64_t seed) : generator_(at::detail::createCPUGenerator(seed)) {}

at::Tensor Numbers::draw(at::IntArrayRef sizes) {
  return at::randn(sizes, generator_, at::kDouble).to(tests::here());
}

Outcome train_plain(const PlainModel& model, int num_stages, int num_microbatches, int steps) {
  at::set_num_threads(1);
  std::vector<int> stages(static_cast<size_t>(num_stages));
  for (int stage = 0; stage < num_stages; ++stage) stages[static_cast<size_t>(stage)] = stage;
  const auto split = [&](const Tensors& tensors) {
    return split_batch(tensors, num_microbatches, {}, "tensor");
  };
  return train(model, stages, steps, [&] {
    const std::vector<Tensors> inputs = split(model.batch.inputs), extra = split(model.batch.extra),
                               targets = split(model.batch.targets);
    std::vector<at::Tensor> losses;
    for (size_t m = 0; m < inputs.size(); ++m) {
      Tensors h = inputs[m];
      for (const int stage : stages) {
        h.insert(h.end(), extra[m].begin(), extra[m].end());
        h = run_stage(model, stage, h);
      }
      const at::Tensor loss = model.loss(h, targets[m]);
      (loss / num_microbatches).backward({}, model.retains_graph);
      losses.push_back(loss.detach());
    }
    return losses;
  });
}

Outcome train_rank_of(const ir::Program& program, const PlainModel& model, comms::World& world,
                      int steps, ExecutorOptions options) {
  options.loss = model.loss;
  options.device = tests::here();
  const int rank = options.ranks.empty()
                       ? world.rank()
                       : static_cast<int>(std::ranges::find(options.ranks, world.rank()) -
                                          options.ranks.begin());
  std::map<int, LocalStage> local = stages_of(program, rank, [&](int stage, const Tensors& inputs) {
    return run_stage(model, stage, inputs);
  });
  for (auto& [stage, its] : local) {
    if (!model.data_parallel.empty())
      its.data_parallel = model.data_parallel[static_cast<size_t>(stage)];
  }
  Executor executor(program, std::move(local), world, options);
  return train(model, program.placement.stages_of(rank), steps, [&] {
    StepResult result = executor.step(model.batch);
    for (at::Tensor& loss : result.losses) loss = loss.cpu();
    return result.losses;
  });
}

Outcome sum_of_ranks(const std::vector<Outcome>& ranks) {
  Outcome all = ranks.front();
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    const Outcome& other = ranks[rank];
    for (size_t step = 0; step < other.grads.size(); ++step) {
      if (all.losses[step].empty()) all.losses[step] = other.losses[step];
      all.grads[step].insert(other.grads[step].begin(), other.grads[step].end());
      for (size_t i = 0; i < other.input_grads[step].size(); ++i)
        all.input_grads[step][i] = sum(all.input_grads[step][i], other.input_grads[step][i]);
      for (size_t i = 0; i < other.extra_grads[step].size(); ++i)
        all.extra_grads[step][i] = sum(all.extra_grads[step][i], other.extra_grads[step][i]);
    }
    all.weights.insert(other.weights.begin(), other.weights.end());
    all.buffers.insert(other.buffers.begin(), other.buffers.end());
  }
  return all;
}

Outcome part_of(const Outcome& all, const ir::Placement& placement, int rank) {
  Outcome part = all;
  const auto is_elsewhere = [&](const auto& of_stage) {
    return placement.rank_of(of_stage.first) != rank;
  };
  for (size_t step = 0; step < part.losses.size(); ++step) {
    if (placement.rank_of(placement.num_stages() - 1) != rank) part.losses[step].clear();
    if (placement.rank_of(0) != rank)
      for (at::Tensor& grad : part.input_grads[step]) grad.reset();
    std::erase_if(part.grads[step], is_elsewhere);
  }
  std::erase_if(part.weights, is_elsewhere);
  std::erase_if(part.buffers, is_elsewhere);
  return part;
}

Outcome shards_of(const Outcome& all, int copy, int copies) {
  Outcome part = all;
  const auto shard = [&](std::map<int, Tensors>& by_stage) {
    for (auto& [stage, tensors] : by_stage) {
      for (at::Tensor& tensor : tensors)
        if (tensor.defined()) tensor = tensor.chunk(copies)[static_cast<size_t>(copy)];
    }
  };
  shard(part.weights);
  for (auto& of_step : part.grads) shard(of_step);
  return part;
}

std::string difference(const Outcome& expected, const Outcome& found, bool zeros_are_none) {
  std::string text;
  const auto compare = [&](const std::string& what, const Tensors& a, const Tensors& b) {
    if (a.size() != b.size()) {
      text += what + ": expected " + std::to_string(a.size()) + " tensors, got " +
              std::to_string(b.size()) + "\n";
      return;
    }
    for (size_t i = 0; i < a.size(); ++i) {
      const std::string differs = compared(a[i], b[i], zeros_are_none);
      if (!differs.empty()) text += what + " " + std::to_string(i) + ": " + differs + "\n";
    }
  };
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    const std::string of_step = "step " + std::to_string(step) + ", ";
    compare(of_step + "loss", expected.losses[step], found.losses.at(step));
    compare(of_step + "input gradient", expected.input_grads[step], found.input_grads.at(step));
    compare(of_step + "extra gradient", expected.extra_grads[step], found.extra_grads.at(step));
    for (const auto& [stage, grads] : expected.grads[step]) {
      compare(of_step + "stage " + std::to_string(stage) + ", gradient", grads,
              found.grads.at(step).at(stage));
    }
  }
  for (const auto& [stage, weights] : expected.weights)
    compare("stage " + std::to_string(stage) + ", weight", weights, found.weights.at(stage));
  for (const auto& [stage, buffers] : expected.buffers)
    compare("stage " + std::to_string(stage) + ", buffer", buffers, found.buffers.at(stage));
  return text;
}

std::string difference_from_plain(const MakePlainModel& make, const std::string& schedule,
                                  int ranks, int microbatches, int steps,
                                  const ExecutorOptions& options, bool zeros_are_none) {
  const ir::Program program = named(schedule.c_str(), ranks, microbatches);
  const int num_stages = program.placement.num_stages();
  const Outcome expected = train_plain(make(num_stages), num_stages, microbatches, steps);
  std::vector<Outcome> found(static_cast<size_t>(ranks));
  std::string text;
  for (const std::string& error : errors_of(ranks, [&](int rank, comms::World&world) {
         found[static_cast<size_t>(rank)] =
             train_rank_of(program, make(num_stages), world, steps, options);
       }))
    text += error;
  return text.empty() ? difference(expected, sum_of_ranks(found), zeros_are_none) : text;
}

}  // namespace pipewright::executor
