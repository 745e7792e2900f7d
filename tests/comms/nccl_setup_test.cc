// What nccl.cc decides without CUDA.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "pipewright/comms/nccl/nccl_settings.h"

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

// How variables are looked up that have these values.
Variables lookup(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(NcclTraces, HavePyTorchsPathUnlessTheExecutorsDumpHasIt) {
  EXPECT_EQ(nccl_trace_prefix(lookup({{"TORCH_FR_DUMP_TEMP_FILE", "/tmp/rank_"}})),
            "/tmp/nccl_rank_");
  EXPECT_EQ(nccl_trace_prefix(lookup({{"TORCH_FR_DUMP_TEMP_FILE", "rank_"}})), "nccl_rank_");
  EXPECT_EQ(nccl_trace_prefix(lookup({{"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/tmp/x_"}})), "/tmp/x_");
  EXPECT_EQ(nccl_trace_prefix(lookup({{"HOME", "/home/a"}})),
            "/home/a/.cache/torch/comm_lib_trace_rank_");
  EXPECT_EQ(nccl_trace_prefix(lookup({{"HOME", "/home/a"}, {"XDG_CACHE_HOME", "/c"}})),
            "/c/torch/comm_lib_trace_rank_");
}

TEST(GroupKind, IsInTheName) {
  const std::map<std::string, GroupKind> kinds = {
      {"channel.0-1[0,4]#0", GroupKind::kChannel},
      {"channel[0,1]#0", GroupKind::kChannel},
      {"channels[0,1]#0", GroupKind::kOther},
      {"mesh.dp_shard[0,1]#0", GroupKind::kShard},
      {"mesh.dp_replicate.dp_shard[0,1]#0", GroupKind::kShard},
      {"mesh.dp_shard/2[0,1]#0", GroupKind::kShard},
      {"mesh.dp_replicate[0,2]#1", GroupKind::kReplicate},
      {"mesh.tp[0,1]#0", GroupKind::kTensorParallel},
      {"mesh.pp.tp[0,1]#0", GroupKind::kOther},
      {"tied.shard[0,1]#0", GroupKind::kOther},
  };
  for (const auto& [name, kind] : kinds) EXPECT_EQ(kind_of(name), kind) << name;
}

TEST(NcclDefaults, KeepWaitingChannelsSmallAndWhatIsAwaitedFast) {
  EXPECT_EQ(nccl_defaults(GroupKind::kChannel).max_ctas, 4);
  EXPECT_FALSE(nccl_defaults(GroupKind::kChannel).high_priority_stream);
  EXPECT_FALSE(nccl_defaults(GroupKind::kReplicate).high_priority_stream);
  for (const GroupKind kind : {GroupKind::kShard, GroupKind::kTensorParallel, GroupKind::kOther}) {
    EXPECT_EQ(nccl_defaults(kind).max_ctas, 0);
    EXPECT_TRUE(nccl_defaults(kind).high_priority_stream);
  }
}

TEST(NcclWarning, OfStreamsThatShareAHardwareQueue) {
  const auto warning = [](const std::string& value) {
    return nccl_warning(lookup({{"CUDA_DEVICE_MAX_CONNECTIONS", value}}));
  };
  EXPECT_EQ(nccl_warning(lookup({})), "");
  EXPECT_EQ(warning("8"), "");
  EXPECT_EQ(warning("32"), "");
  EXPECT_TRUE(warning("1").starts_with("CUDA_DEVICE_MAX_CONNECTIONS: expected it unset, got 1: "));
}

TEST(NcclEnvironment, TurnsPyTorchsErrorHandlingOffUnlessTheUserHasChosen) {
  const std::string name = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
  using Values = std::map<std::string, std::string>;
  const auto set_by = [](const Values& values) { return nccl_environment(lookup(values)); };
  const Values off = {{name, "0"}}, nothing;
  EXPECT_EQ(set_by({}), off);
  EXPECT_EQ(set_by({{name, "1"}}), nothing);
  EXPECT_EQ(set_by({{name, "1"}, {"TORCHELASTIC_RUN_ID", "7"}}), off);  // torchrun's default
  EXPECT_EQ(set_by({{name, "3"}, {"TORCHELASTIC_RUN_ID", "7"}}), nothing);
}

TEST(GroupName, HasTheRanksOfItsMembers) {
  EXPECT_EQ(members_of("mesh.dp[0,4,2]#0"), (std::vector{0, 4, 2}));
  EXPECT_EQ(members_of("odd]name[7[12]#3"), std::vector{12});
  for (const char* name : {"", "dp", "dp[]", "dp[a]", "]["})
    EXPECT_THROW(members_of(name), std::invalid_argument) << name;
}

// A hang is noticed when the limit of the world is over, counted from the end of issuing the step,
// and reported a few seconds later. NCCL's watchdog, which counts from the beginning, must not end
// the process before that.
TEST(NcclSettings, NcclsWatchdogIsSlowerThanOurs) {
  using std::chrono::milliseconds;
  for (const milliseconds world : {milliseconds(100), milliseconds(4000), milliseconds(600000)}) {
    const milliseconds issue = world, noticed = world + std::chrono::seconds(1);
    const auto report = std::chrono::seconds(5);
    EXPECT_GT(nccl_settings("dp[0]#0", {}, world).timeout, issue + noticed + report);
  }
}

TEST(NcclSettings, NameTheGroupAndItsMembers) {
  const NcclSettings settings = nccl_settings("mesh.dp[0,4,2]#1", {}, std::chrono::seconds(1));
  EXPECT_EQ(settings.name, "mesh.dp[0,4,2]#1");
  EXPECT_EQ(settings.description, "mesh.dp[0,4,2]#1");
  EXPECT_EQ(settings.global_ranks, (std::vector<uint64_t>{0, 4, 2}));
}

TEST(NcclSettings, HaveTheOptionsThatAreSet) {
  const NcclSettings plain = nccl_settings("dp[0]#0", {}, std::chrono::seconds(1));
  EXPECT_FALSE(plain.high_priority_stream);
  EXPECT_EQ(plain.min_ctas, std::nullopt);
  EXPECT_EQ(plain.max_ctas, std::nullopt);
  EXPECT_EQ(plain.blocking, std::nullopt);
  const NcclSettings all = nccl_settings(
      "dp[0]#0", {.high_priority_stream = true, .min_ctas = 2, .max_ctas = 8, .nonblocking = true},
      std::chrono::seconds(1));
  EXPECT_TRUE(all.high_priority_stream);
  EXPECT_EQ(all.min_ctas, 2);
  EXPECT_EQ(all.max_ctas, 8);
  EXPECT_EQ(all.blocking, 0);
}

}  // namespace
}  // namespace pipewright::comms
