// CSV, .plan and JSON round-trip, for PyTorch's own files and for random schedules.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "pipewright/ir/text/csv.h"
#include "pipewright/ir/text/plan.h"
#include "pipewright/ir/text/read.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/ir/text/schedule_json.h"

namespace pipewright::ir {
namespace {

std::string print(const AnySchedule& schedule, std::string_view format) {
  std::ostringstream out;
  find_format(format)->print(schedule, out);
  return out.str();
}

// The schedule in a text, which must be valid.
AnySchedule read(const std::string& text, std::string_view format,
                 const ExpectedShape& expected = {}) {
  const Source source{"file." + std::string(format), text};
  Diagnostics diagnostics;
  auto parsed = read_schedule(source, expected, &diagnostics);
  EXPECT_TRUE(parsed) << render(diagnostics, &source, {}) << text;
  return parsed ? parsed->schedule : AnySchedule();
}

void expect_round_trips(const AnySchedule& schedule) {
  for (const char* format : {"plan", "json"}) {
    const std::string text = print(schedule, format);
    const AnySchedule again = read(text, format);
    EXPECT_EQ(level_of(again), level_of(schedule)) << text;
    EXPECT_EQ(schedule_of(again), schedule_of(schedule)) << text;
    EXPECT_EQ(print(again, format), text);
  }
}

TEST(FormatsTest, PyTorchsFilesRoundTripByteForByte) {
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator("tests/orders")) {
    if (entry.path().extension() != ".csv") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    const bool has_replicas = entry.path().stem().string().starts_with("DualPipe_");
    const AnySchedule schedule = read(text.str(), "csv", {.replicas = has_replicas ? 2 : 1});
    EXPECT_EQ(print(schedule, "csv"), text.str()) << entry.path();
    const bool lowered = entry.path().stem().string().ends_with("_comms") ||
                         entry.path().parent_path().filename() == "torch_2.15";
    EXPECT_EQ(level_of(schedule), lowered ? Level::kComputeComms : Level::kComputeOnly)
        << entry.path();
    expect_round_trips(schedule);
    ++files;
  }
  EXPECT_EQ(files, 118);
}

// Stages that recompute or offload are in ascending order, once each, in range, and an array in
// JSON.
TEST(FormatsTest, StagesThatRecomputeOrOffload) {
  const std::pair<std::string, std::vector<int> Schedule::*> keys[] = {
      {"recompute", &Schedule::recompute}, {"offload", &Schedule::offload}};
  for (const auto& [key, field] : keys) {
    const auto plan = [&key = key](const std::string& stages) {
      return "pipewright plan 1\nlevel: compute_only\nranks: 1\nstages: 3\nmicrobatches: 1\n"
             "placement: loop\n" +
             key + ": " + stages + "\nrank 0: 0F0 1F0 2F0 2B0 1B0 0B0\n";
    };
    EXPECT_EQ(schedule_of(read(plan("0 2"), "plan")).*field, (std::vector<int>{0, 2}));
    for (const char* stages : {"2 0", "1 1", "3", "-1", "all"}) {
      const Source source{"plan", plan(stages)};
      Diagnostics diagnostics;
      EXPECT_FALSE(find_format("plan")->parse(source, &diagnostics)) << stages;
      ASSERT_EQ(diagnostics.total(), 1u) << stages;
      EXPECT_EQ(diagnostics.kept()[0].message,
                "`" + key + "`: expected different stages from 0 to 2 in ascending order, got `" +
                    stages + "`");
    }
    const Source text{"json", R"({"version": 1, "level": "compute_only", "ranks": 1, "stages": 1,
 "microbatches": 1, "placement": "loop", ")" +
                                  key + R"(": "0", "rows": [["0F0", "0B0"]]})"};
    Diagnostics diagnostics;
    EXPECT_FALSE(find_format("json")->parse(text, &diagnostics));
    EXPECT_EQ(diagnostics.kept()[0].message, "`" + key + "`: expected an array, got a string");
  }
}

