// Dynamic shapes on a device: how often the host waits for it, and what becomes of a header that
// does not come. tests/executor/shapes_test.cc has the results.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <string>
#include <vector>

#include "tests/device/device.h"
#include "tests/device/two_stages.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::testdevice {
namespace {

constexpr int kMicrobatches = TwoStages::kMicrobatches;

TwoStages make_pipeline(int rank, comms::World& world) {
  return {rank, world, 2.0 + rank, {.device = tests::here(), .dynamic_shapes = true}};
}

int64_t total(const std::map<std::string, int64_t>& counts) {
  int64_t sum = 0;
  for (const auto& [name, count] : counts) sum += count;
  return sum;
}

// A receiver reads each header on the host, and a second message where the metadata do not fit
// into it. A sender does not wait.
TEST(DynamicShapes, TheHostWaitsOnlyToReadHeaders) {
  std::vector<comms::World> worlds = tests::make_worlds(2);
  std::barrier all(2);
  EXPECT_EQ(tests::run_ranks(
                2,
                [&](int rank) {
                  TwoStages pipeline = make_pipeline(rank, worlds[static_cast<size_t>(rank)]);
                  const std::vector<int64_t> many(40, 1);
                  for (const auto& sizes :
                       {std::vector<int64_t>{8}, {12}, {12}, std::vector<int64_t>{8, 1}, many}) {
                    std::vector<int64_t> batch = sizes;
                    batch[0] *= kMicrobatches;
                    const at::Tensor input = at::ones(batch, tests::here());
                    all.arrive_and_wait();
                    const int64_t before = total(host_syncs());
                    all.arrive_and_wait();
                    pipeline.executor->step({.inputs = {input}});
                    all.arrive_and_wait();
                    const int64_t receives = 2 * kMicrobatches;  // of both ranks
                    EXPECT_EQ(total(host_syncs()) - before, (sizes == many ? 2 : 1) * receives)
                        << testing::PrintToString(host_syncs());
                    all.arrive_and_wait();
                  }
                }),
            "");
}

// The abort that ends the wait for a header leaves garbage in it, which nobody takes for shapes.
TEST(DynamicShapes, AnAbortedHeaderIsNotRead) {
  std::vector<comms::World> worlds = tests::make_worlds(2);
  const std::vector<std::string> errors = tests::errors_of_ranks(2, [&](int rank) {
    TwoStages pipeline = make_pipeline(rank, worlds[static_cast<size_t>(rank)]);
    int64_t sends = 0;
    pipeline.executor->set_function(ir::ActionKind::kSendB,
                                    [&](const executor::ActionContext& context) {
                                      if (++sends == kMicrobatches + 2)
                                        throw std::runtime_error("out of luck");
                                      context.run_default();
                                    });
    for (int step = 0; step < 3; ++step)
      pipeline.executor->step({.inputs = {at::ones({8}, tests::here())}});
  });
  // What an aborted SEND reads may have been freed: nobody uses what it sends. Forgets these races.
  seed(0);
  for (const std::string& error : errors) {
    EXPECT_TRUE(error.starts_with("rank 1, step 1, action ")) << error;
    EXPECT_NE(error.find("`1SEND_B1`: out of luck"), std::string::npos) << error;
    // A rank that noticed the abort itself may say so, and nothing else.
    const size_t then = error.find("and then");
    EXPECT_TRUE(then == std::string::npos || error.ends_with(" was aborted")) << error;
  }
}

}  // namespace
}  // namespace pipewright::testdevice
