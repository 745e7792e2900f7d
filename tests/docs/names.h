#ifndef PIPEWRIGHT_TESTS_DOCS_NAMES_H_
#define PIPEWRIGHT_TESTS_DOCS_NAMES_H_

// Declares names that snippets of the documents use without declaring them. They have no
// definition, because these snippets are compiled but never called.
#ifdef PIPEWRIGHT_DOCS_EVERYTHING

#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <vector>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/checkpoint/save.h"
#include "pipewright/checkpoint/torch/training_state.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/comms/store_rounds.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/modules/meta.h"
#include "pipewright/modules/tied_parameters.h"
#include "pipewright/schedule/simulate/report.h"
#include "pipewright/schedule/views/trace.h"
#include "pipewright/tp/cross_entropy.h"
#include "pipewright/tp/parallelize.h"

namespace snippets {

extern pipewright::ir::Program program;
extern torch::nn::Linear module, first, last;
extern std::map<int, torch::nn::Linear> stage_modules;
extern torch::optim::AdamW optimizer;
extern at::Tensor inputs, targets;
extern std::vector<int> ranks;
extern pipewright::comms::World world;
extern pipewright::comms::BackendPtr group;
extern pipewright::comms::Mesh mesh;
extern std::map<int, pipewright::executor::LocalStage> stages;
extern pipewright::executor::Executor executor;
void train(pipewright::comms::World& world);
at::Tensor loss(const pipewright::executor::Tensors& outputs,
                const pipewright::executor::Tensors& targets);

}  // namespace snippets

#endif  // PIPEWRIGHT_DOCS_EVERYTHING

#endif  // PIPEWRIGHT_TESTS_DOCS_NAMES_H_
