#ifndef PIPEWRIGHT_SCHEDULE_MODEL_MACHINE_H_
#define PIPEWRIGHT_SCHEDULE_MODEL_MACHINE_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// A machine, as far as the costs of a model depend on it. A plain value.
//
//   Machine machine = *find_gpu("h100");   // the table is gpus.def
//   machine.achieved = 0.7;

namespace pipewright::schedule {

struct Machine {
  std::string name = {};
  double peak = 0;              // FLOP/s of dense 16-bit matrix products
  double achieved = 0.75;       // the part of it that matrix products reach
  double memory = 0;            // bytes per GPU
  double memory_bandwidth = 0;  // bytes/s
  // Per GPU and direction, in bytes/s, and in seconds per transfer.
  double nvlink_bandwidth = 0, network_bandwidth = 0;
  double host_bandwidth = 0;  // to the host's memory and back, likewise
  double nvlink_latency = 5e-6, network_latency = 2e-5;
  int gpus_per_node = 8;

  friend bool operator==(const Machine&, const Machine&) = default;
};

// A row of gpus.def; nullopt for an unknown name.
std::optional<Machine> find_gpu(std::string_view name);
std::vector<std::string_view> gpu_names();

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_MODEL_MACHINE_H_
