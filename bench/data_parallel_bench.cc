// Measures one data-parallel training step: forward, backward with the reduction of gradients, and
// AdamW, of a GPT with 12 layers of dimension 256 over Gloo, either replicated or fully sharded
// layer by layer.
//
//   bazel build //cli:pipewright //bench:data_parallel_bench
//   bazel-bin/cli/pipewright launch -n N -- bazel-bin/bench/data_parallel_bench HOW BATCH STEPS
//
// HOW is replicate or shard, and BATCH the number of sequences per rank, of 64 tokens (bytes) each.
// Rank 0 prints the median time of STEPS steps in microseconds, after half as many steps of
// warm-up, and the bytes of parameters and gradients that a sharded step copies within the rank.
// bench/pytorch_data_parallel.py compares both with PyTorch.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>

#include "examples/gpt.h"
#include "pipewright/comms/gloo.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"

namespace pipewright::bench {
namespace {

int run(bool sharded, int64_t batch, int64_t steps) {
  at::set_num_threads(1);
  comms::World world = comms::gloo_world(comms::read_environment());
  const examples::GptConfig config{.layers = 12, .dim = 256, .context = 64};
  const auto model = examples::make_gpt_stage(config, 0, 1);
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const comms::BackendPtr group = world.make_group("dp", ranks);
  std::shared_ptr<ddp::Replicated> replicated;
  std::vector<std::shared_ptr<fsdp::Sharded>> units;
  if (sharded) {
    for (const auto& block : model->blocks()) units.push_back(fsdp::fully_shard(*block, group));
    units.push_back(fsdp::fully_shard(*model, group));
  } else {
    replicated = ddp::replicate(*model, group);
  }
  const auto bytes_copied = [&] {
    int64_t bytes = 0;
    for (const auto& unit : units) bytes += unit->bytes_copied();
    return bytes;
  };
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  const at::Tensor input = at::randint(256, {batch, 64}), target = at::randint(256, {batch, 64});
  std::vector<double> times;
  int64_t bytes = 0;
  for (int64_t step = 0; step < steps + steps / 2; ++step) {
    const int64_t bytes_before = bytes_copied();
    const auto start = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    examples::gpt_loss(modules::forward(model, input), target).backward();
    optimizer.step();
    const auto end = std::chrono::steady_clock::now();
    if (step >= steps / 2)
      times.push_back(std::chrono::duration<double, std::micro>(end - start).count());
    bytes = bytes_copied() - bytes_before;
  }
  std::ranges::sort(times);
  if (world.rank() == 0) {
    std::printf("median_us %.1f bytes_copied %lld\n", times[times.size() / 2],
                static_cast<long long>(bytes));
  }
  return 0;
}

}  // namespace
}  // namespace pipewright::bench

int main(int argc, char** argv) {
  const std::string how = argc == 4 ? argv[1] : "";
  if (how != "replicate" && how != "shard") {
    std::fprintf(stderr, "usage: data_parallel_bench replicate|shard BATCH STEPS\n");
    return 2;
  }
  return pipewright::bench::run(how == "shard", std::atoll(argv[2]), std::atoll(argv[3]));
}