// A cut has a number of layers for each stage.
TEST(FormatsTest, CutsOfModels) {
  const auto plan = [](const std::string& cut) {
    return "pipewright plan 1\nlevel: compute_only\nranks: 1\nstages: 2\nmicrobatches: 1\n"
           "placement: loop\ncut: " +
           cut + "\nrank 0: 0F0 1F0 1B0 0B0\n";
  };
  EXPECT_EQ(schedule_of(read(plan("5 0"), "plan")).cut, (std::vector<int>{5, 0}));
  for (const char* cut : {"5", "5 0 1", "-1 2", "even"}) {
    const Source source{"plan", plan(cut)};
    Diagnostics diagnostics;
    EXPECT_FALSE(find_format("plan")->parse(source, &diagnostics)) << cut;
    ASSERT_EQ(diagnostics.total(), 1u) << cut;
    EXPECT_EQ(
        diagnostics.kept()[0].message,
        "`cut`: expected a number of layers for each of 2 stages, got `" + std::string(cut) + "`");
  }
}

TEST(FormatsTest, AShapeIsFoundFromTheRows) {
  const AnySchedule any = read("0F0,0F1,,3F0\r\n,1F0,2F0\r\n", "csv");
  const Schedule& schedule = schedule_of(any);
  EXPECT_EQ(schedule.placement, Placement::v(2, 4));
  EXPECT_EQ(schedule.num_microbatches, 2);
  EXPECT_EQ(schedule.rows[0].size(), 4u);
  EXPECT_TRUE(schedule.rows[0][2].is_idle());
  EXPECT_EQ(schedule.rows[1].size(), 3u);
}

TEST(FormatsTest, LineEndsMarkAndBlanksDoNotMatter) {
  const AnySchedule plain = read("0F0,0B0\n1F0,1B0\n", "csv");
  for (const char* text : {"0F0,0B0\r\n1F0,1B0\r\n", "0F0,0B0\n1F0,1B0", "0F0,0B0\r\n1F0,1B0",
                           "\xEF\xBB\xBF"
                           "0F0,0B0\n1F0,1B0\n",
                           " 0F0 ,\t0B0\n1F0,1B0 \n"}) {
    EXPECT_EQ(schedule_of(read(text, "csv")), schedule_of(plain)) << text;
  }
}

// To PyTorch's reader each of them is one more rank, which it then refuses.
TEST(FormatsTest, BlankLinesAtTheEndOfACsvAreNoRanks) {
  const AnySchedule expected = read("0F0,0B0\n1F0,1B0", "csv");
  for (const char* end : {"\n\n", "\r\n\r\n", "\n\n\n\n", "\n  \t\n", "\n \r\n\n ", "  \n\n"}) {
    EXPECT_EQ(schedule_of(read(std::string("0F0,0B0\n1F0,1B0") + end, "csv")),
              schedule_of(expected));
  }
  // Elsewhere they are ranks without actions, and so is a row of idle slots.
  for (const char* text : {"0F0,0B0\n\n1F0,1B0\n", "\n0F0,0B0\n", "0F0,0B0\n,\n\n"}) {
    const Source source{"file", text};
    Diagnostics diagnostics;
    EXPECT_FALSE(parse_csv(source, &diagnostics)) << text;
    ASSERT_EQ(diagnostics.total(), 1u);
    EXPECT_EQ(code(diagnostics.kept()[0].rule), "PW022");
  }
}

TEST(FormatsTest, PlanCommentsAndBlankLinesDoNotMatter) {
  const std::string plan =
      "pipewright plan 1\n# a remark\nlevel: compute_only\nranks: 2\n\nstages: 2\nmicrobatches: "
      "1\nplacement: 1 0\n"
      "rank 0:   . 1F0\t1B0  \n# another\nrank 1: 0F0 .   . 0B0\n";
  const AnySchedule any = read(plan, "plan");
  const Schedule& schedule = schedule_of(any);
  EXPECT_EQ(schedule.placement, Placement::custom(2, {1, 0}));
  std::ostringstream csv;
  print_csv(schedule.rows, csv);
  EXPECT_EQ(csv.str(), ",1F0,1B0\r\n0F0,,,0B0\r\n");
  std::string windows;
  for (const char letter : plan)
    windows += letter == '\n' ? std::string("\r\n") : std::string(1, letter);
  EXPECT_EQ(schedule_of(read("\xEF\xBB\xBF" + windows, "plan")), schedule);
}

