// replicate computes the same gradients as c10d::Reducer, the core of PyTorch's
// DistributedDataParallel, over Gloo.
#define USE_C10D_GLOO 1
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <numeric>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "pipewright/ddp/replicate.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/parity.h"

namespace pipewright::ddp {
namespace {

constexpr int kRanks = 2;

comms::BackendPtr gloo_group(const comms::StorePtr& store, const std::string& name, int rank) {
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>(name, store), rank, kRanks, options);
}

TEST(Reducer, ComputesTheSameGradients) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);  // the flight recorder fails with several groups at once
  at::set_num_threads(1);
  const comms::StorePtr store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_EQ(
      tests::run_ranks(
          kRanks,
          [&](int rank) {
            const tests::TransformerArgs args{.layers = 2};
            const auto theirs = tests::make_transformer(args, 42);
            const auto ours = tests::make_transformer(args, 42);
            const auto unit = replicate(*ours, gloo_group(store, "ours", rank));

            auto process_group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, kRanks);
            process_group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                                      gloo_group(store, "theirs", rank));
            process_group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
            // A tied weight appears in the list once.
            std::vector<at::Tensor> weights;
            for (const at::Tensor& weight : theirs->parameters()) {
              if (std::ranges::none_of(
                      weights, [&](const at::Tensor& known) { return known.is_same(weight); }))
                weights.push_back(weight);
            }
            std::vector<size_t> all(weights.size());
            std::iota(all.begin(), all.end(), size_t{0});
            c10d::Reducer reducer(weights, {all}, process_group,
                                  std::vector<bool>(weights.size(), false), 25 << 20, false, true,
                                  {}, 1 << 20, false, false, {});
            for (int iteration = 0; iteration < 4; ++iteration) {
              theirs->zero_grad();
              ours->zero_grad();
              const at::Tensor tokens =
                  tests::random_tokens({3, 16}, 8, static_cast<uint64_t>(10 * iteration + rank));
              const at::Tensor loss = theirs->forward(tokens).square().mean();
              reducer.prepare_for_backward({});
              loss.backward();
              ours->forward(tokens).square().mean().backward();
              EXPECT_EQ(tests::difference(*theirs, *ours), "") << iteration;
              const torch::NoGradGuard no_grad;
              for (const auto& module : {theirs, ours}) {
                for (at::Tensor& weight : module->parameters()) weight.sub_(weight.grad(), 0.05);
              }
            }
          }),
      "");
}

}  // namespace
}  // namespace pipewright::ddp
