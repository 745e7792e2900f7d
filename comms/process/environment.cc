#include "pipewright/comms/process/environment.h"

#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <utility>
#include <vector>

namespace pipewright::comms {

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

namespace {

constexpr const char* kSeparators = ", \t\n";
constexpr const char* kDigits = "0123456789";

}  // namespace

// Each pair of brackets stands for the first number in it, with its leading zeros.
std::string first_host(const std::string& list) {
  std::string host;
  size_t at = list.find_first_not_of(kSeparators);
  while (at < list.size()) {
    const size_t stop = list.find_first_of(std::string(kSeparators) + "[]", at);
    host += list.substr(at, stop - at);
    if (stop == std::string::npos) return host;
    if (list[stop] != '[') return list[stop] == ']' ? "" : host;
    const size_t end = list.find_first_not_of(kDigits, stop + 1);
    const size_t close = list.find_first_not_of(std::string(kDigits) + "-,", stop + 1);
    const bool is_number = end != stop + 1;
    if (!is_number || close == std::string::npos || list[close] != ']') return "";
    host += list.substr(stop + 1, end - stop - 1);
    at = close + 1;
  }
  return host;
}

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
const char* const kHostOfRank0 = "the host of rank 0";

// The place of this process in a job, and the variables that say so.
struct Job {
  std::string rank_name, size_name;
  int rank, size;
};

Job read_job(const Variables& variables, const std::string& rank_name,
             const std::string& size_name) {
  Job job{rank_name, size_name, 0, 0};
  job.size = static_cast<int>(number(variables, size_name, 1, kMaxRanks, "a number of ranks"));
  job.rank = static_cast<int>(number(variables, rank_name, 0, job.size - 1, "a rank"));
  return job;
}

int read_local_rank(const Variables& variables, const std::string& name) {
  return static_cast<int>(number(variables, name, 0, kMaxRanks, "a local rank"));
}

void expect_equal(const std::string& name, int value, const std::string& other, int other_value) {
  if (value == other_value) return;
  throw std::invalid_argument("environment variables " + name + " and " + other +
                              " contradict each other: got `" + std::to_string(value) + "` and `" +
                              std::to_string(other_value) + "`");
}

void expect_same(const Job& one, const Job& other) {
  expect_equal(one.size_name, one.size, other.size_name, other.size);
  expect_equal(one.rank_name, one.rank, other.rank_name, other.rank);
}

// `expected` says of MASTER_ADDR what it must be.
void read_master(const Variables& variables, const std::string& expected,
                 Environment* environment) {
  const std::optional<std::string> address = variables("MASTER_ADDR");
  if (!address) fail_not_set("MASTER_ADDR", expected);
  if (address->empty()) fail_invalid("MASTER_ADDR", expected, *address);
  environment->master_addr = *address;
  environment->master_port =
      static_cast<uint16_t>(number(variables, "MASTER_PORT", 1, 65535, "a port"));
}

// Ranks on several hosts, of which `variable` tells, cannot meet at an address that means each
// host itself.
void expect_no_loopback(const Environment& environment, const std::string& variable,
                        const std::string& value) {
  const std::string& address = environment.master_addr;
  if (address != "localhost" && !address.starts_with("127.") && address != "::1") return;
  fail_invalid(environment.master_variable,
               std::string(kHostOfRank0) + " by a name that all hosts know, because " + variable +
                   " is `" + value + "`",
               address);
}

Environment read_torchrun(const Variables& variables) {
  const Job job = read_job(variables, "RANK", "WORLD_SIZE");
  Environment environment;
  environment.rank = job.rank;
  environment.world_size = job.size;
  if (variables("LOCAL_RANK")) environment.local_rank = read_local_rank(variables, "LOCAL_RANK");
  if (environment.world_size > 1) read_master(variables, kHostOfRank0, &environment);
  environment.agent_has_store = variables("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (variables("TORCHELASTIC_RESTART_COUNT")) {
    environment.restarts = static_cast<int>(
        number(variables, "TORCHELASTIC_RESTART_COUNT", 0, INT32_MAX, "a number of restarts"));
  }
  return environment;
}

// What an MPI launcher sets.
struct MpiVariables {
  const char* rank;
  const char* size;
  std::vector<const char*> local_ranks, local_sizes;  // of which launchers set one at most
  const char* example;                                // how it passes variables on
};

const std::vector<MpiVariables>& mpi_variables() {
  static const std::vector<MpiVariables> all = {
      {"OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_SIZE",
       {"OMPI_COMM_WORLD_LOCAL_RANK"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE"},
       "mpirun -x MASTER_ADDR=node1 -x MASTER_PORT=29500"},
      {"MV2_COMM_WORLD_RANK",
       "MV2_COMM_WORLD_SIZE",
       {"MV2_COMM_WORLD_LOCAL_RANK"},
       {"MV2_COMM_WORLD_LOCAL_SIZE"},
       "mpirun_rsh MASTER_ADDR=node1 MASTER_PORT=29500"},
      // MPICH, Intel MPI, and Cray's; also srun --mpi=pmi2, which sets no local rank.
      {"PMI_RANK",
       "PMI_SIZE",
       {"MPI_LOCALRANKID", "PMI_LOCAL_RANK"},
       {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"},
       "mpiexec -genv MASTER_ADDR node1 -genv MASTER_PORT 29500"},
  };
  return all;
}

struct MpiJob {
  Job job;
  const MpiVariables* names;
};

// Null if there is no MPI launcher. One of several, which runs under another, is ignored if it has
// one process.
std::optional<MpiJob> find_mpi(const Variables& variables) {
  std::optional<MpiJob> found;
  for (const MpiVariables& names : mpi_variables()) {
    if (!variables(names.rank) || !variables(names.size)) continue;
    const Job job = read_job(variables, names.rank, names.size);
    if (found && found->job.size > 1 && job.size > 1) expect_same(found->job, job);
    if (!found || found->job.size == 1) found = {job, &names};
  }
  return found;
}

Environment read_mpi(const Variables& variables, const MpiJob& mpi) {
  const MpiVariables& names = *mpi.names;
  Environment environment;
  environment.rank = mpi.job.rank;
  environment.world_size = mpi.job.size;
  for (const char* name : names.local_ranks) {
    if (variables(name)) environment.local_rank = read_local_rank(variables, name);
  }
  if (environment.world_size == 1) return environment;
  const std::string size = std::to_string(mpi.job.size);
  read_master(variables,
              std::string(kHostOfRank0) + ", because " + names.size + " is `" + size +
                  "`; pass MASTER_ADDR and MASTER_PORT to all processes, for example with `" +
                  names.example + "`",
              &environment);
  for (const char* name : names.local_sizes) {
    const std::optional<std::string> local = variables(name);
    if (local && *local != size) expect_no_loopback(environment, name, *local);
  }
  return environment;
}

// A rank whose number of ranks is unknown must not train alone. PMIX_RANK never comes with a size.
void expect_no_part_of_mpi(const Variables& variables) {
  for (const MpiVariables& names : mpi_variables()) {
    if (variables(names.rank) || variables(names.size)) read_job(variables, names.rank, names.size);
  }
  if (const auto rank = variables("PMIX_RANK")) {
    throw std::invalid_argument(
        "environment variable PMIX_RANK is `" + *rank +
        "`, but no variable tells the number of ranks: set RANK, WORLD_SIZE, LOCAL_RANK, "
        "MASTER_ADDR and MASTER_PORT for each process");
  }
}

// Null unless srun started this process. A batch script and the shell of an allocation are tasks as
// well, number 0 of SLURM_NTASKS, but sbatch sets no SLURM_STEP_*, and the shell's step has one
// task. So has a step in which somebody called sbatch, which passes SLURM_STEP_* on.
std::optional<Job> find_srun(const Variables& variables) {
  const auto procid = variables("SLURM_PROCID");
  if (!procid) return std::nullopt;
  if (!variables("SLURM_STEP_NUM_TASKS")) {
    const bool has_step = variables("SLURM_STEP_ID") || variables("SLURM_STEP_NODELIST");
    if (!has_step && *procid == "0") return std::nullopt;
    return read_job(variables, "SLURM_PROCID", "SLURM_NTASKS");
  }
  // With --preserve-env, srun leaves SLURM_NTASKS as it is for the whole job.
  const Job job = read_job(variables, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
  const bool is_shell = job.size == 1 && variables("SLURM_NTASKS").value_or("1") != "1";
  return is_shell ? std::nullopt : std::optional(job);
}

Environment read_srun(const Variables& variables, const Job& job) {
  Environment environment;
  environment.rank = job.rank;
  environment.world_size = job.size;
  environment.local_rank = read_local_rank(variables, "SLURM_LOCALID");
  if (environment.world_size == 1) return environment;
  if (const auto address = variables("MASTER_ADDR")) {
    environment.master_addr = *address;
  } else {
    environment.master_variable =
        variables("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
    const std::string expected = "a list of hosts such as node[1-4]";
    const auto list = variables(environment.master_variable);
    if (!list) fail_not_set(environment.master_variable, expected);
    environment.master_addr = first_host(*list);
    if (environment.master_addr.empty()) fail_invalid(environment.master_variable, expected, *list);
  }
  const std::string nodes = variables("SLURM_STEP_NUM_NODES").value_or("1");
  if (nodes != "1") expect_no_loopback(environment, "SLURM_STEP_NUM_NODES", nodes);
  if (variables("MASTER_PORT")) {
    environment.master_port =
        static_cast<uint16_t>(number(variables, "MASTER_PORT", 1, 65535, "a port"));
    return environment;
  }
  // Below Linux's ephemeral ports; different for jobs that share a machine and for steps of a job.
  const int64_t job_id = number(variables, "SLURM_JOB_ID", 0, INT64_MAX, "a job id");
  const int64_t step = variables("SLURM_STEP_ID")
                           ? number(variables, "SLURM_STEP_ID", 0, INT64_MAX, "a step id")
                           : 0;
  environment.master_port =
      static_cast<uint16_t>(20000 + (job_id % 10000 + step % 10000 * 7) % 10000);
  return environment;
}

// Checks a process of a Slurm job that srun did not start. Without --ntasks, srun would start one
// task per node.
void expect_one_task(const Variables& variables) {
  const bool has_tasks = variables("SLURM_NTASKS") || !variables("SLURM_JOB_NUM_NODES");
  const std::string name = has_tasks ? "SLURM_NTASKS" : "SLURM_JOB_NUM_NODES";
  const int64_t tasks = number(variables, name, 1, kMaxRanks, "a number of ranks");
  if (tasks == 1) return;
  const auto in_step = variables("SLURM_STEP_NUM_TASKS");
  throw std::invalid_argument(
      "environment variable " + name + " is `" + std::to_string(tasks) +
      "`, but srun has not started this process as one of them (SLURM_STEP_NUM_TASKS is " +
      (in_step ? "`" + *in_step + "`" : "not set") +
      "): start the program with `srun`, or set RANK=0 and WORLD_SIZE=1 for a job of one process");
}

// The job of a launcher other than torchrun.
std::pair<Job, Environment> read_other(const Variables& variables) {
  const std::optional<MpiJob> mpi = find_mpi(variables);
  const std::optional<Job> srun = find_srun(variables);
  if (srun && (!mpi || (mpi->job.rank == srun->rank && mpi->job.size == srun->size)))
    return {*srun, read_srun(variables, *srun)};
  if (mpi) {
    // Several tasks that are each a world of one process train the same model several times.
    if (srun && mpi->job.size == 1) expect_same(mpi->job, *srun);
    return {mpi->job, read_mpi(variables, *mpi)};
  }
  if (variables("SLURM_PROCID"))
    expect_one_task(variables);
  else
    expect_no_part_of_mpi(variables);
  return {{"SLURM_PROCID", "SLURM_NTASKS", 0, 1}, {}};
}

}  // namespace

Variables variables_of_process() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

Environment read_environment(const Variables& variables) {
  const bool has_rank = variables("RANK").has_value();
  const bool has_size = variables("WORLD_SIZE").has_value();
  if (has_rank && has_size) {
    const Environment environment = read_torchrun(variables);
    const auto mpi = variables("LOCAL_WORLD_SIZE") ? std::nullopt : find_mpi(variables);
    if (mpi && mpi->job.size > 1)
      expect_same({"RANK", "WORLD_SIZE", environment.rank, environment.world_size}, mpi->job);
    return environment;
  }
  const bool has_other = variables("SLURM_PROCID") || find_mpi(variables) || variables("PMIX_RANK");
  if ((has_rank || has_size) && !has_other)
    return read_torchrun(variables);  // names the missing one
  const auto [job, environment] = read_other(variables);
  // Scripts for srun often set WORLD_SIZE alone.
  if (has_rank) {
    expect_equal("RANK", static_cast<int>(number(variables, "RANK", 0, kMaxRanks - 1, "a rank")),
                 job.rank_name, job.rank);
  }
  if (has_size) {
    const int64_t size = number(variables, "WORLD_SIZE", 1, kMaxRanks, "a number of ranks");
    expect_equal("WORLD_SIZE", static_cast<int>(size), job.size_name, job.size);
  }
  return environment;
}

Environment read_environment() { return read_environment(variables_of_process()); }

}  // namespace pipewright::comms