// `microbatches` counts whole ones, and an action a slice.
TEST(FormatsTest, Slices) {
  const auto plan = [](const std::string& slices) {
    return "pipewright plan 1\nlevel: compute_only\nranks: 1\nstages: 1\nmicrobatches: "
           "1\nslices: " +
           slices + "\nplacement: loop\nrank 0: 0F0 0F1 0B1 0B0\n";
  };
  const AnySchedule schedule = read(plan("2"), "plan");
  EXPECT_EQ(schedule_of(schedule).slices, 2);
  EXPECT_EQ(schedule_of(schedule).num_microbatches, 2);
  EXPECT_EQ(print(schedule, "csv"), "0F0,0F1,0B1,0B0\r\n");
  const auto shaped = [](std::optional<int> microbatches, int slices) {
    return ExpectedShape{{}, {}, microbatches, slices};
  };
  const auto error_of = [](const Source& source, const ExpectedShape& expected) {
    Diagnostics diagnostics;
    EXPECT_FALSE(read_schedule(source, expected, &diagnostics));
    return diagnostics.total() > 0 ? diagnostics.kept()[0].message : "no error";
  };
  EXPECT_EQ(error_of({"a.plan", plan("0")}, {}),
            "`slices`: expected an integer from 1 to 268435456, got `0`");
  EXPECT_EQ(error_of({"a.plan", plan("1")}, {}),
            "microbatch out of range in `0F1`: expected 0 to 0, got 1");
  EXPECT_EQ(error_of({"a.plan", plan("2")}, shaped({}, 3)), "expected 3 slices, got 2");
  // A CSV gets them from whoever reads it.
  const Source csv{"a.csv", print(schedule, "csv")};
  Diagnostics diagnostics;
  const auto parsed = read_schedule(csv, shaped(1, 2), &diagnostics);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(schedule_of(parsed->schedule).rows, schedule_of(schedule).rows);
  EXPECT_EQ(schedule_of(parsed->schedule).slices, 2);
  EXPECT_EQ(error_of(csv, shaped({}, 3)), "expected microbatches of 3 slices each, got 2 slices");
}

