// Snapshots of a device's training state: copied beside the computation, without a wait of the host
// that trains.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pipewright/checkpoint/torch/training_state.h"
#include "tests/device/device.h"

namespace pipewright::testdevice {
namespace {

struct Counter : torch::nn::Module {
  Counter() { count = register_buffer("count", at::zeros({8}, device(0))); }
  at::Tensor count;
};

// Weights and a buffer, which forward changes, after a step.
struct Trained {
  Trained() {
    linear->to(device(0));
    parameters = linear->parameters();
    optimizer.emplace(parameters, torch::optim::AdamWOptions(0.1));
    forward_and_backward();
    optimizer->step();
    state.add_module(*linear, {}, "linear.");
    state.add_module(counter, {}, "counter.");
    state.set_optimizer(*optimizer);
  }
  void forward_and_backward() {
    launch("forward", parameters, {}, [] {});
    counter.count.add_(1);
    linear->forward(at::ones({4, 8}, device(0))).sum().backward();
  }

  torch::nn::Linear linear{8, 8};
  Counter counter;
  std::vector<at::Tensor> parameters;
  std::optional<torch::optim::AdamW> optimizer;
  checkpoint::TrainingState state;
};

std::vector<at::Tensor> copies_of(const checkpoint::StateSnapshot& taken) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : taken.memory) copies.push_back(tensor.clone());
  return copies;
}

void expect_equal(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(actual[i].equal(expected[i])) << i;
}

// The copy sees neither the next step's buffers nor what the update after it writes.
TEST(Snapshot, IsCopiedBesideTheNextStep) {
  Trained trained;
  checkpoint::StateSnapshot reused;
  for (int step = 0; step < 3; ++step) {
    const std::vector<at::Tensor> expected = copies_of(trained.state.snapshot());
    std::map<std::string, int64_t> syncs = host_syncs();
    restart_peak(0);
    const int64_t bytes = peak_bytes(0);
    checkpoint::StateSnapshot taken = trained.state.deferred_snapshot(std::move(reused));
    EXPECT_EQ(peak_bytes(0), bytes);
    trained.forward_and_backward();
    EXPECT_EQ(host_syncs(), syncs);
    std::thread([&] { taken.copy(); }).join();
    ++syncs["synchronizeEvent"];
    EXPECT_EQ(host_syncs(), syncs);
    trained.optimizer->step();
    drain();
    expect_equal(taken.memory, expected);
    reused = std::move(taken);
  }
}

// Some seeds run the copies as early as their stream allows.
TEST(Snapshot, SeesTheUpdateBeforeIt) {
  for (uint64_t of = 0; of < 10; ++of) {
    seed(of);
    Trained trained;
    checkpoint::StateSnapshot taken = trained.state.deferred_snapshot();
    taken.copy();
    expect_equal(taken.memory, copies_of(trained.state.snapshot()));
  }
}

// Seed 0 runs only what a host waits for.
TEST(Snapshot, DoesNotWaitForTheNextStep) {
  seed(0);
  Trained trained;
  synchronize(0);
  const size_t before = execution_order(0).size();
  checkpoint::StateSnapshot taken = trained.state.deferred_snapshot();
  trained.forward_and_backward();
  taken.copy();
  EXPECT_EQ(execution_order(0).size(), before);
  synchronize(0);
  EXPECT_EQ(execution_order(0).size(), before + 1);
}

// A snapshot with memory of its own can be saved as soon as it is returned.
TEST(Snapshot, WaitsOnceForAllCopies) {
  Trained trained;
  const std::vector<at::Tensor> expected = copies_of(trained.state.snapshot());
  std::map<std::string, int64_t> syncs = host_syncs();
  const checkpoint::StateSnapshot taken = trained.state.copied_snapshot();
  ++syncs["synchronizeEvent"];
  EXPECT_EQ(host_syncs(), syncs);
  expect_equal(taken.memory, expected);
}

}  // namespace
}  // namespace pipewright::testdevice
