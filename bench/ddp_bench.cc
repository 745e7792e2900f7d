// The time of a data-parallel training step: a GPT of 12 layers, dimension 256, replicated over
// Gloo ranks; forward, backward with the reduction of gradients, AdamW.
//
//   pipewright launch -n N -- ddp_bench BATCH STEPS
//
// BATCH is a rank's, of 64 bytes each. Rank 0 prints the median of STEPS steps, after half as many
// that are not counted, in microseconds. bench/pytorch_ddp.py compares it with PyTorch's.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "comms/gloo.h"
#include "ddp/replicate.h"
#include "examples/gpt.h"

namespace pipewright::ddp {
namespace {

int run(int64_t batch, int64_t steps) {
  at::set_num_threads(1);
  comms::World world = comms::gloo_world(comms::read_environment());
  const examples::GptConfig config{.layers = 12, .dim = 256, .context = 64};
  const auto model = examples::make_gpt_stage(config, 0, 1);
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  const auto replicated = replicate(*model, world.make_group("dp", ranks));
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  const at::Tensor input = at::randint(256, {batch, 64}), target = at::randint(256, {batch, 64});
  std::vector<double> times;
  for (int64_t step = 0; step < steps + steps / 2; ++step) {
    const auto start = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    examples::gpt_loss(model->forward(input), target).backward();
    optimizer.step();
    const auto end = std::chrono::steady_clock::now();
    if (step >= steps / 2)
      times.push_back(std::chrono::duration<double, std::micro>(end - start).count());
  }
  std::ranges::sort(times);
  if (world.rank() == 0) std::printf("median_us %.1f\n", times[times.size() / 2]);
  return 0;
}

}  // namespace
}  // namespace pipewright::ddp

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: ddp_bench BATCH STEPS\n");
    return 2;
  }
  return pipewright::ddp::run(std::atoll(argv[1]), std::atoll(argv[2]));
}
