// The recording of a schedule as JSON: it round-trips, and everything wrong with it has its place.
#include <gtest/gtest.h>

#include <sstream>

#include "pipewright/ir/text/read.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/ir/text/schedule_json.h"
#include "pipewright/ir/timeline.h"

namespace pipewright::ir {
namespace {

// A compute order of one rank with an idle slot, and this value of `recording`.
Source file_with(const std::string& recording) {
  return {"run.json",
          "{\"version\": 1, \"level\": \"compute_only\", \"ranks\": 1, \"stages\": 1,\n"
          "\"microbatches\": 1, \"placement\": \"loop\", \"rows\": [[\"0F0\", null, \"0B0\"]],\n"
          "\"recording\": " +
              recording + "}"};
}

std::string first_error(const std::string& recording) {
  const Source source = file_with(recording);
  Diagnostics diagnostics;
  EXPECT_FALSE(parse_json(source, &diagnostics));
  if (!diagnostics.has_errors()) return "";
  const Diagnostic& one = diagnostics.kept().front();
  EXPECT_EQ(one.place.line, 3) << recording;
  return code(one.rule) + " " + one.message;
}

TEST(RecordingTest, RoundTrips) {
  const Source source =
      file_with("{\"unit\": \"ms\", \"times\": [[[0, 0.1], null, [0.30000000000000004, 1e3]]]}");
  Diagnostics diagnostics;
  const auto parsed = parse_json(source, &diagnostics);
  ASSERT_TRUE(parsed) << render(diagnostics, &source, {});
  ASSERT_TRUE(parsed->recording);
  EXPECT_EQ(parsed->recording->unit, "ms");
  EXPECT_EQ(parsed->recording->timeline.at(0, 0), (Interval{0, 0.1}));
  EXPECT_EQ(parsed->recording->timeline.at(0, 1), (Interval{0, 0}));
  EXPECT_EQ(parsed->recording->timeline.at(0, 2), (Interval{0.30000000000000004, 1000}));

  std::ostringstream printed;
  print_json(parsed->schedule, *parsed->recording, printed);
  const Source again_source{"again.json", printed.str()};
  const auto again = parse_json(again_source, &diagnostics);
  ASSERT_TRUE(again) << printed.str();
  EXPECT_EQ(again->recording, parsed->recording);
  EXPECT_EQ(schedule_of(again->schedule), schedule_of(parsed->schedule));
}

TEST(RecordingTest, WorkBesideTheActionsRoundTrips) {
  const Source source = file_with(
      "{\"unit\": \"ms\", \"times\": [[[0, 1], null, [1, 4]]], \"work\": ["
      "[0, \"to host\", \"0F0\", 1, 1.25], [0, \"compute 2\", \"0B0\", 1.5, 3]]}");
  Diagnostics diagnostics;
  const auto parsed = parse_json(source, &diagnostics);
  ASSERT_TRUE(parsed && parsed->recording) << render(diagnostics, &source, {});
  const std::vector<Work> expected = {
      {0, WorkTrack::kToHost, ActionPart(ActionKind::kForward, 0, 0), {1, 1.25}},
      {0, WorkTrack::kCompute2, ActionPart(ActionKind::kBackward, 0, 0), {1.5, 3}}};
  EXPECT_EQ(parsed->recording->timeline.work(), expected);
  std::ostringstream printed;
  print_json(parsed->schedule, *parsed->recording, printed);
  const auto again = parse_json({"again.json", printed.str()}, &diagnostics);
  ASSERT_TRUE(again) << printed.str();
  EXPECT_EQ(again->recording, parsed->recording);
}

TEST(RecordingTest, WhatIsWrongIsSaidOnce) {
  const auto work = [](const std::string& value) {
    return first_error("{\"unit\": \"s\", \"times\": [[[0, 1], null, [1, 2]]], \"work\": " + value +
                       "}");
  };
  const auto times = [](const std::string& value) {
    return first_error("{\"unit\": \"s\", \"times\": " + value + "}");
  };
  const std::pair<std::string, std::string> kErrors[] = {
      {first_error("3"), "PW091 `recording`: expected an object, got a number"},
      {first_error("{\"times\": [[[0, 1], null, [1, 2]]]}"), "PW084 `recording` has no key `unit`"},
      {first_error("{\"unit\": \"ms\"}"), "PW084 `recording` has no key `times`"},
      {first_error("{\"unit\": \"h\", \"times\": [[[0, 1], null, [1, 2]]]}"),
       "PW085 `unit`: expected \"s\", \"ms\", \"us\" or \"ns\", got `h`"},
      {first_error("{\"unit\": \"s\", \"time\": []}"), "PW082 unknown key `time`"},
      {times("[[[0, 1], null]]"),
       "PW089 `recording`: rank 0: expected the times of 3 actions, got 2"},
      {times("[[[0, 1], null, [1, 2]], []]"),
       "PW089 `recording`: expected the times of 1 rank, got 2"},
      {times("[[[0, 1], [1, 1], [1, 2]]]"),
       "PW089 `recording`: rank 0, step 1: expected null for an idle slot, got times"},
      {times("[[null, null, [1, 2]]]"),
       "PW089 `recording`: rank 0, step 0: expected the times of `0F0`, got null"},
      {times("[[[0, 1], null, [2, 1]]]"),
       "PW089 `recording`: rank 0, step 2: expected an end that is not before the start, got 2 to "
       "1"},
      {times("[[[-1, 1], null, [1, 2]]]"),
       "PW089 `recording`: rank 0, step 0: expected times from 0 to 1e+18, got -1 to 1"},
      {times("[[[0, 1e19], null, [1, 2]]]"),
       "PW089 `recording`: rank 0, step 0: expected times from 0 to 1e+18, got 0 to 1e+19"},
      {times("[[[0, 1e999], null, [1, 2]]]"),
       "PW090 expected a number that fits a double, got `1e999`"},
      {times("[[[0], null, [1, 2]]]"),
       "PW089 `recording`: rank 0, step 0: expected a start and an end, got 1 number"},
      {times("[[[0, 1, 2], null, [1, 2]]]"),
       "PW089 `recording`: rank 0, step 0: expected a start and an end, got 3 numbers"},
      {times("[[[0, \"1\"], null, [1, 2]]]"), "PW091 `recording`: expected a number, got a string"},
      {times("[[[0, [1]], null, [1, 2]]]"), "PW091 `recording`: expected a number, got an array"},
      {times("[[0, null, [1, 2]]]"),
       "PW091 `recording`: expected [start, end], or null for an idle slot, got a number"},
      {times("[0]"), "PW091 `recording`: expected an array for each rank, got a number"},
      {times("{}"), "PW091 `recording`: expected an array, got an object"},
      {work("3"), "PW091 `recording`: expected an array, got a number"},
      {work("[3]"), "PW091 `recording`: expected [rank, track, action, start, end], got a number"},
      {work("[[0, \"to host\", \"0F0\", 1]]"),
       "PW089 `recording`: work 0: expected [rank, track, action, start, end], got 4 values"},
      {work("[[0, \"to host\", \"0F0\", 1, 2, 3]]"),
       "PW089 `recording`: work 0: expected [rank, track, action, start, end], got 6 values"},
      {work("[[\"0\", \"to host\", \"0F0\", 1, 2]]"),
       "PW091 `recording`: expected a number, got a string"},
      {work("[[0, 1, \"0F0\", 1, 2]]"), "PW091 `recording`: expected a string, got a number"},
      {work("[[0, [], \"0F0\", 1, 2]]"), "PW091 `recording`: expected a string, got an array"},
      {work("[[0, \"to disk\", \"0F0\", 1, 2]]"),
       "PW089 `recording`: work 0: expected compute 1, compute 2, to host, to device, got `to "
       "disk`"},
      {work("[[0, \"to host\", \"0SEND_F0\", 1, 2]]"),
       "PW089 `recording`: work 0: expected F, B, I or W of a microbatch, got `0SEND_F0`"},
      {work("[[0, \"to host\", \"F0\", 1, 2]]"),
       "PW089 `recording`: work 0: expected F, B, I or W of a microbatch, got `F0`"},
      {work("[[0, \"to host\", \"0F0\", 2, 1]]"),
       "PW089 `recording`: work 0: expected an end that is not before the start, got 2 to 1"},
      {work("[[0, \"to host\", \"0F0\", -1, 1]]"),
       "PW089 `recording`: work 0: expected times from 0 to 1e+18, got -1 to 1"},
      {work("[[1, \"to host\", \"0F0\", 1, 2]]"),
       "PW089 `recording`: work 0: expected a rank from 0 to 0, got 1"},
      {work("[[0.5, \"to host\", \"0F0\", 1, 2]]"),
       "PW089 `recording`: work 0: expected a rank from 0 to 0, got 0.5"},
      {work("[[0, \"to host\", \"0F1\", 1, 2]]"),
       "PW089 `recording`: work 0: expected an action of rank 0, got `0F1`"},
  };
  for (const auto& [found, expected] : kErrors) EXPECT_EQ(found, expected);
}

TEST(RecordingTest, SecondsAreStoredInMilliseconds) {
  Timeline timeline(Rows{{Action(ActionKind::kForward, 0, 0)}});
  timeline.at(0, 0) = {0.0010000004, 1.5};
  timeline.add({0, WorkTrack::kToHost, ActionPart(ActionKind::kForward, 0, 0), {1.5, 2}});
  const Recording recording = recording_of_seconds(timeline);
  EXPECT_EQ(recording.unit, "ms");
  EXPECT_EQ(recording.timeline.at(0, 0), (Interval{1, 1500}));
  EXPECT_EQ(recording.timeline.work()[0].time, (Interval{1500, 2000}));
}

TEST(RecordingTest, AScheduleIsToldFromCosts) {
  EXPECT_TRUE(is_schedule_json(file_with("{}")));
  EXPECT_FALSE(is_schedule_json({"costs.json", "{\"version\": 1, \"links\": [{\"rows\": 1}]}"}));
  EXPECT_FALSE(is_schedule_json({"list.json", "[{\"rows\": 1}]"}));
}

}  // namespace
}  // namespace pipewright::ir