// Microbatch 0 runs on stages 0 and 1 of ranks 0 and 1, microbatch 1 the other way round.
TEST(FormatsTest, Replicas) {
  const auto plan = [](const std::string& keys, const std::string& rows) {
    return "pipewright plan 1\nlevel: compute_only\nranks: 2\nstages: 2\n" + keys + rows;
  };
  const std::string keys = "microbatches: 2\nreplicas: 2\nplacement: loop\nplacement 1: 1 0\n";
  const std::string rows = "rank 0: 0F0 1F1 1B1 0B0\nrank 1: 0F1 1F0 1B0 0B1\n";
  const AnySchedule schedule = read(plan(keys, rows), "plan");
  const Placement back = Placement::custom(2, {1, 0});
  EXPECT_EQ(schedule_of(schedule).placement, Placement::replicas(Placement::loop(2, 2), back, 1));
  for (const char* format : {"plan", "json"})
    EXPECT_EQ(schedule_of(read(print(schedule, format), format)), schedule_of(schedule));
  // With slices, each replica runs whole microbatches.
  const AnySchedule sliced = read(
      plan("microbatches: 2\nslices: 2\nreplicas: 2\nplacement: loop\nplacement 1: 1 0\n",
           "rank 0: 0F0 0F1 1F2 1F3 1B3 1B2 0B1 0B0\nrank 1: 0F2 0F3 1F0 1F1 1B1 1B0 0B3 0B2\n"),
      "plan");
  EXPECT_EQ(schedule_of(sliced).placement, Placement::replicas(Placement::loop(2, 2), back, 2));

  const auto error_of = [](const Source& source, const ExpectedShape& expected = {}) {
    Diagnostics diagnostics;
    EXPECT_FALSE(read_schedule(source, expected, &diagnostics));
    return diagnostics.total() > 0 ? diagnostics.kept()[0].message : "no error";
  };
  const auto plan_error = [&](const std::string& of_keys, const std::string& of_rows) {
    return error_of({"a.plan", plan(of_keys, of_rows)});
  };
  EXPECT_EQ(plan_error("microbatches: 2\nplacement: loop\nplacement 1: 1 0\n", rows),
            "`placement 1`: expected it with `replicas: 2` only");
  EXPECT_EQ(plan_error("microbatches: 2\nreplicas: 2\nplacement: loop\n", rows),
            "the header has no key `placement 1`");
  EXPECT_EQ(plan_error("microbatches: 2\nreplicas: 3\nplacement: loop\nplacement 1: 1 0\n", rows),
            "`replicas`: expected an integer from 1 to 2, got `3`");
  EXPECT_EQ(plan_error("microbatches: 2\nreplicas: 2\nplacement: loop\nplacement 1: 1 0 1\n", rows),
            "`placement 1`: expected the ranks of 2 stages, got 3");
  EXPECT_EQ(plan_error("microbatches: 3\nreplicas: 2\nplacement: loop\nplacement 1: 1 0\n", rows),
            "2 replicas: expected an even number of microbatches, got 3");
  EXPECT_EQ(plan_error("microbatches: 2\nreplicas: 2\nplacement: loop\nplacement 1: 0 1\n", rows),
            "both replicas of stage 0 are on rank 0: expected different ranks");
  EXPECT_EQ(plan_error(keys, "rank 0: 0F0 0F1 1B1 0B0\nrank 1: 1F1 1F0 1B0 0B1\n"),
            "`0F1` is on rank 0, but the placement puts stage 0 of replica 1 on rank 1");

  // A CSV gets them from whoever reads it.
  const Source csv{"a.csv", print(schedule, "csv")};
  Diagnostics diagnostics;
  const auto parsed = read_schedule(csv, {.replicas = 2}, &diagnostics);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(schedule_of(parsed->schedule), schedule_of(schedule));
  EXPECT_EQ(error_of(csv), "`0F1` is on rank 1, but stage 0 is on rank 0");
  const auto csv_error = [&](const std::string& text) {
    return error_of({"a.csv", text}, {.replicas = 2});
  };
  EXPECT_EQ(csv_error("0F0,1F1,1B1,0B0\n1F0,1B0\n"),
            "stage 0 of replica 1 has no action on any rank");
  EXPECT_EQ(csv_error("0F0,1F1,1B1,0B0\n0F1,1F0,1B0,0B1,1F1\n"),
            "`1F1` is on rank 1, but stage 1 of replica 1 is on rank 0");
  EXPECT_EQ(csv_error("0F0,0F1,0F2\n1F0,1F1,1F2\n"),
            "2 replicas: expected an even number of microbatches, got 3");
  EXPECT_EQ(csv_error("0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n"),
            "both replicas of stage 0 are on rank 0: expected different ranks");
  EXPECT_EQ(csv_error("0F0\n0F1\n0UNSHARD\n"),
            "`0UNSHARD` is on rank 2, but the placement puts stage 0 on ranks 0 and 1");
  EXPECT_EQ(error_of({"a.plan", plan(keys, rows)}, {.replicas = 1}), "expected 1 replicas, got 2");
}

TEST(FormatsTest, EveryFieldRoundTrips) {
  Program program;
  program.name = "A name: with \"signs\" # and \xC3\xA9";
  program.placement = Placement::custom(2, {0, 1, 1});
  program.num_microbatches = 3;
  program.slices = 3;
  program.recompute = {0, 2};
  program.offload = {1, 2};
  program.cut = {5, 0, 4};
  program.rows = {{Action(ActionKind::kUnshard, 0), Action(ActionKind::kForward, 0, 2)},
                  {Action::overlap(ActionPart(ActionKind::kForward, 1, 2),
                                   ActionPart(ActionKind::kBackwardInput, 2, 0))}};
  program.lowering = {.forward_only = true,
                      .merge_backward = false,
                      .split_backward = true,
                      .residency = 3,
                      .lookahead = 2,
                      .evict = Eviction::kFarthest,
                      .receives = Receives::kLatest,
                      .reduce_every = 4,
                      .channels = ChannelModel::kPeer,
                      .capacity = kUnboundedCapacity,
                      .weight_free_w = true};
  expect_round_trips(program);
  program.lowering.capacity = 0;
  program.lowering.lookahead = Lookahead(std::vector{1, 3});
  expect_round_trips(program);
  program.lowering.lookahead = Lookahead(Lookahead::Kind::kFull);
  expect_round_trips(program);
  program.lowering.lookahead = Lookahead(Lookahead::Kind::kAuto);
  expect_round_trips(program);
  program.lowering = {};
  program.name.clear();
  expect_round_trips(program);
}

