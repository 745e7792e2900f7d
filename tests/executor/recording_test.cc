// Recordings of real steps: every action once, in an order that the program allows, computes
// without their waits; and the names that LibTorch's profiler sees.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "pipewright/comms/threads/threads.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/ir/errors.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/graph/channel_graph.h"
#include "pipewright/schedule/simulate/report.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedules/registry.h"
#include "tests/executor/models.h"
#include "tests/support/catalogue/catalogue.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::executor {
namespace {

using schedule::ChannelGraph;

// Trains `steps` steps over threads. `body` runs on each rank after them.
using Body = std::function<void(int rank, Executor& executor, const Batch& batch)>;
std::vector<std::string> train(const ir::Program& program, int steps, const Body& body,
                               std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  const int ranks = program.placement.num_ranks();
  std::vector<comms::World> worlds = tests::make_worlds(ranks, {.timeout = timeout});
  return tests::errors_of_ranks(ranks, [&](int rank) {
    Model model = make_model(ModelKind::kMlp, program.placement.num_stages(), 8);
    std::map<int, LocalStage> stages;
    for (const int stage : program.placement.stages_of(rank))
      stages[stage].stage = std::make_shared<ModuleStage>(model.stages[static_cast<size_t>(stage)]);
    Executor executor(program, stages, worlds[static_cast<size_t>(rank)],
                      {.loss = model.loss, .device = tests::here()});
    executor.record();
    const Batch batch{model.inputs, {}, model.targets};
    for (int step = 0; step < steps; ++step) executor.step(batch);
    body(rank, executor, batch);
  });
}

void expect_no_errors(const std::vector<std::string>& errors) {
  EXPECT_EQ(errors, std::vector<std::string>(errors.size()));
}

ir::Program program_of(const schedules::ScheduleSpec& spec) {
  return make_program(spec, {2, schedules::default_stages(spec, 2), 4});
}

bool is_transfer(ChannelGraph::Node node) {
  return node == ChannelGraph::Node::kSend || node == ChannelGraph::Node::kReceive;
}

class RecordingOfEverySchedule : public testing::TestWithParam<const schedules::ScheduleSpec*> {};

TEST_P(RecordingOfEverySchedule, HasEveryActionAfterWhatItWaitsFor) {
  const ir::Program program = program_of(*GetParam());
  ir::Timeline recorded;
  expect_no_errors(train(program, 2, [&](int rank, Executor& executor, const Batch&) {
    const ir::Timeline timeline = executor.recording();
    if (rank == 0)
      recorded = timeline;
    else
      EXPECT_EQ(timeline.size(), 0);
  }));
  const auto graph =
      ChannelGraph::of_program(program, ir::ChannelModel::kEdge, ir::kUnboundedCapacity);
  ASSERT_EQ(recorded.size(), graph.size());
  double first = 1;
  for (uint32_t action = 0; action < graph.size(); ++action) {
    const ChannelGraph::Cell cell = graph.cell_of(action);
    const std::string name = ir::to_string(program.rows[cell.rank][cell.step]);
    const ir::Interval& own = recorded[action];
    first = std::min(first, own.start);
    EXPECT_GE(own.duration(), 0) << name;
    if (graph.node(action) == ChannelGraph::Node::kCompute) {
      EXPECT_GT(own.duration(), 0) << name;
    }
    graph.any_dependency(action, [&](const schedule::Dependency& dependency) {
      const ir::Interval& other = recorded[dependency.action];
      // Transfers of one queue overlap, and a compound starts with its first part.
      const bool starts_together =
          dependency.kind == schedule::Dependency::kSend ||
          (is_transfer(graph.node(action)) && is_transfer(graph.node(dependency.action)));
      // Devices have clocks of their own: a tensor may seem to arrive before it was sent.
      const bool was_moved = tests::is_on_device() && other.duration() == 0 &&
                             is_transfer(graph.node(dependency.action));
      if (was_moved) return false;
      if (starts_together) {
        EXPECT_GE(own.end, other.start) << name;
      } else if (program.rows[cell.rank][cell.step].is_compound() ||
                 (graph.node(action) == ChannelGraph::Node::kWait &&
                  graph.node(dependency.action) != ChannelGraph::Node::kCompute)) {
        // A WAIT lasts until what it is for has ended.
        EXPECT_GE(own.end, other.end) << name;
      } else {
        EXPECT_GE(own.start, other.end) << name;
      }
      return false;
    });
  }
  EXPECT_EQ(first, 0);
  // In the order of the program. RECVs are left out: in a merged recording they start no sooner
  // than their SENDs.
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    double previous = 0;
    for (size_t step = 0; step < program.rows[rank].size(); ++step) {
      const ir::Action& action = program.rows[rank][step];
      if (action.is_idle() || ir::is_receive(action.kind())) continue;
      EXPECT_GE(recorded.at(rank, step).start, previous) << ir::to_string(action);
      previous = recorded.at(rank, step).start;
    }
  }

