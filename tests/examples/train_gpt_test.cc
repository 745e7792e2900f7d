// train_gpt from the command line: equal losses for every mesh, as threads and as processes; it
// learns.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "pipewright/schedules/registry.h"
#include "tests/checkpoint/scratch.h"
#include "tests/examples/training.h"

namespace pipewright::examples {
namespace {

// What follows --schedule: "1F1B"; what runs slices gets two per microbatch.
std::string flags_of(const schedules::ScheduleSpec& spec) {
  const bool has_slices = spec.options.data() == schedules::kSlicesOption.data();
  return std::string(spec.name) + (has_slices ? " --slices 2" : "");
}

TEST(TrainGpt, EveryScheduleMatchesASingleRank) {
  const std::string args = "--steps 8 --batch 16 --microbatches 8 ";
  const Trained alone = train(kTrain + args + "--pp 1 --schedule GPipe");
  EXPECT_EQ(alone.losses.size(), 8u);
  EXPECT_LT(alone.losses.back(), alone.losses.front());
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    const std::string schedule = " --schedule " + flags_of(*spec);
    expect_close(train(kTrain + args + "--pp 2" + schedule), alone, schedule);
  }
  expect_close(train("cli/pipewright launch -n 2 -- " + kTrain + args +
                     "--pp 2 --schedule Seq1F1B --slices 4"),
               alone, "launch");
  expect_close(
      train("cli/pipewright launch -n 4 -- " + kTrain + args + "--pp 4 --schedule DualPipe"), alone,
      "launch DualPipe");
  // A single microbatch changes only the order in which the mean is taken.
  expect_close(train(kTrain + "--steps 8 --batch 16 --microbatches 1 --pp 1 --schedule GPipe"),
               alone, "one microbatch");
}

// Two replicas of a pipeline of two ranks, each with half of every batch, or the same sharded; or
// two replicas that are sharded over two ranks each.
class DataParallel : public testing::TestWithParam<std::string> {};

TEST_P(DataParallel, MatchesASingleRank) {
  const bool both = GetParam() == "both";
  const std::string args = "--steps 8 --batch 16 --microbatches 4 ";
  const std::string copies = both ? "--dp-replicate 2 --dp-shard 2" : "--dp-" + GetParam() + " 2";
  const Trained alone = train(kTrain + args + "--pp 1 --schedule GPipe");
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    const std::string schedule = "--pp 2 " + copies + " --schedule " + flags_of(*spec);
    expect_close(train(kTrain + args + schedule), alone, schedule);
  }
  if (both) return;
  // A longer training, over processes.
  const std::string longer = "--steps 20 --batch 16 --microbatches 4 ";
  const std::string schedule = "--pp 2 --dp-" + GetParam() + " 2 --schedule ZBV";
  expect_close(train("cli/pipewright launch -n 4 -- " + kTrain + longer + schedule),
               train(kTrain + longer + "--pp 1 --schedule GPipe"), "launch");
}

INSTANTIATE_TEST_SUITE_P(TrainGpt, DataParallel, testing::Values("replicate", "shard", "both"));

// Pipelines of two ranks whose layers are split over two ranks and sharded over two.
TEST(TrainGpt, TensorParallelMatchesASingleRank) {
  const std::string args = "--steps 8 --batch 16 --microbatches 4 ";
  const Trained alone = train(kTrain + args + "--pp 1 --schedule GPipe");
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    const std::string schedule = "--pp 2 --tp 2 --dp-shard 2 --schedule " + flags_of(*spec);
    expect_close(train(kTrain + args + schedule), alone, schedule);
  }
  for (const char* schedule : {"1F1B", "Interleaved1F1B", "ZBV", "InterleavedZeroBubble"}) {
    const std::string mesh = "--pp 2 --tp 2 --dp-shard 2 --sequence-parallel --schedule ";
    expect_close(train(kTrain + args + mesh + schedule), alone, mesh + schedule);
  }
  for (const std::string mesh : {"--pp 1 --tp 2", "--pp 1 --tp 2 --sequence-parallel",
                                 "--pp 2 --tp 2 --dp-replicate 2 --schedule ZBV",
                                 "--pp 1 --tp 2 --dp-replicate 2 --dp-shard 2"})
    expect_close(train(kTrain + args + mesh), alone, mesh);
}

