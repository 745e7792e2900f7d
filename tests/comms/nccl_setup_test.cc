// What nccl.cc decides without CUDA.
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "pipewright/comms/gpu_index.h"
#include "pipewright/comms/group_name.h"

namespace pipewright::comms {
namespace {

TEST(GpuIndex, IsTheLocalRankOrTheOnlyGpu) {
  const auto index = [](int local_rank, int visible) {
    Environment environment;
    environment.local_rank = local_rank;
    return gpu_index(environment, visible);
  };
  EXPECT_EQ(index(0, 8), 0);
  EXPECT_EQ(index(7, 8), 7);
  EXPECT_EQ(index(5, 1), 0);  // Slurm shows each task its own GPU
  const auto error_of = [&](int local_rank, int visible) -> std::string {
    try {
      index(local_rank, visible);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of(4, 4), "GPU of local rank 4: expected one visible GPU, or at least 5, got 4");
  EXPECT_EQ(error_of(0, 0), "GPU of local rank 0: expected one visible GPU, or at least 1, got 0");
}

TEST(GroupName, HasTheRanksOfItsMembers) {
  EXPECT_EQ(members_of("mesh.dp[0,4,2]#0"), (std::vector{0, 4, 2}));
  EXPECT_EQ(members_of("odd]name[7[12]#3"), std::vector{12});
  for (const char* name : {"", "dp", "dp[]", "dp[a]", "]["})
    EXPECT_THROW(members_of(name), std::invalid_argument) << name;
}

}  // namespace
}  // namespace pipewright::comms
