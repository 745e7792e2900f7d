#ifndef PIPEWRIGHT_EXECUTOR_LOCAL_STAGE_H_
#define PIPEWRIGHT_EXECUTOR_LOCAL_STAGE_H_

#include <memory>

#include "pipewright/executor/stage.h"
#include "pipewright/modules/data_parallel.h"

namespace pipewright::executor {

// A stage that this rank runs, and how its parameters are sharded or replicated over other ranks.
struct LocalStage {
  std::shared_ptr<Stage> stage;
  std::shared_ptr<modules::DataParallel> data_parallel = nullptr;  // null: only this rank has them
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_LOCAL_STAGE_H_
