// Measures one data-parallel training step: forward, backward with the reduction of gradients, and
// AdamW, of a GPT with 12 layers of dimension 256 over Gloo; and beside it, in the same run, the
// step of a plain model and the bare collectives on the same bytes.
//
//   bazel build //cli:pipewright //bench:data_parallel_bench
//   bazel-bin/cli/pipewright launch -n N -- bazel-bin/bench/data_parallel_bench HOW DTYPE BATCH
//   STEPS
//
// HOW is replicate, shard (layer by layer), or hsdp (2 replicas of N/2 shards); with the DTYPE bf16
// forward and backward run in bf16, and gradients are reduced in fp32. BATCH is the number of
// sequences per rank, of 64 tokens (bytes) each. Rank 0 prints the median times of STEPS steps and
// the CPU times of its process in microseconds, after half as many steps of warm-up, and the bytes
// of parameters and gradients that a sharded step copies within the rank.
// bench/pytorch_data_parallel.py compares them with PyTorch's.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "examples/gpt.h"
#include "pipewright/comms/gloo/gloo.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"

namespace pipewright::bench {
namespace {

using Gpt = std::shared_ptr<examples::GptStage>;

struct Times {
  double us, cpu_us;  // medians
};

Times measure(int64_t steps, const std::function<void()>& step) {
  std::vector<double> times, cpu_times;
  for (int64_t i = 0; i < steps + steps / 2; ++i) {
    const std::clock_t cpu_start = std::clock();
    const auto start = std::chrono::steady_clock::now();
    step();
    const auto end = std::chrono::steady_clock::now();
    if (i < steps / 2) continue;
    times.push_back(std::chrono::duration<double, std::micro>(end - start).count());
    cpu_times.push_back(1e6 * static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC);
  }
  std::ranges::sort(times);
  std::ranges::sort(cpu_times);
  return {times[times.size() / 2], cpu_times[cpu_times.size() / 2]};
}

int64_t numel_of(const torch::nn::Module& module) {
  int64_t numel = 0;
  for (const at::Tensor& parameter : module.parameters()) numel += parameter.numel();
  return numel;
}

// The collectives of a step, one after another, on buffers of their own. What every such step must
// send: each gradient once, and for `shards` each parameter as often as it is gathered.
class BareCollectives {
 public:
  BareCollectives(comms::BackendPtr replicas, comms::BackendPtr shards, at::ScalarType gathered)
      : replicas_(std::move(replicas)), shards_(std::move(shards)), gathered_(gathered) {}
  // Parameters that are communicated together, and how often they are gathered.
  void add(int64_t numel, int gathers) {
    const int64_t shards = shards_ ? shards_->getSize() : 1;
    const int64_t chunk = (numel + shards - 1) / shards;
    groups_.push_back({at::zeros({chunk * shards}), at::zeros({chunk}),
                       at::zeros({chunk * shards}, gathered_), at::zeros({chunk}, gathered_),
                       gathers});
  }
  void run() {
    for (Group& group : groups_) {
      for (int i = 0; shards_ && i < group.gathers; ++i) {
        std::vector<at::Tensor> whole = {group.gathered}, part = {group.gathered_part};
        shards_->allgather_into_tensor_coalesced(whole, part)->wait();
      }
      std::vector<at::Tensor> part = {shards_ ? group.grad_part : group.grad};
      if (shards_) {
        std::vector<at::Tensor> whole = {group.grad};
        shards_->reduce_scatter_tensor_coalesced(part, whole)->wait();
      }
      if (replicas_) replicas_->allreduce(part)->wait();
    }
  }

 private:
  struct Group {
    at::Tensor grad, grad_part, gathered, gathered_part;
    int gathers;
  };
  const comms::BackendPtr replicas_, shards_;
  const at::ScalarType gathered_;
  std::vector<Group> groups_;
};

int run(const std::string& how, bool mixed, int64_t batch, int64_t steps) {
  at::set_num_threads(1);
  comms::World world = comms::gloo_world(comms::read_environment());
  const bool sharded = how != "replicate";
  const int replicas = how == "shard" ? 1 : how == "hsdp" ? 2 : world.size();
  comms::Mesh mesh(world, {{"dp_replicate", replicas}, {"dp_shard", world.size() / replicas}});
  const examples::GptConfig config{.layers = 12, .dim = 256, .context = 64};
  modules::MixedPrecisionPolicy policy;
  if (mixed) policy = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};

