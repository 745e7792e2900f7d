// One rank that connects, makes a group of all ranks and reduces over it: connect_worker SECONDS
//
// SECONDS is the time limit. Prints "connected" and the sum of all ranks, or "error: " and why.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <vector>

#include "pipewright/comms/gloo/gloo.h"

int main(int argc, char** argv) {
  using namespace pipewright;
  if (argc != 2) return 2;
  at::set_num_threads(1);
  try {
    comms::World world =
        comms::gloo_world(comms::read_environment(), std::chrono::seconds(std::atoi(argv[1])));
    std::vector<int> ranks(static_cast<size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    const comms::BackendPtr group = world.make_group("all", ranks);
    std::vector<at::Tensor> sum = {at::full({1}, world.rank(), at::kLong)};
    group->allreduce(sum)->wait();
    std::printf("connected, sum %ld\n", static_cast<long>(sum[0].item<int64_t>()));
  } catch (const std::exception& error) {
    std::printf("error: %s\n", error.what());
    return 1;
  }
}