  // The recorded starts meet every dependency, so the simulation, which starts each action as soon
  // as it can, takes no longer with the same durations and transfers that take no time; and no less
  // than the busiest rank. A compound is recorded from the input of its first part on, and the
  // clocks of devices do not agree so well.
  const bool has_compounds = std::ranges::any_of(program.rows, [](const ir::Row& row) {
    return std::ranges::any_of(row, [](const ir::Action& action) { return action.is_compound(); });
  });
  if (has_compounds || tests::is_on_device()) return;
  const schedule::Costs unit{.unshard = 1, .reshard = 1, .reduce_grad = 1};
  const schedule::CostTable table(unit, program.placement);
  std::vector<double> stretch;
  double busiest = 0;
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    double busy = 0;
    for (size_t step = 0; step < program.rows[rank].size(); ++step) {
      const ir::Action& action = program.rows[rank][step];
      const double duration = recorded.at(rank, step).duration();
      stretch.push_back(is_transfer(graph.node(graph.number_of(rank, step))) ||
                                ir::is_wait(action.kind())
                            ? 0
                            : duration / table.duration(action, rank));
      if (ir::is_compute(action.kind())) busy += duration;
    }
    busiest = std::max(busiest, busy);
  }
  const double makespan =
      ir::span_of(program.rows, schedule::simulate(graph, program, unit, stretch)).duration();
  EXPECT_LE(makespan, ir::span_of(program.rows, recorded).duration() + 1e-9);
  EXPECT_GE(makespan, busiest - 1e-9);
}

// The names of the ranges that LibTorch's profiler sees while `run` runs, by thread.
std::vector<std::vector<std::string>> ranges_of(const std::function<void()>& run) {
  static std::mutex mutex;
  static std::map<uint64_t, std::vector<std::string>> names;
  const at::CallbackHandle handle = at::addGlobalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& range)
                                     -> std::unique_ptr<at::ObserverContext> {
        const std::lock_guard lock(mutex);
        names[at::RecordFunction::currentThreadId()].emplace_back(range.name());
        return nullptr;
      }).scopes({at::RecordScope::USER_SCOPE}));
  run();
  at::removeCallback(handle);
  std::vector<std::vector<std::string>> found;
  for (const auto& [thread, ranges] : std::exchange(names, {})) found.push_back(ranges);
  return found;
}

TEST_P(RecordingOfEverySchedule, NamesTheActionsOfTheProgramInOrder) {
  const ir::Program program = program_of(*GetParam());
  std::vector<std::vector<std::string>> found =
      ranges_of([&] { expect_no_errors(train(program, 1, [](int, Executor&, const Batch&) {})); });
  std::vector<std::vector<std::string>> expected;
  for (const ir::Row& row : program.rows) {
    std::vector<std::string>& ranges = expected.emplace_back();
    for (const ir::Action& action : row) {
      if (!action.is_idle()) ranges.push_back("PP:" + ir::to_string(action));
    }
  }
  std::ranges::sort(found);
  std::ranges::sort(expected);
  EXPECT_EQ(found, expected);
}

INSTANTIATE_TEST_SUITE_P(All, RecordingOfEverySchedule,
                         testing::ValuesIn(tests::schedules_of_one_replica()),
                         [](const auto& parameter) {
                           std::string name(parameter.param->name);
                           std::erase_if(name, [](char letter) { return !std::isalnum(letter); });
                           return name;
                         });