// Plans that cut the layers of kTrain's model, found with the costs that are predicted for it; the
// last one has stages without blocks, and the output layer beside the embedding's rank.
TEST(TrainGpt, CutsOfPlansMatchASingleRank) {
  const auto folder = tests::scratch_folder("cuts");
  const std::string costs = folder / "costs.json", plan = folder / "found.plan";
  const auto run = [](const std::string& command) {
    const tests::Output output = tests::run_shell("cli/pipewright " + command);
    ASSERT_EQ(output.status, 0) << output.text;
  };
  run("costs --blocks 3 --hidden-size 32 --heads 2 --vocabulary 256 --seq 32 --gpu a100 -o " +
      costs);
  const std::string args = "--steps 8 --batch 16 --microbatches 4 ";
  const Trained alone = train(kTrain + args + "--pp 1 --schedule GPipe");
  for (const std::string search :
       {"--ranks 2 --layers", "--ranks 3 --layers --merge-backward",
        "--ranks 2 --layers --placement v", "--ranks 2 --layers --stages 4 --memory 2",
        "--ranks 2 --layers --placement v --recompute", "--ranks 2 --placement v --cut 0,4,0,1"}) {
    run("search --costs " + costs + " --microbatches 4 --budget 20000 " + search + " -o " + plan);
    const std::string pp = search.substr(search.find("--ranks ") + 8, 1);
    expect_close(train(kTrain + args + "--pp " + pp + " --schedule " + plan), alone, search);
  }
}

// The first and the last stage share the token embedding: on two ranks or on one, replicated,
// sharded and split, whose gradients are clipped once.
TEST(TrainGpt, TiedEmbeddingsMatchASingleRank) {
  const std::string args = "--tie --steps 8 --batch 16 --microbatches 4 --clip 0.5 ";
  const Trained alone = train(kTrain + args + "--pp 1 --schedule GPipe");
  EXPECT_NE(alone.losses, train(kTrain + "--steps 8 --pp 1 --schedule GPipe --clip 0.5").losses);
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    const std::string schedule = "--pp 2 --schedule " + flags_of(*spec);
    expect_close(train(kTrain + args + schedule), alone, schedule);
  }
  for (const std::string mesh :
       {"--dp-replicate 2", "--dp-shard 2", "--dp-replicate 2 --dp-shard 2",
        "--tp 2 --sequence-parallel", "--tp 2 --dp-shard 2"}) {
    for (const std::string schedule : {"--pp 2 --schedule InterleavedZeroBubble",
                                       "--pp 2 --schedule ZBV", "--pp 1 --schedule GPipe"})
      expect_close(train(kTrain + args + mesh + " " + schedule), alone, mesh + schedule);
  }
  expect_close(train("cli/pipewright launch -n 4 -- " + kTrain + args +
                     "--pp 4 --stages-per-rank 1 --schedule 1F1B"),
               alone, "launch");
}

// RMSNorm, rotary positions, recomputed blocks, stages of uneven size, and a learning rate that
// changes: against one rank with one microbatch, which stores everything. 19 windows are 9 and 10
// on two copies of the pipeline, in microbatches of two and three.
TEST(TrainGpt, EveryOptionOfTheModelMatchesASingleRank) {
  const std::string args = "--norm rms --rope --tie --warmup 5 --cosine --steps 8 --batch 19 ";
  const Trained alone = train(kTrain + args + "--pp 1 --schedule GPipe --microbatches 1");
  const auto parallel = [&](const std::string& checkpointing) {
    return kTrain + args + "--activation-checkpointing " + checkpointing +
           " --microbatches 4 --pp 2 --schedule ";
  };
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules())
    expect_close(train(parallel("") + flags_of(*spec) + " --dp-shard 2 --balance"), alone,
                 std::string(spec->name));
  for (const std::string mesh :
       {"1F1B --tp 2 --sequence-parallel --balance",
        "Seq1F1B --slices 4 --tp 2 --sequence-parallel", "ZBV --dp-replicate 2 --balance estimated",
        "ZBV --tp 2 --dp-replicate 2", "InterleavedZeroBubble --balance measured"})
    expect_close(train(parallel("selective") + mesh), alone, mesh);
  const std::string measured = "ZBV --dp-replicate 2 --balance measured";
  expect_close(train("cli/pipewright launch -n 4 -- " + parallel("full") + measured), alone,
               "launch");
}

