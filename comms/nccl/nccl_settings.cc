#include "pipewright/comms/nccl/nccl_settings.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>

namespace pipewright::comms {

int gpu_index(const Environment& environment, int visible_gpus) {
  if (visible_gpus == 1) return 0;
  if (environment.local_rank < visible_gpus) return environment.local_rank;
  throw std::invalid_argument("GPU of local rank " + std::to_string(environment.local_rank) +
                              ": expected one visible GPU, or at least " +
                              std::to_string(environment.local_rank + 1) + ", got " +
                              std::to_string(visible_gpus));
}

std::vector<int> members_of(const std::string& group_name) {
  const size_t end = group_name.rfind(']');
  const size_t begin = end == std::string::npos ? end : group_name.rfind('[', end);
  std::vector<int> ranks;
  if (begin != std::string::npos) {
    std::istringstream list(group_name.substr(begin + 1, end - begin - 1));
    for (std::string rank; std::getline(list, rank, ',');) {
      const bool is_number =
          !rank.empty() && rank.size() < 10 && std::ranges::all_of(rank, [](char c) {
            return std::isdigit(static_cast<unsigned char>(c)) != 0;
          });
      if (!is_number) break;
      ranks.push_back(std::stoi(rank));
    }
  }
  if (!ranks.empty()) return ranks;
  throw std::invalid_argument("group `" + group_name +
                              "`: expected the ranks of its members, as in "
                              "`dp[0,4]`");
}

std::map<std::string, std::string> nccl_environment(const Variables& variables) {
  const std::string name = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
  const std::optional<std::string> value = variables(name);
  const bool is_torchruns = value == "1" && variables("TORCHELASTIC_RUN_ID");
  if (value && !is_torchruns) return {};
  return {{name, "0"}};
}

std::string nccl_trace_prefix(const Variables& variables) {
  if (auto prefix = variables("TORCH_FR_DUMP_TEMP_FILE"))
    return prefix->insert(prefix->rfind('/') + 1, "nccl_");  // from 0 if there is no folder
  if (const auto prefix = variables("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")) return *prefix;
  const std::string home = variables("HOME").value_or("/tmp");
  return variables("XDG_CACHE_HOME").value_or(home + "/.cache") + "/torch/comm_lib_trace_rank_";
}

GroupKind kind_of(const std::string& name) {
  const std::string first = name.substr(0, name.find('['));
  if (first == "channel" || first.starts_with("channel.")) return GroupKind::kChannel;
  if (!first.starts_with("mesh.")) return GroupKind::kOther;
  if (first == "mesh.tp") return GroupKind::kTensorParallel;
  if (first.find("shard") != std::string::npos) return GroupKind::kShard;
  if (first.find("replicate") != std::string::npos) return GroupKind::kReplicate;
  return GroupKind::kOther;
}

NcclGroupOptions nccl_defaults(GroupKind kind) {
  switch (kind) {
    case GroupKind::kChannel:
      return {.max_ctas = 4};
    case GroupKind::kReplicate:
      return {};
    case GroupKind::kShard:
    case GroupKind::kTensorParallel:
    case GroupKind::kOther:
      break;
  }
  return {.high_priority_stream = true};
}

std::string nccl_warning(const Variables& variables) {
  const std::string name = "CUDA_DEVICE_MAX_CONNECTIONS";
  const std::optional<std::string> value = variables(name);
  if (!value || std::atoi(value->c_str()) >= 8) return "";
  return name + ": expected it unset, got " + *value +
         ": streams then share hardware queues, so that a RECV that waits may hold up computation, "
         "and a program with --receives latest may deadlock";
}

std::chrono::milliseconds nccl_timeout(std::chrono::milliseconds world) {
  return 2 * world + std::chrono::minutes(1);
}

NcclSettings nccl_settings(const std::string& name, const NcclGroupOptions& options,
                           std::chrono::milliseconds world) {
  NcclSettings settings;
  settings.high_priority_stream = options.high_priority_stream;
  settings.timeout = nccl_timeout(world);
  settings.name = settings.description = name;
  for (const int rank : members_of(name))
    settings.global_ranks.push_back(static_cast<uint64_t>(rank));
  if (options.min_ctas > 0) settings.min_ctas = options.min_ctas;
  if (options.max_ctas > 0) settings.max_ctas = options.max_ctas;
  if (options.nonblocking) settings.blocking = 0;
  return settings;
}

}  // namespace pipewright::comms
