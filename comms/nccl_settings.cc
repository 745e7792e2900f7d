#include "pipewright/comms/nccl_settings.h"

#include "pipewright/comms/group_name.h"

namespace pipewright::comms {

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
