#include "pipewright/schedules/registry.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

namespace pipewright::schedules {
namespace {

const ScheduleSpec& spec(std::string_view name) {
  const ScheduleSpec* found = find_schedule(name);
  EXPECT_NE(found, nullptr) << name;
  return *found;
}

std::string error(std::string_view name, const Shape& shape) {
  const auto error = shape_error(spec(name), shape);
  if (!error) return "";
  std::string text = ir::code(error->rule) + ": " + error->message;
  for (const ir::Note& note : error->notes) text += "; " + note.message;
  return error->help.empty() ? text : text + "; " + error->help;
}

// Finds the names of PyTorch's get_schedule_class, ignoring case, as in its
// test_get_schedule_class.
TEST(RegistryTest, KnowsPyTorchsNamesInAnyCase) {
  for (const char* name : {"1F1B", "1f1b", "Interleaved1F1B", "INTERLEAVED1F1B", "GPipe", "gpipe",
                           "LoopedBFS", "loopedbfs", "InterleavedZeroBubble", "ZBVZeroBubble",
                           "zbvzerobubble", "DualPipeV", "dualpipev"}) {
    EXPECT_NE(find_schedule(name), nullptr) << name;
  }
  // The names of its classes.
  for (const char* name : {"GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble",
                           "ZBVZeroBubble", "DualPipeV"}) {
    EXPECT_NE(find_schedule(name), nullptr) << name;
    EXPECT_EQ(find_schedule(std::string("Schedule") + name), find_schedule(name)) << name;
  }
  EXPECT_EQ(find_schedule("ZBV"), find_schedule("ZBVZeroBubble"));
  EXPECT_EQ(find_schedule("ScheduleThatDoesNotExist"), nullptr);
  EXPECT_EQ(find_schedule(""), nullptr);
}

TEST(RegistryTest, NoNameStandsTwice) {
  std::set<std::string_view> names;
  for (const std::string_view name : schedule_names())
    EXPECT_TRUE(names.insert(name).second) << name;
}

TEST(RegistryTest, StagesByDefault) {
  EXPECT_EQ(default_stages(spec("1F1B"), 4), 4);
  EXPECT_EQ(default_stages(spec("Interleaved1F1B"), 4), 8);
  EXPECT_EQ(default_stages(spec("ZBV"), 4), 8);
}

// PyTorch's rule: with P = 4, M = 10 is valid, 9 and 11 are not, and any M below 2P is.
TEST(RegistryTest, InterleavedWantsWholeRounds) {
  for (const char* name : {"Interleaved1F1B", "InterleavedZeroBubble"}) {
    for (int microbatches = 1; microbatches < 8; ++microbatches)
      EXPECT_EQ(error(name, {4, 8, microbatches}), "");
    EXPECT_EQ(error(name, {4, 8, 10}), "");
    EXPECT_NE(error(name, {4, 8, 11}), "");
  }
  EXPECT_EQ(error("Interleaved1F1B", {4, 8, 9}),
            "PW071: Interleaved1F1B does not exist for this shape: expected that microbatches are "
            "a multiple of max(1, microbatches div ranks), got 4 ranks, 8 stages, 9 microbatches; "
            "all rounds have the same number of microbatches; nearest: 8 or 10 microbatches");
}

TEST(RegistryTest, ErrorsNameTheNearestShapes) {
  EXPECT_EQ(error("1F1B", {4, 8, 4}),
            "PW071: 1F1B does not exist for this shape: expected that stages = ranks, got 4 ranks, "
            "8 stages, 4 microbatches; each rank holds one stage; nearest: 4 stages");
  EXPECT_EQ(error("LoopedBFS", {4, 6, 4}),
            "PW071: LoopedBFS does not exist for this shape: expected that stages are a multiple "
            "of ranks, got 4 ranks, 6 stages, 4 microbatches; each rank holds the same number of "
            "stages; nearest: 4 or 8 stages");
  EXPECT_EQ(error("DualPipeV", {4, 8, 7}),
            "PW071: DualPipeV does not exist for this shape: expected that microbatches >= stages, "
            "got 4 ranks, 8 stages, 7 microbatches; both arms of the V must fill before they "
            "overlap; nearest: 8 microbatches");
  EXPECT_EQ(error("DualPipeV", {4, 4, 4}),
            "PW071: DualPipeV does not exist for this shape: expected that stages = 2 ranks, got 4 "
            "ranks, 4 stages, 4 microbatches; each rank holds two stages, one on each arm of the "
            "V; nearest: 8 stages and 8 microbatches");
}

// A value that is refused is in the message, and the nearest legal ones are in the help. Megatron's
// rule: groups of at least P, the last one too.
TEST(RegistryTest, ErrorsNameTheNearestOptions) {
  const auto grouped = [](Shape shape, int size) {
    shape.group_size = size;
    return error("Interleaved1F1B", shape);
  };
  const std::string rule =
      "PW071: Interleaved1F1B does not exist for this shape: expected that the group size is at "
      "least ranks, and so is a partial group after full ones, got ";
  const std::string reason =
      "; a microbatch returns to a rank only after it has passed all other ranks; nearest: ";
  EXPECT_EQ(grouped({6, 12, 12}, 3),
            rule + "6 ranks, 12 stages, 12 microbatches, group-size 3" + reason + "group-size 6");
  EXPECT_EQ(grouped({4, 8, 10}, 8), rule + "4 ranks, 8 stages, 10 microbatches, group-size 8" +
                                        reason + "group-size 6 or 10");
  for (int size = 1; size < 20; ++size) {
    const std::string text = grouped({4, 8, 10}, size);
    if (text.empty()) continue;
    std::istringstream help(text.substr(text.rfind("group-size ") + 11));  // "6 or 10"
    std::string number;
    while (help >> number) {
      if (number == "or") continue;
      EXPECT_EQ(grouped({4, 8, 10}, std::stoi(number)), "") << text;
    }
  }
  // With another number of stages, no group size is legal.
  EXPECT_NE(grouped({4, 7, 8}, 4).find("nearest: 4 or 8 stages"), std::string::npos);
  EXPECT_EQ(error("V-Adaptive", {.ranks = 4, .stages = 8, .microbatches = 8, .memory = 0.1}),
            "PW071: V-Adaptive does not exist for this shape: expected that memory >= (ranks + 4) "
            "div 3, got 4 ranks, 8 stages, 8 microbatches, memory 0.1; V-Min needs that much, the "
            "building block with the least memory; nearest: memory 2");
  EXPECT_EQ(error("V-Adaptive", {.ranks = 4, .stages = 8, .microbatches = 8, .memory = 2}), "");
  EXPECT_EQ(error("1F1B", {.ranks = 4, .stages = 4, .microbatches = 8, .group_size = 4}),
            "PW072: 1F1B does not take `group-size`; leave it out: it is an option of "
            "Interleaved1F1B");
}

TEST(RegistryTest, SizesStayInsideAnAction) {
  EXPECT_NE(error("GPipe", {1 << 21, 1 << 21, 1}), "");
  EXPECT_NE(error("GPipe", {1, 1, (1 << 28) + 1}), "");
  EXPECT_NE(error("LoopedBFS", {1, 1 << 20, 1 << 28}), "");
  // 10^12 actions must be a typing error.
  EXPECT_NE(error("GPipe", {4096, 4096, 1 << 28}), "");
  EXPECT_GT(default_stages(spec("ZBV"), 1 << 30), 0);
  EXPECT_NE(error("GPipe", {0, 0, 1}), "");
  EXPECT_NE(error("GPipe", {1, 1, 0}), "");
}

TEST(RegistryTest, OneRanksRowIsTheOneInTheOrder) {
  for (const ScheduleSpec* one : all_schedules()) {
    const Shape shape{4, default_stages(*one, 4), 8};
    const ir::ComputeOrder order = make_order(*one, shape);
    for (int rank = 0; rank < 4; ++rank) {
      ir::Row whole = order.rows[static_cast<size_t>(rank)], alone = make_row(*one, shape, rank);
      if (one->align != nullptr) {  // its idle slots depend on the other ranks
        std::erase_if(whole, [](const ir::Action& action) { return action.is_idle(); });
        std::erase_if(alone, [](const ir::Action& action) { return action.is_idle(); });
      }
      EXPECT_EQ(alone, whole) << one->name << " rank " << rank;
    }
  }
}

}  // namespace
}  // namespace pipewright::schedules