TEST(TrainGpt, EachOptionOfTheModelMatters) {
  const std::string args = kTrain + "--steps 3 --pp 1 --schedule GPipe ";
  std::vector<std::vector<double>> all = {train(args).losses};
  for (const char* flag :
       {"--norm rms", "--rope", "--tie", "--warmup 3", "--cosine", "--clip 0.5", "--lr 0.001"}) {
    all.push_back(train(args + flag).losses);
    for (size_t i = 0; i + 1 < all.size(); ++i) EXPECT_NE(all[i], all.back()) << flag;
  }
  for (const char* how : {"", " full", " selective"})
    EXPECT_EQ(train(args + "--activation-checkpointing" + how).losses, all[0]) << how;
}

// Over processes, and with heads, MLPs and a vocabulary of which each of three ranks has a part:
// 256 tokens are 86, 86 and 84.
TEST(TrainGpt, TensorParallelOverProcesses) {
  const std::string args =
      "examples/train_gpt --layers 3 --dim 48 --context 32 --steps 10 "
      "--batch 16 --microbatches 4 ";
  const Trained alone = train(args + "--pp 1 --schedule GPipe --clip 0.5");
  expect_close(train("cli/pipewright launch -n 6 -- " + args +
                     "--pp 2 --tp 3 --schedule InterleavedZeroBubble --clip 0.5"),
               alone, "launch");
}

TEST(TrainGpt, ProcessesMatchThreads) {
  const std::string args = "--steps 5 --pp 4 --schedule ZBV --microbatches 8";
  expect_close(train("cli/pipewright launch -n 4 -- " + kTrain + args), train(kTrain + args),
               "launch");
}

TEST(TrainGpt, SeedsMatter) {
  const Trained one = train(kTrain + "--steps 2 --seed 1"),
                two = train(kTrain + "--steps 2 --seed 2");
  EXPECT_NE(one.losses[0], two.losses[0]);
  EXPECT_EQ(one.losses, train(kTrain + "--steps 2 --seed 1").losses);
}

// Beats a bigram model on held-back text.
TEST(TrainGpt, Learns) {
  const Trained learned = train("examples/train_gpt --data docs/command_line.md --steps 150");
  EXPECT_LT(learned.held_back, learned.bigram);
}

TEST(TrainGpt, ClipsTheNormOfTheWholeModel) {
  const std::string args = "--steps 10 --batch 16 --microbatches 4 ";
  const Trained alone = train(kTrain + args + "--pp 1 --schedule GPipe --clip 0.5");
  EXPECT_NE(alone.losses, train(kTrain + args + "--pp 1 --schedule GPipe").losses);
  for (const char* copies : {"--dp-replicate 2 ", "--dp-shard 2 --dp-replicate 2 ", "--tp 2 ",
                             "--tp 2 --dp-shard 2 --sequence-parallel "})
    expect_close(train(kTrain + args + copies + "--schedule ZBV --clip 0.5"), alone, copies);
}

// In bf16 with fp32 reductions, replicated and sharded: as good as fp32.
TEST(TrainGpt, LearnsInMixedPrecision) {
  const std::string args = kTrain + "--steps 60 ";
  const Trained exact = train(args);
  for (const std::string copies :
       {"--dp-replicate 2 --schedule ZBV", "--dp-shard 2 --schedule ZBV",
        "--tp 2 --dp-replicate 2 --schedule ZBV", "--dp-shard 2 --schedule Seq1F1B --slices 4"}) {
    const Trained mixed = train(args + copies + " --param-dtype bf16 --reduce-dtype fp32");
    EXPECT_NE(mixed.losses, exact.losses);
    EXPECT_NEAR(mixed.losses[0], exact.losses[0], 0.01);
    EXPECT_NEAR(mixed.held_back, exact.held_back, 0.02) << copies;
  }
  const std::string few = "--steps 3 --dp-shard 2 --param-dtype bf16 --reduce-dtype ";
  for (const std::string reduce : {"bf16", "fp32"}) {
    expect_close(train("cli/pipewright launch -n 4 -- " + kTrain + few + reduce),
                 train(kTrain + few + reduce), "launch " + reduce);
  }
}

}  // namespace
}  // namespace pipewright::examples