// A random shape, and random actions within it.
AnySchedule random_schedule(std::mt19937& random) {
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  const int ranks = 1 + below(4);
  const int stages = ranks + below(4);
  std::vector<int> map(static_cast<size_t>(stages));
  for (int stage = 0; stage < stages; ++stage)
    map[static_cast<size_t>(stage)] = stage < ranks ? stage : below(ranks);
  Schedule schedule;
  schedule.placement = Placement::custom(ranks, map);
  schedule.num_microbatches = 2 + below(5);
  const Level level = below(2) == 0 ? Level::kComputeOnly : Level::kComputeComms;
  for (int rank = 0; rank < ranks; ++rank) {
    Row& row = schedule.rows.emplace_back();
    const std::vector<int> own = schedule.placement.stages_of(rank);
    const auto part = [&](ActionKind kind, int microbatch) {
      return ActionPart(kind, own[static_cast<size_t>(below(static_cast<int>(own.size())))],
                        info(kind).has_microbatch ? microbatch : 0);
    };
    for (int step = below(12); step >= 0; --step) {
      const auto& row_of_kind =
          action_kinds()[static_cast<size_t>(below(static_cast<int>(action_kinds().size())))];
      const int microbatch = below(schedule.num_microbatches);
      if (row_of_kind.kind == ActionKind::kOverlapFB) {
        row.push_back(Action::overlap(
            part(ActionKind::kForward, microbatch),
            part(ActionKind::kBackward, (microbatch + 1) % schedule.num_microbatches)));
      } else if (level == Level::kComputeComms || is_compute(row_of_kind.kind)) {
        row.push_back(part(row_of_kind.kind, microbatch));
      } else {
        row.push_back(Action());
      }
    }
  }
  return make_schedule(level, std::move(schedule));
}

TEST(FormatsTest, RandomSchedulesRoundTrip) {
  std::mt19937 random(20260);  // fixed seed, so that failures are reproducible
  for (int round = 0; round < 2000 && !HasFailure(); ++round)
    expect_round_trips(random_schedule(random));
}

// A randomly edited valid text is either parsed, or rejected with correct places inside the text.
TEST(FormatsTest, BrokenTextsAreRejectedWithAPlace) {
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    const AnySchedule schedule = random_schedule(random);
    for (const Format& format : formats()) {
      std::string text = print(schedule, format.name);
      for (int edit = 0; edit < 2; ++edit) {
        constexpr std::string_view kLetters = "0123FBIW,;().:{}[]\" \n-x";
        text[random() % text.size()] = kLetters[random() % kLetters.size()];
      }
      const Source source{"file", text};
      Diagnostics diagnostics;
      const auto parsed = format.parse(source, &diagnostics);
      EXPECT_EQ(parsed.has_value(), !diagnostics.has_errors()) << text;
      refused += !parsed;
      for (const Diagnostic& diagnostic : diagnostics.kept()) {
        if (!diagnostic.place.offset) continue;
        ASSERT_LE(*diagnostic.place.offset, text.size());
        const std::string before = text.substr(0, *diagnostic.place.offset);
        EXPECT_EQ(diagnostic.place.line,
                  1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n')))
            << text;
        EXPECT_EQ(diagnostic.place.column, before.size() - (before.rfind('\n') + 1) + 1) << text;
      }
    }
  }
  EXPECT_GT(refused, 3000);
}

TEST(FormatsTest, AllErrorsAreReportedAtOnce) {
  const Source source{"file.csv", "0F0,0X0,0F1x\n1F,1F0\n0BW0\n"};
  Diagnostics diagnostics;
  EXPECT_FALSE(read_schedule(source, {}, &diagnostics));
  ASSERT_EQ(diagnostics.total(), 4u);
  EXPECT_EQ(diagnostics.kept()[0].place.line, 1u);
  EXPECT_EQ(diagnostics.kept()[3].place.line, 3u);
}

TEST(FormatsTest, TheFormatFollowsFromTheNameOrTheFirstBytes) {
  EXPECT_EQ(detect_format({"a.csv", "{}"}).name, "csv");
  EXPECT_EQ(detect_format({"a.plan", "0F0"}).name, "plan");
  EXPECT_EQ(detect_format({"a.json", "0F0"}).name, "json");
  EXPECT_EQ(detect_format({"<stdin>", "\n {\"version\""}).name, "json");
  EXPECT_EQ(detect_format({"<stdin>", "\xEF\xBB\xBFpipewright plan 1"}).name, "plan");
  EXPECT_EQ(detect_format({"<stdin>", "0F0,0B0"}).name, "csv");
  EXPECT_EQ(detect_format({"<stdin>", ""}).name, "csv");
}

