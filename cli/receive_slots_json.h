#ifndef PIPEWRIGHT_CLI_RECEIVE_SLOTS_JSON_H_
#define PIPEWRIGHT_CLI_RECEIVE_SLOTS_JSON_H_

#include <string>

#include "pipewright/schedule/graph/peaks.h"

namespace pipewright::cli {

// The receive slots of a rank as a JSON object:
//
//   {"pooled": 2, "separate": 3, "stages": [{"stage": 0, "forward": 1, "backward": 2}]}
std::string receive_slots_json(const schedule::ReceiveSlots& slots);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_RECEIVE_SLOTS_JSON_H_
