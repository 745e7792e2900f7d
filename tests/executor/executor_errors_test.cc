// Errors of the executor, which end the step on every rank and say where they are from.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pipewright/schedules/registry.h"
#include "tests/channel_model/programs.h"
#include "tests/executor/models.h"
#include "tests/executor/small_pipelines.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/recording/recording_backend.h"

namespace pipewright::executor {
namespace {

using channel_model::program_of;
using std::chrono::milliseconds;

TEST(ExecutorErrors, AFailingActionEndsTheStepOnEveryRank) {
  const ir::Program program = named("1F1B", 4, 4);
  const std::vector<std::string> errors = errors_of(4, [&](int rank, comms::World& world) {
    int step = 0;
    ExecutorHere executor(
        program,
        stages_of(program, rank,
                  [&, seen = 0](int stage, const Tensors& in) mutable {
                    if (stage == 2 && step == 1 && ++seen == 3)
                      throw std::runtime_error("out of luck");
                    return Tensors{in[0] * at::ones({1}, tests::here()).set_requires_grad(true)};
                  }),
        world, {.loss = sum_of});
    executor.step({.inputs = {at::ones({4}, tests::here())}});
    step = 1;
    try {
      executor.step({.inputs = {at::ones({4}, tests::here())}});
    } catch (const StepError& error) {
      const std::string first = error.what();
      try {
        executor.step({.inputs = {at::ones({4}, tests::here())}});
        ADD_FAILURE();
      } catch (const StepError& again) {
        EXPECT_EQ(again.what(), "no step can run after a failure: " + first);
      }
      throw;
    }
  });
  int rank = 0;
  for (const std::string& error : errors) {
    EXPECT_EQ(error.find("rank 2, step 1, action "), 0u) << rank << ": " << error;
    EXPECT_TRUE(contains(error, "`2F2`: out of luck")) << rank << ": " << error;
    ++rank;
  }
  EXPECT_TRUE(contains(errors[1], "\n  and then rank 1, step 1, ")) << errors[1];
}

// Exceptions of other languages: their what() lacks what a person needs to know.
TEST(ExecutorErrors, AnExceptionIsDescribedToEveryRank) {
  struct OutOfLuck : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  const ir::Program program = named("1F1B", 2, 2);
  for (const std::string& error : errors_of(2, [&](int rank, comms::World&world) {
         ExecutorHere executor(
             program,
             stages_of(program, rank,
                       [&](int stage, const Tensors& in) {
                         if (stage == 1) throw OutOfLuck("no luck");
                         return Tensors{doubled(in[0])};
                       }),
             world, {.loss = sum_of, .describe = [](const std::exception& error) {
                       // On rank 0 it is what the failure of rank 1 has ended.
                       const bool is_cause = dynamic_cast<const OutOfLuck*>(&error) != nullptr;
                       return std::string(is_cause ? "OutOfLuck: " : "") + error.what();
                     }});
         executor.step({.inputs = {at::ones({4}, tests::here())}});
       })) {
    EXPECT_EQ(error.find("rank 1, step 0, action "), 0u) << error;
    EXPECT_TRUE(contains(error, " `1F0`: OutOfLuck: no luck")) << error;
  }
}

TEST(ExecutorErrors, ALostPeerEndsTheStepAfterTheTimeout) {
  const ir::Program program = named("1F1B", 2, 2);
  const std::vector<std::string> errors = errors_of(
      2,
      [&](int rank, comms::World& world) {
        ExecutorHere executor(
            program,
            stages_of(program, rank,
                      [](int, const Tensors& in) { return Tensors{doubled(in[0])}; }),
            world, {.loss = sum_of});
        executor.step({.inputs = {at::ones({4}, tests::here())}});
        if (rank == 0) executor.step({.inputs = {at::ones({4}, tests::here())}});
      },
      milliseconds(2000));
  EXPECT_TRUE(contains(errors[0], "rank 0, step 1, action ")) << errors[0];
  EXPECT_TRUE(contains(errors[0], "`0RECV_B0` waits for `1SEND_B0` of rank 1") ||
              contains(errors[0], "timed out after 2000 ms"))
      << errors[0];
}

TEST(ExecutorErrors, RanksDisagree) {
  const auto errors_with =
      [](const std::function<void(int, ir::Program&, ExecutorOptions&)>& change) {
        return errors_of(2, [&](int rank, comms::World& world) {
          ir::Program program = named("Interleaved1F1B", 2, 4);
          ExecutorOptions options{.loss = sum_of};
          change(rank, program, options);
          const auto stages = stages_of(
              program, rank, [](int, const Tensors& in) { return Tensors{doubled(in[0])}; });
          ExecutorHere executor(program, stages, world, options);
        });
      };
  for (const std::string& error : errors_with([](int rank, ir::Program&program, ExecutorOptions&) {
         if (rank == 1) program = named("LoopedBFS", 2, 4);
       })) {
    EXPECT_EQ(error.find("the ranks do not agree: program is "), 0u) << error;
    EXPECT_TRUE(contains(error, " on rank 0 and ") && contains(error, " on rank 1")) << error;
  }
  for (const std::string& error : errors_with([](int rank, ir::Program&, ExecutorOptions&options) {
         options.scale_grads = rank == 0;
       })) {
    EXPECT_EQ(error, "the ranks do not agree: scale_grads is true on rank 0 and false on rank 1");
  }
  for (const std::string& error : errors_with([](int rank, ir::Program&program, ExecutorOptions&) {
         if (rank == 1) program.lowering.channels = ir::ChannelModel::kPeer;
       })) {
    EXPECT_EQ(error, "the ranks do not agree: channels is edge 0 on rank 0 and peer 0 on rank 1");
  }
}

TEST(ExecutorErrors, ShapesChange) {
  const ir::Program program = named("1F1B", 2, 2);
  const auto stages = [&](int rank) {
    return stages_of(program, rank, [](int, const Tensors& in) { return Tensors{doubled(in[0])}; });
  };
  for (const std::string& error : errors_of(2, [&](int rank, comms::World&world) {
         ExecutorHere executor(program, stages(rank), world, {.loss = sum_of});
         executor.step({.inputs = {at::ones({4}, tests::here())}});
         executor.eval({.inputs = {at::ones({4}, tests::here())}});
         executor.forget_shapes();
         executor.step({.inputs = {at::ones({6}, tests::here())}});
         executor.step({.inputs = {at::ones({8}, tests::here())}});
       })) {
    EXPECT_EQ(error,
              "rank 0, step 3: input 0 of microbatch 0: expected Float [3] as in the first step, "
              "got Float [4]; before other shapes, call forget_shapes() on all ranks, or set "
              "dynamic_shapes");
  }
  // The same input, but another output.
  for (const std::string& error : errors_of(2, [&](int rank, comms::World&world) {
         int rows = 1;
         ExecutorHere executor(program,
                               stages_of(program, rank,
                                         [&](int, const Tensors& in) {
                                           return Tensors{doubled(in[0]).repeat({rows})};
                                         }),
                               world, {.loss = sum_of});
         executor.step({.inputs = {at::ones({4})}});
         rows = 2;
         executor.step({.inputs = {at::ones({4})}});
       })) {
    EXPECT_EQ(
        error.find("rank 0, step 1, action 2 `0SEND_F0`: `0SEND_F0`: expected output 0 to be "
                   "Float [2] with gradient as in the first step, got Float [4] with gradient"),
        0u)
        << error;
  }
  for (const std::string& error : errors_of(2, [&](int rank, comms::World&world) {
         ExecutorHere executor(program, stages(rank), world,
                               {.loss = sum_of, .output_metas = [](int, int) {
                                  return TensorMetas{{at::kFloat, {3}, false}};
                                }});
         executor.step({.inputs = {at::ones({4}, tests::here())}});
       })) {
    EXPECT_EQ(error.find("rank 0, step 0, action 2 `0SEND_F0`: `0SEND_F0`: expected output 0 to be "
                         "Float [3] as in output_metas, got Float [2]"),
              0u)
        << error;
  }
}

std::string error_alone(const std::function<void(comms::World&)>& body) {
  return errors_of(1, [&](int, comms::World& world) { body(world); })[0];
}

TEST(ExecutorErrors, InvalidArguments) {
  const ir::Program program = named("ZBVZeroBubble", 1, 2);
  const auto stages =
      stages_of(program, 0, [](int, const Tensors& in) { return Tensors{doubled(in[0])}; });
  EXPECT_EQ(
      error_alone([&](comms::World& world) { ExecutorHere(program, {}, world, {.loss = sum_of}); }),
      "stage 0 is missing, expected stages [0, 1] on rank 0");
  EXPECT_EQ(error_alone([&](comms::World& world) { ExecutorHere(program, stages, world, {}); }),
            "loss: expected a function on the rank of the last stage, got none");
  EXPECT_EQ(error_alone([&](comms::World& world) {
              auto more = stages;
              more[2] = more[1];
              ExecutorHere(program, more, world, {.loss = sum_of});
            }),
            "stage 2 does not belong to this rank, expected stages [0, 1] on rank 0");
  EXPECT_EQ(error_alone([&](comms::World& world) {
              ExecutorHere(named("1F1B", 2, 2), stages, world, {.loss = sum_of});
            }),
            "ranks of the program: expected 2 ranks of a world of 1, got [0, 1]");
  EXPECT_EQ(error_alone([&](comms::World& world) {
              ExecutorHere executor(program, stages, world, {.loss = sum_of});
              executor.step({.inputs = {at::ones({1}, tests::here())}});
            }),
            "rank 0, step 0: input 0: expected size at least 2 along dimension 0, one per "
            "microbatch, got 1");
  EXPECT_EQ(
      error_alone([&](comms::World& world) {
        ExecutorHere executor(program, stages, world, {.loss = sum_of});
        executor.step(Batch{});
      }),
      "rank 0, step 0: inputs: expected microbatches on the rank of the first stage, got none");
  EXPECT_EQ(error_alone([&](comms::World& world) {
              ExecutorHere executor(program, stages, world, {.loss = sum_of});
              executor.step(Microbatches{{{at::ones({1}, tests::here())}}, {}, {}});
            }),
            "rank 0, step 0: inputs: expected 2 microbatches, got 1");
  EXPECT_TRUE(contains(error_alone([&](comms::World& world) {
                         ExecutorHere executor(program, stages, world,
                                               {.loss = [](const Tensors& out) { return out[0]; }});
                         executor.step({.inputs = {at::ones({4}, tests::here())}});
                       }),
                       "`1F0`: expected a loss with one element, got Float [2]"));
}

// An error that only one rank can detect is reported on all.
TEST(ExecutorErrors, AWrongBatchOrStageOnOneRankIsReportedOnAll) {
  const ir::Program program = named("1F1B", 2, 4);
  const auto stages = [&](int rank) {
    return stages_of(program, rank, [](int, const Tensors& in) { return Tensors{doubled(in[0])}; });
  };
  for (const std::string& error : errors_of(2, [&](int rank, comms::World&world) {
         ExecutorHere executor(program, stages(rank), world, {.loss = sum_of});
         executor.step({.inputs = {at::ones({rank == 0 ? 3 : 4}, tests::here())}});
       })) {
    EXPECT_EQ(error.find("rank 0, step 0: input 0: expected size at least 4 along dimension 0, one "
                         "per microbatch, got 3"),
              0u)
        << error;
  }
  const std::vector<std::string> errors = errors_of(2, [&](int rank, comms::World& world) {
    auto given = stages(rank);
    if (rank == 1) given.clear();
    ExecutorHere executor(program, given, world, {.loss = sum_of});
  });
  EXPECT_EQ(errors[0], "program rank 1: stage 1 is missing, expected stages [1] on rank 1");
  EXPECT_EQ(errors[1], "stage 1 is missing, expected stages [1] on rank 1");
}

TEST(ExecutorErrors, DetachedLoss) {
  const ir::Program program = named("1F1B", 1, 1);
  const std::string error = error_alone([&](comms::World& world) {
    ExecutorHere executor(
        program,
        stages_of(program, 0,
                  [](int, const Tensors& in) {
                    return Tensors{in[0] * at::ones({1}, tests::here()).set_requires_grad(true)};
                  }),
        world, {.loss = [](const Tensors& out) { return out[0].sum().detach(); }});
    executor.step({.inputs = {at::ones({1}, tests::here())}});
  });
  EXPECT_TRUE(contains(error, "`0F0`: the loss does not depend on the outputs, or was detached"))
      << error;
}

TEST(ExecutorErrors, AFailedSendIsReported) {
  const ir::Program program = named("1F1B", 2, 8);
  const std::vector<std::string> errors = errors_of(2, [&](int rank, comms::World& plain) {
    comms::World world = plain.wrapped([](const comms::BackendPtr& backend) {
      return comms::record(backend, std::make_shared<comms::CallLog>(),
                           [](const comms::CallRecord& call) {
                             comms::Fault fault;
                             // The first message connects the channel.
                             fault.fail_work = call.op == "send" && call.number == 3;
                             return fault;
                           });
    });
    ExecutorHere executor(
        program,
        stages_of(program, rank, [](int, const Tensors& in) { return Tensors{doubled(in[0])}; }),
        world, {.loss = sum_of});
    executor.step({.inputs = {at::ones({8}, tests::here())}});
  });
  for (const std::string& error : errors)
    EXPECT_TRUE(contains(error, "injected failure of rank 0, send 3")) << error;
}

// As Gloo does once a connection is broken. The error names each action once.
TEST(ExecutorErrors, APeerThatRefusesAMessageIsNamed) {
  const ir::Program program = named("1F1B", 2, 8);
  struct Refused {
    std::string op;
    int64_t number;  // on its channel; the first message connects it
    std::string expected;
  };
  for (const auto& [op, number, expected] : std::vector<Refused>{
           {"send", 3, " `0SEND_F1`: waits for `1RECV_F1` of rank 1: injected"},
           // In the second step, where it is posted at its place.
           {"recv", 11, " `1RECV_F1`: waits for `0SEND_F1` of rank 0: injected"}}) {
    const std::vector<std::string> errors = errors_of(2, [&](int rank, comms::World& plain) {
      comms::World world = plain.wrapped([&](const comms::BackendPtr& backend) {
        return comms::record(backend, std::make_shared<comms::CallLog>(),
                             [&](const comms::CallRecord& call) {
                               comms::Fault fault;
                               fault.refuse = call.op == op && call.number == number;
                               return fault;
                             });
      });
      ExecutorHere executor(
          program,
          stages_of(program, rank, [](int, const Tensors& in) { return Tensors{doubled(in[0])}; }),
          world, {.loss = sum_of});
      for (int step = 0; step < 2; ++step)
        executor.step({.inputs = {at::ones({8}, tests::here())}});
    });
    EXPECT_TRUE(contains(errors[0], expected)) << op << ": " << errors[0];
    EXPECT_TRUE(contains(errors[1], expected)) << op << ": " << errors[1];
  }
}

TEST(ExecutorErrors, AnInvalidProgramIsRejected) {
  const ir::Program program = program_of(ir::Placement::loop(1, 1), 2, {"0F0 0B0 0F1"});
  const std::string error = error_alone([&](comms::World& world) {
    ExecutorHere(program, stages_of(program, 0, [](int, const Tensors& in) { return in; }), world,
                 {.loss = sum_of});
  });
  EXPECT_EQ(error.find("the program is not valid:\n"), 0u) << error;
  EXPECT_TRUE(contains(error, "error[PW030]: stage 0 on rank 0 has no B or I of microbatch 1"))
      << error;
}

// Nothing else would add up the gradients of the two copies of each stage.
TEST(ExecutorErrors, TwoReplicasWithoutTiedParametersAreRefused) {
  const ir::Program program = make_program(*schedules::find_schedule("Chimera"),
                                           {.ranks = 2, .stages = 2, .microbatches = 2});
  for (const std::string& error : errors_of(2, [&](int rank, comms::World&world) {
         ExecutorHere(program, stages_of(program, rank, [](int, const Tensors& in) { return in; }),
                      world, {.loss = sum_of});
       })) {
    EXPECT_TRUE(contains(error,
                         "tied: expected the parameters of both replicas of each stage "
                         "(TiedParameters), got none"))
        << error;
  }
}

// Fragments that were not verified: the state of each action is checked.
TEST(ExecutorErrors, FragmentsAreCheckedActionByAction) {
  const auto error_of = [](const std::string& row) {
    const ir::Program program = program_of(ir::Placement::loop(1, 2), 1, {row});
    return error_alone([&](comms::World& world) {
      const at::Tensor weight = at::ones({1}, tests::here()).set_requires_grad(true);
      ExecutorHere executor(
          program,
          stages_of(program, 0, [=](int, const Tensors& in) { return Tensors{in[0] * weight}; }),
          world, {.loss = sum_of, .allow_unverified = true});
      executor.step({.inputs = {at::ones({1}, tests::here())}});
    });
  };
  const auto starts = [&](const std::string& row, const std::string& start) {
    const std::string error = error_of(row);
    EXPECT_EQ(error.find("rank 0, step 0, action " + start), 0u) << error;
    EXPECT_TRUE(contains(error, "\nthe program was not verified, and is not valid:\n")) << error;
  };
  EXPECT_EQ(error_of("0F0 1F0 1B0"), "");  // a valid fragment
  starts("1F0", "0 `1F0`: needs the output of `0F0`, which has not run");
  starts("0F0 0F0", "1 `0F0`: `0F0` has already run in this step");
  starts("0F0 0B0", "1 `0B0`: needs the gradient of `1B0`, which has not run");
  starts("0F0 1B0", "1 `1B0`: `1F0` has not run");
  starts("0F0 1F0 1B0 1B0", "3 `1B0`: the backward of this microbatch has already run");
  starts("0F0 1F0 1W0", "2 `1W0`: `1I0` has not run");
  starts("0F0 1F0 1B0 1W0", "3 `1W0`: the backward of this microbatch is already complete");
  starts("0UNSHARD 0F0 1F0", "2 `1F0`: stage 1 is not unsharded");
  starts("0UNSHARD 0UNSHARD 0F0", "1 `0UNSHARD`: stage 0 is already unsharded");
  starts("0UNSHARD 0RESHARD 0RESHARD 0F0", "2 `0RESHARD`: stage 0 is not unsharded");
}

}  // namespace
}  // namespace pipewright::executor
