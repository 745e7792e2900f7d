#include "pipewright/comms/environment.h"

#include <charconv>
#include <cstdlib>
#include <stdexcept>

namespace pipewright::comms {
namespace {

[[noreturn]] void fail_not_set(const std::string& name, const std::string& expected) {
  throw std::invalid_argument("environment variable " + name + " is not set: expected " + expected);
}

[[noreturn]] void fail_invalid(const std::string& name, const std::string& expected,
                               const std::string& value) {
  throw std::invalid_argument("environment variable " + name + " is invalid: expected " + expected +
                              ", got `" + value + "`");
}

int64_t number(const Variables& variables, const std::string& name, int64_t least, int64_t most,
               const std::string& meaning) {
  const std::optional<std::string> text = variables(name);
  const std::string expected =
      meaning + " from " + std::to_string(least) + " to " + std::to_string(most);
  if (!text) fail_not_set(name, expected);
  int64_t value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || stop != end || value < least || value > most)
    fail_invalid(name, expected, *text);
  return value;
}

constexpr int64_t kMaxRanks = 1 << 20;
const char* const kHostList = "a list of hosts such as node[1-4]";

// The first host of a Slurm node list: node03 of "node[03-05,9],x1", a of "a,b".
std::string first_host(const std::string& name, const std::string& list) {
  const size_t bracket = list.find('[');
  const size_t comma = list.find(',');
  std::string host = list.substr(0, std::min(bracket, comma));
  if (bracket < comma) {
    const size_t end = list.find_first_of("-,]", bracket);
    if (end == std::string::npos) fail_invalid(name, kHostList, list);
    host += list.substr(bracket + 1, end - bracket - 1);
    const size_t close = list.find(']', bracket);
    if (close != std::string::npos) {
      host += list.substr(close + 1, list.find(',', close) - close - 1);
    }
  }
  if (host.empty()) fail_invalid(name, kHostList, list);
  return host;
}

void read_master(const Variables& variables, Environment* environment) {
  if (const auto address = variables("MASTER_ADDR")) environment->master_addr = *address;
  environment->master_port =
      static_cast<uint16_t>(number(variables, "MASTER_PORT", 1, 65535, "a port"));
}

Environment read_torchrun(const Variables& variables) {
  Environment environment;
  environment.world_size =
      static_cast<int>(number(variables, "WORLD_SIZE", 1, kMaxRanks, "a number of ranks"));
  environment.rank =
      static_cast<int>(number(variables, "RANK", 0, environment.world_size - 1, "a rank"));
  if (variables("LOCAL_RANK")) {
    environment.local_rank =
        static_cast<int>(number(variables, "LOCAL_RANK", 0, kMaxRanks, "a local rank"));
  }
  if (environment.world_size > 1) {
    if (!variables("MASTER_ADDR")) fail_not_set("MASTER_ADDR", "the host of rank 0");
    read_master(variables, &environment);
  }
  environment.agent_has_store = variables("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (variables("TORCHELASTIC_RESTART_COUNT")) {
    environment.restarts = static_cast<int>(
        number(variables, "TORCHELASTIC_RESTART_COUNT", 0, INT32_MAX, "a number of restarts"));
  }
  return environment;
}

Environment read_slurm(const Variables& variables) {
  Environment environment;
  environment.world_size =
      static_cast<int>(number(variables, "SLURM_NTASKS", 1, kMaxRanks, "a number of ranks"));
  environment.rank =
      static_cast<int>(number(variables, "SLURM_PROCID", 0, environment.world_size - 1, "a rank"));
  environment.local_rank =
      static_cast<int>(number(variables, "SLURM_LOCALID", 0, kMaxRanks, "a local rank"));
  if (environment.world_size == 1) return environment;
  const std::string nodes =
      variables("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  const std::optional<std::string> list = variables(nodes);
  if (!list) fail_not_set(nodes, kHostList);
  environment.master_addr = first_host(nodes, *list);
  if (variables("MASTER_PORT")) {
    read_master(variables, &environment);
    return environment;
  }
  if (const auto address = variables("MASTER_ADDR")) environment.master_addr = *address;
  // Below Linux's ephemeral ports; different for jobs that share a machine and for steps of a job.
  const int64_t job = number(variables, "SLURM_JOB_ID", 0, INT64_MAX, "a job id");
  const int64_t step = variables("SLURM_STEP_ID")
                           ? number(variables, "SLURM_STEP_ID", 0, INT64_MAX, "a step id")
                           : 0;
  environment.master_port = static_cast<uint16_t>(20000 + (job % 10000 + step % 10000 * 7) % 10000);
  return environment;
}

}  // namespace

Variables variables_of_process() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

Environment read_environment(const Variables& variables) {
  if (variables("RANK") || variables("WORLD_SIZE")) return read_torchrun(variables);
  if (variables("SLURM_PROCID")) return read_slurm(variables);
  return {};
}

Environment read_environment() { return read_environment(variables_of_process()); }

}  // namespace pipewright::comms
