#ifndef PIPEWRIGHT_EXAMPLES_OPTIONS_H_
#define PIPEWRIGHT_EXAMPLES_OPTIONS_H_

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "examples/checkpoints.h"
#include "examples/gpt.h"
#include "examples/learning_rate.h"

// The command line of train_gpt.

namespace pipewright::examples {

// How blocks are distributed over stages: as many each, or so that stages cost the same.
enum class Balance { kCount, kEstimated, kMeasured };

struct Options {
  std::string data = "/usr/share/common-licenses/GPL-3";
  std::string schedule = "1F1B";
  int pp = 2;
  int dp_replicate = 1;
  int dp_shard = 1;
  int tp = 1;
  bool sequence_parallel = false;  // needs a `tp` above 1 that divides the context
  int stages_per_rank = 0;         // 0: the schedule's default
  int microbatches = 4;
  int slices = 0;  // that each microbatch is cut into along the context; 0: one, or those of a file
  double search_memory = 0;  // activations per rank, of --schedule search; 0: what is left
  int64_t steps = 200;
  int64_t batch = 16;
  double learning_rate = 3e-3;
  bool has_learning_rate = false;  // --lr was given: it replaces that of a checkpoint
  LearningRatePlan learning_rate_plan;
  double clip = 0;  // 0: gradients are not clipped
  at::ScalarType param_dtype = at::kFloat;
  at::ScalarType reduce_dtype = at::kFloat;
  double timeout = 600;      // seconds; of each wait for another rank
  double first_timeout = 0;  // seconds; of the first step; 0: `timeout`
  std::string device = "cpu";
  std::string profile;       // a file; empty: none
  std::string record;        // a file; empty: nothing is recorded
  int64_t record_step = -1;  // -1: the last step
  std::string metrics;       // a file; empty: none
  std::string tensorboard;   // a folder; empty: none
  std::string sample;        // a text to continue instead of training; empty: none
  bool json = false;
  CheckpointFlags checkpoints;
  GptConfig model;  // without the costs of `balance`
  Balance balance = Balance::kCount;

  // Ranks of the data-parallel dimensions: they train the same stages on different data.
  int copies() const { return dp_replicate * dp_shard; }
  int ranks() const { return pp * copies() * tp; }
  // Of a wait in the first step, in later ones, and of the world.
  std::chrono::milliseconds first_step_limit() const {
    return milliseconds(first_timeout > 0 ? first_timeout : timeout);
  }
  std::chrono::milliseconds step_limit() const { return milliseconds(timeout); }
  std::chrono::milliseconds world_limit() const {
    return std::max(first_step_limit(), step_limit());
  }
  bool writes_figures() const { return !metrics.empty() || !tensorboard.empty(); }
  bool searches() const { return schedule == "search"; }
  std::optional<double> search_limit() const {
    return search_memory > 0 ? std::optional(search_memory) : std::nullopt;
  }
  int64_t recorded_step() const { return record_step < 0 ? steps - 1 : record_step; }
  bool is_mixed_precision() const {
    return param_dtype != at::kFloat || reduce_dtype != at::kFloat;
  }

 private:
  static std::chrono::milliseconds milliseconds(double seconds) {
    return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  }
};

// The options, or the exit code if there is nothing to run: --help, or an error that was printed.
std::variant<Options, int> parse_options(int argc, char** argv);

// Throws UsageError for options that do not go together.
void check(const Options& options);

// "--pp 2 times --dp-replicate 1", for `flag` and `value`: what a product of ranks consists of.
std::string times_copies(const std::string& flag, int value, const Options& options);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_OPTIONS_H_
