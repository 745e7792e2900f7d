#ifndef PIPEWRIGHT_CLI_MODEL_OPTIONS_H_
#define PIPEWRIGHT_CLI_MODEL_OPTIONS_H_

#include <string>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/console.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/schedule/model/machine.h"
#include "pipewright/schedule/model/model_costs.h"

// The options that describe a model, how it is trained, and the machine: of `costs` and `plan`.

namespace pipewright::cli {

std::vector<OptionSpec> model_options();

// Those of `costs` and of `plan`.
std::vector<OptionSpec> costs_options();
std::vector<OptionSpec> plan_options();

struct AskedModel {
  schedule::ModelShape model;
  schedule::TrainingShape training;
  schedule::Machine machine;
};

// Throws UsageError or FileError.
AskedModel read_model(const Invocation& invocation, Console& console);

// "llama, 32 blocks, 8.03e9 parameters; h100: 989 TFLOP/s at 75%, 80 GB"
std::string model_text(const AskedModel& asked);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_MODEL_OPTIONS_H_
