#include "pipewright/cli/receive_slots_json.h"

#include <fmt/format.h>

namespace pipewright::cli {

std::string receive_slots_json(const schedule::ReceiveSlots& slots) {
  std::string stages;
  for (const schedule::StageReceiveSlots& one : slots.stages)
    stages += fmt::format("{}{{\"stage\": {}, \"forward\": {}, \"backward\": {}}}",
                          stages.empty() ? "" : ", ", one.stage, one.forward, one.backward);
  return fmt::format("{{\"pooled\": {}, \"separate\": {}, \"stages\": [{}]}}", slots.pooled,
                     slots.separate(), stages);
}

}  // namespace pipewright::cli
