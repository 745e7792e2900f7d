#ifndef PIPEWRIGHT_TESTS_EXECUTOR_MODELS_H_
#define PIPEWRIGHT_TESTS_EXECUTOR_MODELS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "pipewright/comms/world.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/schedules/schedule_spec.h"

// Models in fp64 that a test cuts into stages, training of them with and without a pipeline, and
// the comparison of both.

namespace pipewright::executor {

struct Model {
  std::vector<autograd::Forward> stages;
  std::vector<Tensors> weights;  // by stage
  LossFunction loss;
  Tensors inputs;  // of one step: a batch of `batch` rows
  Tensors targets;
};

enum class ModelKind { kMlp, kTransformer };

// Equal arguments give equal weights and data, in every thread and process, on tests::here().
Model make_model(ModelKind kind, int num_stages, int64_t batch, uint64_t seed = 0);

// The results of training, on the CPU.
struct Trained {
  struct Step {
    Tensors losses;  // by microbatch
    Tensors outputs;
  };
  std::array<std::vector<Step>, 2> results;  // by replica of the model and step
  std::vector<Tensors> grads;                // by stage, of the last step
  std::vector<Tensors> weights;              // by stage, at the end
};

inline constexpr int kSteps = 3;

// Without a pipeline: microbatch by microbatch, each loss divided by their number, with AdamW.
Trained train_reference(Model model, int num_microbatches);

// Trains one rank of a program, and writes this rank's part of `trained`.
void train_rank(const ir::Program& program, Model model, comms::World& world,
                ExecutorOptions options, Trained* trained);

// Trains all ranks as threads. Returns the errors of the ranks, empty if there are none.
std::string train_threads(const ir::Program& program, ModelKind kind, int64_t batch,
                          std::vector<comms::World>& worlds, Trained* trained);

// The differences; empty if there are none. If every stage accumulates its gradients in microbatch
// order, results must be equal bit for bit, otherwise within 1e-12 of the largest element. Where
// products have other bits than on the CPU, on which the reference was trained: within 1e-9.
std::string compare(const Trained& reference, const Trained& trained, const ir::Program& program,
                    const std::vector<int>& stages);
std::vector<int> all_stages(const ir::Program& program);

// Generates and lowers a schedule, and expects both to succeed.
ir::Program make_program(const schedules::ScheduleSpec& spec, const schedules::Shape& shape,
                         const ir::Lowering& policies = {});

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_TESTS_EXECUTOR_MODELS_H_
