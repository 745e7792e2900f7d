// One rank over NCCL, from C++ alone. Include ProcessGroupNCCL.hpp in as few files as possible: it
// includes CUDA's headers.
#define USE_C10D_NCCL 1
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

TEST(Nccl, AllReduceOfOneRank) {
  ASSERT_TRUE(at::hasCUDA() && at::globalContext().hasCUDA());
  auto store = c10::make_intrusive<c10d::HashStore>();
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      store, 0, 1, c10d::ProcessGroupNCCL::Options::create());
  std::vector<at::Tensor> tensors{at::ones({4}, at::device(at::kCUDA))};
  group->allreduce(tensors)->wait();
  EXPECT_FLOAT_EQ(tensors[0].sum().item<float>(), 4);
}