  const Gpt model = examples::make_gpt_stage(config, 0, 1);
  std::shared_ptr<ddp::Replicated> replicated;
  std::vector<std::shared_ptr<fsdp::Sharded>> units;
  BareCollectives bare(replicas > 1 ? mesh.group({"dp_replicate"}) : nullptr,
                       sharded ? mesh.group({"dp_shard"}) : nullptr,
                       mixed ? at::kBFloat16 : at::kFloat);
  if (sharded) {
    int64_t rest = numel_of(*model);
    for (const auto& block : model->blocks()) {
      bare.add(numel_of(*block), /*gathers=*/2);
      rest -= numel_of(*block);
    }
    bare.add(rest, /*gathers=*/1);
    std::vector<std::string> dims = {"dp_shard"};
    if (replicas > 1) dims.insert(dims.begin(), "dp_replicate");
    const fsdp::Options options = {.mixed_precision = policy};
    for (const auto& block : model->blocks())
      units.push_back(fsdp::fully_shard(*block, mesh, dims, options));
    units.push_back(fsdp::fully_shard(*model, mesh, dims, options));
  } else {
    replicated = ddp::replicate(*model, mesh, {"dp_replicate"}, {.mixed_precision = policy});
    const auto parameters = model->named_parameters();
    for (const std::vector<std::string>& bucket : replicated->buckets()) {
      int64_t numel = 0;
      for (const std::string& name : bucket) numel += parameters[name].numel();
      bare.add(numel, 0);
    }
  }
  const auto bytes_copied = [&] {
    int64_t bytes = 0;
    for (const auto& unit : units) bytes += unit->bytes_copied();
    return bytes;
  };
  const at::Tensor input = at::randint(256, {batch, 64}), target = at::randint(256, {batch, 64});
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  int64_t bytes = 0;
  const Times step = measure(steps, [&] {
    bytes -= bytes_copied();
    optimizer.zero_grad();
    examples::gpt_loss(modules::forward(model, input), target).backward();
    optimizer.step();
    bytes += bytes_copied();
  });

  // The optimizer of a sharded step updates a part of the parameters only.
  const Gpt plain = examples::make_gpt_stage(config, 0, 1);
  plain->to(policy.param_dtype.value_or(at::kFloat));
  std::vector<at::Tensor> updated;
  for (const at::Tensor& parameter : model->parameters()) {
    updated.push_back(at::zeros(parameter.sizes()).set_requires_grad(true));
    updated.back().mutable_grad() = at::zeros(parameter.sizes());
  }
  torch::optim::AdamW plain_optimizer(updated, torch::optim::AdamWOptions(1e-3));
  const Times least = measure(steps, [&] {
    plain->zero_grad();
    examples::gpt_loss(plain->forward(input), target).backward();
    bare.run();
    plain_optimizer.step();
  });
  if (world.rank() == 0) {
    std::printf("step_us %.1f cpu_us %.1f least_us %.1f least_cpu_us %.1f bytes_copied %lld\n",
                step.us, step.cpu_us, least.us, least.cpu_us,
                static_cast<long long>(bytes / (steps + steps / 2)));
  }
  return 0;
}

}  // namespace
}  // namespace pipewright::bench

int main(int argc, char** argv) {
  const std::string how = argc == 5 ? argv[1] : "", dtype = argc == 5 ? argv[2] : "";
  if ((how != "replicate" && how != "shard" && how != "hsdp") ||
      (dtype != "fp32" && dtype != "bf16")) {
    std::fprintf(stderr, "usage: data_parallel_bench replicate|shard|hsdp fp32|bf16 BATCH STEPS\n");
    return 2;
  }
  return pipewright::bench::run(how, dtype == "bf16", std::atoll(argv[3]), std::atoll(argv[4]));
}
