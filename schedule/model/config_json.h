#ifndef PIPEWRIGHT_SCHEDULE_MODEL_CONFIG_JSON_H_
#define PIPEWRIGHT_SCHEDULE_MODEL_CONFIG_JSON_H_

#include <string>
#include <string_view>
#include <vector>

#include "pipewright/schedule/model/model_costs.h"

// Reads the shape of a model from a config.json of Hugging Face's transformers. docs/costs.md lists
// the fields.
//
//   const ModelShape model = parse_config(text);
//   model.architecture  "llama"

namespace pipewright::schedule {

// Throws std::invalid_argument, with one message that names the field, if the text is not JSON, the
// architecture is unknown, or a field is missing or wrong.
ModelShape parse_config(const std::string& text);

// The values of model_type that are known.
std::vector<std::string_view> known_architectures();

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_MODEL_CONFIG_JSON_H_
