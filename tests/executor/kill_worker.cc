// One rank of pp 2 x dp 2 over Gloo that is killed, or whose peer is: kill_worker KIND RANK STEP
// WRAP
//
// Rank RANK kills itself before its first action of KIND (`F`, `SEND_B`, ...) in step STEP. WRAP is
// `replicate` or `shard`. Prints "killed MS" or "ended MS", in Unix milliseconds, and the error.
#include <ATen/Parallel.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "pipewright/comms/gloo.h"
#include "pipewright/ir/action_kind.h"
#include "pipewright/schedules/registry.h"
#include "tests/executor/models.h"
#include "tests/executor/trainer.h"

namespace pipewright::executor {
namespace {

long long now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int run(const std::string& kind, int victim, int64_t victim_step, bool shards) {
  comms::World world = comms::gloo_world(comms::read_environment());
  const ir::Program program = make_program(
      *schedules::find_schedule(kind == "B" ? "Interleaved1F1B" : "InterleavedZeroBubble"),
      {2, 4, 4});
  Trainer trainer(program, shards ? Parallel::kShard : Parallel::kReplicate, 2, world);
  int64_t step = 0;
  if (world.rank() == victim) {
    trainer.executor->set_function(ir::kind_of_token(kind).value(),
                                   [&](const ActionContext& context) {
                                     if (step == victim_step) {
                                       std::printf("killed %lld\n", now_ms());
                                       std::fflush(stdout);
                                       std::raise(SIGKILL);
                                     }
                                     context.run_default();
                                   });
  }
  try {
    for (; step < 3; ++step) trainer.train(step);
  } catch (const StepError& error) {
    std::printf("ended %lld\n%s\n", now_ms(), error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace pipewright::executor

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  at::set_num_threads(1);
  return pipewright::executor::run(argv[1], std::atoi(argv[2]), std::atoll(argv[3]),
                                   std::strcmp(argv[4], "shard") == 0);
}