TEST(FormatsTest, TheShapeIsComparedWithTheExpectedOne) {
  const Source source{"file.csv", "0F0,0F1\n1F0,1F1\n"};
  Diagnostics good;
  EXPECT_TRUE(read_schedule(source, {.ranks = 2, .stages = 2, .microbatches = 2}, &good));
  Diagnostics bad;
  EXPECT_FALSE(read_schedule(source, {.ranks = 2, .stages = 3, .microbatches = 1}, &bad));
  EXPECT_EQ(bad.total(), 2u);
}

// One very large stage number must not cause a million errors about missing stages.
TEST(FormatsTest, AGapInTheStagesIsOneError) {
  const Source source{"file.csv", "0F0,1048575F0\n"};
  Diagnostics diagnostics;
  EXPECT_FALSE(read_schedule(source, {}, &diagnostics));
  ASSERT_EQ(diagnostics.total(), 1u);
  EXPECT_EQ(diagnostics.kept()[0].message,
            "stages 1 to 1048574 have no action on any rank, but stage 1048575 does");
}

TEST(FormatsTest, JsonEscapesAreReadAndPlacesStayCorrect) {
  const std::string head =
      "{\"version\": 1, \"level\": \"compute_only\", \"ranks\": 1, \"stages\": 1, "
      "\"microbatches\": 1, \"placement\": \"loop\",\n";
  EXPECT_EQ(schedule_of(read(head + "\"rows\": [[\"\\u0030F0\"]]}", "json")).rows[0][0],
            Action(ActionKind::kForward, 0, 0));
  const Source source{"file.json", head + " \"rows\": [[\"\\u0030F0\", null, \"0X0\"]]}"};
  Diagnostics diagnostics;
  EXPECT_FALSE(parse_json(source, &diagnostics));
  ASSERT_EQ(diagnostics.total(), 1u);
  EXPECT_EQ(diagnostics.kept()[0].place.line, 2u);
  EXPECT_EQ(source.text.substr(*diagnostics.kept()[0].place.offset, 1), "X");
}

TEST(FormatsTest, DeeplyNestedJsonDoesNotOverflowTheStack) {
  const Source source{"file.json", std::string(1000000, '[')};
  Diagnostics diagnostics;
  EXPECT_FALSE(parse_json(source, &diagnostics));
}

// A file in none of the formats has one error; a CSV with errors has one per cell.
TEST(FormatsTest, AFileThatIsNoScheduleHasOneError) {
  const auto errors_of = [](const std::string& name, const std::string& text) {
    const Source source{name, text};
    Diagnostics diagnostics;
    EXPECT_FALSE(read_schedule(source, {}, &diagnostics));
    std::string rules;
    for (const Diagnostic& one : diagnostics.kept())
      rules += (rules.empty() ? "" : " ") + code(one.rule);
    return rules;
  };
  EXPECT_EQ(errors_of("page.html", "<!doctype html>\n<p>a, b, c</p>\n"), "PW019");
  EXPECT_EQ(errors_of("page.csv", "\n <html>"), "PW019");
  EXPECT_EQ(errors_of("picture.png", "\x89PNG\r\n\x1a\n,,,"), "PW019");
  EXPECT_EQ(errors_of("notes.txt", "some notes,\nabout a schedule\nof last year, and more of it\n"),
            "PW019");
  EXPECT_EQ(errors_of("zeros.bin", std::string("\x7f"
                                               "ELF\0\0",
                                               6)),
            "PW016");
  // These could be meant as schedules.
  EXPECT_EQ(errors_of("lower.csv", "0f0,0f1,0b0,0b1\n").substr(0, 9).find("PW019"),
            std::string::npos);
  EXPECT_EQ(errors_of("one.csv", "0F0,<0B0>,\x01,x,y,z\n").find("PW019"), std::string::npos);
  EXPECT_EQ(errors_of("letters.csv", "x,y,z,x,y,z\n").find("PW019"), std::string::npos);
  EXPECT_EQ(errors_of("short.csv", "F0,B0\n").find("PW019"), std::string::npos);
}

}  // namespace
}  // namespace pipewright::ir
