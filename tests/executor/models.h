#ifndef PIPEWRIGHT_TESTS_EXECUTOR_MODELS_H_
#define PIPEWRIGHT_TESTS_EXECUTOR_MODELS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "pipewright/comms/world.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/schedules/schedule_spec.h"

// Models in fp64 that a test cuts into stages, the same model without a pipeline, and training of
// both, to be compared.

namespace pipewright::executor {

struct Model {
  std::vector<autograd::Forward> stages;
  std::vector<Tensors> weights;  // by stage
  LossFunction loss;
  Tensors inputs;  // of a step: a batch of `batch` rows
  Tensors targets;
};

enum class ModelKind { kMlp, kTransformer };

// The same weights and data for the same numbers, wherever it is made.
Model make_model(ModelKind kind, int num_stages, int64_t batch, uint64_t seed = 0);

// What training leaves.
struct Trained {
  std::vector<std::vector<at::Tensor>> losses;  // by step and microbatch
  std::vector<Tensors> outputs;                 // by step
  std::vector<Tensors> grads;                   // by stage, of the last step
  std::vector<Tensors> weights;                 // by stage, at the end
};

inline constexpr int kSteps = 3;

// Microbatch by microbatch, the loss of each divided by their number, with AdamW.
Trained train_reference(Model model, int num_microbatches);

// One rank of a program; fills in what that rank has.
void train_rank(const ir::Program& program, Model model, comms::World& world,
                ExecutorOptions options, Trained* trained);

// All ranks as threads; errors of ranks, empty if there are none.
std::string train_threads(const ir::Program& program, ModelKind kind, int64_t batch,
                          std::vector<comms::World>& worlds, Trained* trained);

// Why the two differ; empty if they do not. Stages whose weights get their gradients in the order
// of the microbatches must be equal bit for bit, others within 1e-12 of the largest element.
std::string compare(const Trained& reference, const Trained& trained, const ir::Program& program,
                    const std::vector<int>& stages);
std::vector<int> all_stages(const ir::Program& program);

// Makes, lowers and checks that it worked.
ir::Program make_program(const schedules::ScheduleSpec& spec, const schedules::Shape& shape,
                         const ir::Lowering& policies = {});

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_TESTS_EXECUTOR_MODELS_H_