TEST(Recording, TheBubbleOfARankIsThatOfTheReport) {
  const ir::Program program = program_of(*schedules::find_schedule("1F1B"));
  std::vector<double> bubbles(2);
  ir::Timeline recorded;
  expect_no_errors(train(program, 0, [&](int rank, Executor& executor, const Batch& batch) {
    const StepResult result = executor.step(batch);
    ASSERT_TRUE(result.bubble.has_value());
    bubbles[static_cast<size_t>(rank)] = *result.bubble;
    const ir::Timeline timeline = executor.recording();
    if (rank == 0) recorded = timeline;
    EXPECT_FALSE(executor.eval(batch).bubble.has_value());
    executor.record(false);
    EXPECT_FALSE(executor.step(batch).bubble.has_value());
  }));
  const schedule::Report report = schedule::report_on(program, {}, recorded);
  for (size_t rank = 0; rank < 2; ++rank) {
    const schedule::RankReport& one = report.ranks[rank];
    EXPECT_NEAR(bubbles[rank], 1 - one.busy / one.span(), 1e-6) << rank;
  }
}

TEST(Recording, AWaitIsNotCompute) {
  const ir::Program program = program_of(*schedules::find_schedule("GPipe"));
  std::vector<comms::World> worlds = comms::thread_worlds(2);
  ir::Timeline recorded;
  const std::string errors = tests::run_ranks(2, [&](int rank) {
    const auto stage = std::make_shared<ModuleStage>([rank](const Tensors& inputs) {
      if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return Tensors{inputs[0] * 2};
    });
    Executor executor(
        program, {{rank, {stage}}}, worlds[static_cast<size_t>(rank)],
        {.loss = [](const Tensors& outputs, const Tensors&) { return outputs[0].sum(); }});
    executor.record();
    const at::Tensor x = at::ones({4, 2}).requires_grad_();
    executor.step({{x}, {}, {x}});
    const ir::Timeline timeline = executor.recording();
    if (rank == 0) recorded = timeline;
  });
  ASSERT_EQ(errors, "");
  // F of rank 1 runs after F of rank 0 has ended, though rank 1 has waited for it from the start.
  for (size_t rank = 0, f = 0; rank < 2; ++rank, f = 0) {
    for (size_t step = 0; step < program.rows[rank].size(); ++step) {
      if (program.rows[rank][step].kind() != ir::ActionKind::kForward) continue;
      ++f;
      const double least =
          rank == 0 ? 5e-3 * static_cast<double>(f - 1) : 5e-3 * static_cast<double>(f);
      EXPECT_GE(recorded.at(rank, step).start, least);
      if (rank == 0) {
        EXPECT_GE(recorded.at(rank, step).duration(), 5e-3);
      }
    }
    EXPECT_EQ(f, 4);
  }
}

TEST(Recording, NeedsAStepAfterRecord) {
  const ir::Program program = program_of(*schedules::find_schedule("1F1B"));
  expect_no_errors(train(program, 0, [&](int, Executor& executor, const Batch& batch) {
    EXPECT_THROW(executor.recording(), ContractError);
    executor.eval(batch);
    EXPECT_THROW(executor.recording(), ContractError);
    executor.step(batch);
    const ir::Timeline first = executor.recording();
    executor.eval(batch);
    EXPECT_EQ(executor.recording(), first);  // an evaluation changes nothing
    executor.record(false);
    executor.step(batch);
    EXPECT_THROW(executor.recording(), ContractError);
  }));
}

TEST(Recording, ARankThatBringsNoneIsNamed) {
  const ir::Program program = program_of(*schedules::find_schedule("1F1B"));
  const std::vector<std::string> errors = train(
      program, 1,
      [&](int rank, Executor& executor, const Batch&) {
        if (rank == 0) executor.recording();
      },
      std::chrono::milliseconds(500));
  EXPECT_NE(errors[0].find("rank 1"), std::string::npos) << errors[0];
  EXPECT_EQ(errors[1], "");
}

}  // namespace
}  // namespace pipewright::executor
