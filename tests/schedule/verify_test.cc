// The verifier over whole schedules: it accepts valid ones and refuses broken ones, and the
// certificate matches the schedules' formulas.
#include "pipewright/schedule/verify/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/text/csv.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedules/registry.h"
#include "tests/channel_model/interpreter.h"

namespace pipewright::schedule {
namespace {

using ir::Action;
using ir::ActionKind;

ir::Program lowered(const ir::ComputeOrder& order, const ir::Lowering& policies = {}) {
  ir::Diagnostics diagnostics;
  auto program = lower(order, policies, &diagnostics);
  EXPECT_TRUE(program);
  return *program;
}

std::string why(const ir::Diagnostics& diagnostics) { return ir::render(diagnostics, nullptr, {}); }

// Visits the orders of all schedules over a range of shapes. Returns their number.
template <typename Visit>
int for_each_order(int most_ranks, int most_per_rank, const std::vector<int>& microbatches,
                   Visit visit) {
  int orders = 0;
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    for (int ranks = 1; ranks <= most_ranks; ++ranks) {
      for (int per_rank = 1; per_rank <= most_per_rank; ++per_rank) {
        for (const int count : microbatches) {
          const schedules::Shape shape{ranks, ranks * per_rank, count};
          if (schedules::shape_error(*spec, shape)) continue;
          SCOPED_TRACE(testing::Message()
                       << spec->name << " P=" << ranks << " V=" << per_rank << " M=" << count);
          visit(schedules::make_order(*spec, shape));
          ++orders;
        }
      }
    }
  }
  return orders;
}

TEST(VerifyTest, AcceptsEveryOrderAndItsLoweringUnderEveryModel) {
  const int orders =
      for_each_order(5, 3, {1, 2, 3, 5, 8, 12, 20}, [](const ir::ComputeOrder& order) {
        ir::Diagnostics of_order;
        EXPECT_TRUE(verify(order, &of_order)) << why(of_order);
        const ir::Program program = lowered(order);
        for (const ir::ChannelModelInfo& model : ir::channel_models()) {
          ir::Diagnostics diagnostics;
          EXPECT_TRUE(verify(program, {model.model, 0, false}, &diagnostics)) << model.name << "\n"
                                                                              << why(diagnostics);
        }
      });
  EXPECT_GT(orders, 250);
}

TEST(VerifyTest, AcceptsEveryPolicy) {
  for_each_order(4, 2, {4, 8}, [](const ir::ComputeOrder& order) {
    for (const bool forward_only : {false, true}) {
      for (const bool merge : {false, true}) {
        ir::Lowering policies;
        policies.forward_only = forward_only;
        policies.merge_backward = merge;
        policies.split_backward = !merge;
        policies.residency = merge ? 1 : 2;
        policies.lookahead = 1;
        policies.evict = ir::Eviction::kFarthest;
        policies.reduce_every = 3;
        ir::Diagnostics diagnostics;
        EXPECT_TRUE(verify(lowered(order, policies), {}, &diagnostics)) << why(diagnostics);
      }
    }
  });
}

// Small cases computed by hand. tests/schedules/peaks_test.cc checks activations against the
// schedules' formulas.
TEST(CertificateTest, PeaksOfASmallProgram) {
  // 2 ranks, 2 microbatches: rank 0 of 1F1B holds two activations and one received gradient.
  const ir::Program program =
      lowered(schedules::make_order(*schedules::find_schedule("1F1B"), {2, 2, 2}));
  // 0: 0UNSHARD 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 ...
  // 1: 1UNSHARD 1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 ...
  const std::vector<RankCertificate> certificate = certify(program);
  EXPECT_EQ(certificate[0].activations, (Peak<int>{2, 3}));
  EXPECT_EQ(certificate[0].receive_buffers, (Peak<int>{1, 5}));
  EXPECT_EQ(certificate[0].unsharded_stages, (Peak<int>{1, 0}));
  EXPECT_EQ(certificate[1].activations, (Peak<int>{1, 2}));
  EXPECT_EQ(certificate[1].receive_buffers, (Peak<int>{1, 1}));
}

// By hand: what is connected with what, in each placement.
TEST(CertificateTest, CommunicatorsPerRank) {
  const auto counts = [](const char* name, const schedules::Shape& shape, const char* model) {
    ir::Program program = lowered(schedules::make_order(*schedules::find_schedule(name), shape));
    EXPECT_TRUE(ir::find_lowering_policy("channels")->set(program.lowering, model));
    const std::vector<int> found = communicators_per_rank(program);
    for (size_t rank = 0; rank < found.size(); ++rank)
      EXPECT_EQ(certify(program)[rank].communicators, found[rank]);
    return found;
  };
  using Counts = std::vector<int>;
  // A line 0 - 1 - 2 - 3: activations go one way, gradients the other.
  EXPECT_EQ(counts("1F1B", {4, 4, 8}, "edge"), (Counts{2, 4, 4, 2}));
  EXPECT_EQ(counts("1F1B", {4, 4, 8}, "peer"), (Counts{1, 2, 2, 1}));
  EXPECT_EQ(counts("1F1B", {4, 4, 8}, "rank"), (Counts{1, 1, 1, 1}));
  // A ring: the last rank sends to the first one.
  EXPECT_EQ(counts("Interleaved1F1B", {4, 8, 8}, "edge"), (Counts{4, 4, 4, 4}));
  EXPECT_EQ(counts("Interleaved1F1B", {4, 8, 8}, "peer"), (Counts{2, 2, 2, 2}));
  // On two ranks, both neighbours are the same peer.
  EXPECT_EQ(counts("Interleaved1F1B", {2, 4, 4}, "edge"), (Counts{2, 2}));
  EXPECT_EQ(counts("Interleaved1F1B", {2, 4, 4}, "peer"), (Counts{1, 1}));
  // A V is a line that is walked twice.
  EXPECT_EQ(counts("ZBV", {3, 6, 6}, "edge"), (Counts{2, 4, 2}));
  EXPECT_EQ(counts("ZBV", {3, 6, 6}, "peer"), (Counts{1, 2, 1}));
  // Without backwards, one direction is left.
  ir::Lowering forward_only;
  forward_only.forward_only = true;
  EXPECT_EQ(communicators_per_rank(lowered(
                schedules::make_order(*schedules::find_schedule("1F1B"), {3, 3, 2}), forward_only)),
            (Counts{1, 2, 1}));
  for (const char* model : {"edge", "peer", "rank"})
    EXPECT_EQ(counts("1F1B", {1, 1, 2}, model), Counts{0});
}

TEST(CertificateTest, ACompoundHoldsBothOfItsParts) {
  const ir::Program program =
      lowered(schedules::make_order(*schedules::find_schedule("DualPipeV"), {2, 4, 8}));
  for (const RankCertificate& rank : certify(program))
    EXPECT_EQ(rank.activations.amount, 5);  // 2P + 1
}

// PyTorch's _validate_schedule accepts each of these, or cannot judge them.
TEST(VerifyTest, RefusesSchedulesThatPyTorchsValidationAccepts) {
  const std::pair<const char*, ir::Rule> kCases[] = {
      {"0F0,0F0,0B0", ir::Rule::kDuplicateAction},  // sets hide duplicates
      {"0F0,0B0,0I0,0W0,0F1",
       ir::Rule::kBackwardTwice},  // mb 1 is never back-propagated, the count fits
      {"0F0,0F1,0B0,0I0,0W0", ir::Rule::kMissingWork},
      {"0F0,0B0\n1F0,1B0,1F1,1B1", ir::Rule::kMissingWork},  // stages with different microbatches
      {"0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1", ir::Rule::kCannotRun},
  };
  for (const auto& [text, rule] : kCases) {
    const ir::Source source{"bad.csv", text};
    ir::Diagnostics diagnostics;
    const auto parsed = ir::parse_csv(source, &diagnostics);
    ASSERT_TRUE(parsed) << text;
    EXPECT_FALSE(verify(std::get<ir::ComputeOrder>(parsed->schedule), &diagnostics)) << text;
    const bool reported = std::ranges::any_of(
        diagnostics.kept(), [rule = rule](const ir::Diagnostic& one) { return one.rule == rule; });
    EXPECT_TRUE(reported) << text << "\n" << why(diagnostics);
  }
}

// ---- mutations: valid programs, broken in one place

struct Mutant {
  ir::Program program;
  std::string what;
};

// Drops, doubles, swaps, moves or renumbers one action.
Mutant mutate(const ir::Program& program, std::mt19937& random) {
  const auto below = [&](size_t limit) {
    return static_cast<size_t>(random() % static_cast<unsigned>(limit));
  };
  Mutant mutant{program, ""};
  ir::Row& row = mutant.program.rows[below(mutant.program.rows.size())];
  const size_t at = below(row.size());
  const Action action = row[at];
  const auto to = row.begin() + static_cast<std::ptrdiff_t>(at);
  switch (below(5)) {
    case 0:
      mutant.what = "drop";
      row.erase(to);
      break;
    case 1:
      mutant.what = "double";
      row.insert(row.begin() + static_cast<std::ptrdiff_t>(below(row.size() + 1)), action);
      break;
    case 2: {
      mutant.what = "swap";
      std::swap(row[at], row[below(row.size())]);
      break;
    }
    case 3:
      mutant.what = "move";
      row.erase(to);
      row.insert(row.begin() + static_cast<std::ptrdiff_t>(below(row.size() + 1)), action);
      break;
    default:
      mutant.what = "renumber";
      if (!action.is_compound() && ir::info(action.kind()).has_microbatch) {
        const ir::ActionPart part = action.parts()[0];
        row[at] = Action(part.kind(), part.stage(),
                         static_cast<int>(below(static_cast<size_t>(program.num_microbatches))));
      }
      break;
  }
  return mutant;
}

// An independent verdict: compares the multiset of actions, checks order, residency and reduction
// by a walk along each row, and runs the interpreter for channels.
bool is_valid(const ir::Program& mutant, const ir::Program& original, ir::ChannelModel model) {
  for (size_t rank = 0; rank < mutant.rows.size(); ++rank) {
    ir::Row left = mutant.rows[rank], right = original.rows[rank];
    std::ranges::sort(left);
    std::ranges::sort(right);
    if (left != right) {
      // Data-parallel actions may appear more or less often; they are checked below.
      const auto is_free = [](const Action& action) {
        return !action.is_idle() && ir::info(action.kind()).group == ir::ActionGroup::kDataParallel;
      };
      std::erase_if(left, is_free);
      std::erase_if(right, is_free);
      if (left != right) return false;
    }
    const ir::Row& row = mutant.rows[rank];
    std::map<int, bool> unsharded, used;
    std::map<int, int> pending;
    int reducing = -1;  // the stage whose reduction is not awaited yet
    std::set<Action> seen;
    std::set<int> reduced, with_gradients;
    for (const Action& action : row) {
      for (const ir::ActionPart part : action.parts()) {
        const int stage = part.stage(), microbatch = part.microbatch();
        const auto has = [&](ActionKind kind) {
          return seen.contains(Action(kind, stage, microbatch));
        };
        const bool first_stage = stage == 0,
                   last_stage = stage + 1 == mutant.placement.num_stages();
        const bool input_local =
            !first_stage && mutant.placement.rank_of(stage - 1) == static_cast<int>(rank);
        const bool gradient_local =
            !last_stage && mutant.placement.rank_of(stage + 1) == static_cast<int>(rank);
        const auto made_at = [&](int other, std::initializer_list<ActionKind> kinds) {
          return std::ranges::any_of(kinds, [&](ActionKind kind) {
            return seen.contains(Action(kind, other, microbatch));
          });
        };
        switch (part.kind()) {
          case ActionKind::kForward:
            if (!first_stage && !(input_local ? made_at(stage - 1, {ActionKind::kForward})
                                              : has(ActionKind::kRecvF)))
              return false;
            break;
          case ActionKind::kBackward:
          case ActionKind::kBackwardInput:
            if (!has(ActionKind::kForward)) return false;
            if (!last_stage && !(gradient_local ? made_at(stage + 1, {ActionKind::kBackward,
                                                                      ActionKind::kBackwardInput})
                                                : has(ActionKind::kRecvB)))
              return false;
            break;
          case ActionKind::kBackwardWeight:
            if (!has(ActionKind::kBackwardInput)) return false;
            break;
          case ActionKind::kSendF:
            if (!has(ActionKind::kForward)) return false;
            break;
          case ActionKind::kSendB:
            if (!has(ActionKind::kBackward) && !has(ActionKind::kBackwardInput)) return false;
            break;
          case ActionKind::kUnshard:
            if (std::exchange(unsharded[stage], true)) return false;
            used[stage] = false;
            break;
          case ActionKind::kReshard:
            if (!std::exchange(unsharded[stage], false) || !used[stage]) return false;
            break;
          case ActionKind::kReduceGrad:
            if (std::exchange(pending[stage], 0) == 0) return false;
            if (std::exchange(reducing, stage) != -1) return false;
            break;
          case ActionKind::kWaitSendF:
          case ActionKind::kWaitSendB:
            if (!has(ir::awaited_by(part).kind())) return false;
            break;
          case ActionKind::kWaitReduceGrad:
            if (std::exchange(reducing, -1) != stage) return false;
            break;
          case ActionKind::kRecvF:
          case ActionKind::kRecvB:
          case ActionKind::kIdle:
          case ActionKind::kOverlapFB:
            break;
        }
        if (ir::is_compute(part.kind())) {
          if (!unsharded[stage]) return false;
          used[stage] = true;
        }
        if (part.kind() == ActionKind::kBackward || part.kind() == ActionKind::kBackwardWeight)
          ++pending[stage];
      }
      for (const ir::ActionPart part : action.parts()) seen.insert(Action(part));
    }
    for (const auto& [stage, held] : unsharded) {
      if (held) return false;
    }
    for (const auto& [stage, left_over] : pending) {
      if (left_over != 0) return false;
    }
    if (reducing != -1) return false;
  }
  channel_model::Interpreter interpreter(mutant, model, 0);
  return !interpreter.swaps() && !interpreter.deadlocks();
}

TEST(VerifyTest, MutantsAreRefusedExactlyIfTheyAreBroken) {
  std::mt19937 random(2026);
  std::map<std::string, std::pair<int, int>> verdicts;  // by mutation: accepted, refused
  const char* names[] = {"GPipe", "1F1B", "ZBVZeroBubble", "LoopedBFS", "DualPipeV"};
  for (int round = 0; round < 4000 && !HasFailure(); ++round) {
    const schedules::ScheduleSpec& spec = *schedules::find_schedule(names[random() % 5]);
    const int ranks = spec.name == std::string_view("DualPipeV") ? 1 : 2;
    const schedules::Shape shape{ranks, schedules::default_stages(spec, ranks), 2};
    const ir::Program original = lowered(schedules::make_order(spec, shape));
    const Mutant mutant = mutate(original, random);
    const ir::ChannelModel model = ir::channel_models()[random() % 3].model;
    ir::Diagnostics diagnostics;
    const bool accepted = verify(mutant.program, {model, 0, false}, &diagnostics);
    std::ostringstream text;
    ir::print_csv(mutant.program.rows, text);
    EXPECT_EQ(accepted, is_valid(mutant.program, original, model))
        << spec.name << " " << mutant.what << " " << ir::name(model) << "\n"
        << text.str() << why(diagnostics);
    ++(accepted ? verdicts[mutant.what].first : verdicts[mutant.what].second);
  }
  for (const auto& [what, counts] : verdicts) EXPECT_GT(counts.second, 100) << what;
  EXPECT_GT(verdicts["move"].first + verdicts["swap"].first,
            50);  // some moves are harmless, and accepted
}

// ---- each mistake is reported under its own rule

using Step = std::ptrdiff_t;

// The first or the last action of these kinds in a row; -1 if there is none.
Step first_of(const ir::Row& row, std::set<ActionKind> kinds) {
  const auto at =
      std::ranges::find_if(row, [&](const Action& one) { return kinds.contains(one.kind()); });
  return at == row.end() ? -1 : at - row.begin();
}
Step last_of(const ir::Row& row, std::set<ActionKind> kinds) {
  for (Step at = std::ssize(row); at-- > 0;) {
    if (kinds.contains(row[static_cast<size_t>(at)].kind())) return at;
  }
  return -1;
}
void drop(ir::Row* row, Step at) { row->erase(row->begin() + at); }
void repeat(ir::Row* row, Step at) { row->insert(row->begin() + at, *(row->begin() + at)); }
void move(ir::Row* row, Step from, Step to) {
  const Action action = *(row->begin() + from);
  drop(row, from);
  row->insert(row->begin() + to, action);
}

// A way to break one rule on one rank. False if the rank has nothing to break.
struct Mutation {
  ir::Rule rule;
  bool (*apply)(ir::Program* program, size_t rank);
};

// Applies a change to the first or last action of some kinds.
template <auto find, auto change, ActionKind... kinds>
bool at_one(ir::Program* program, size_t rank) {
  ir::Row& row = program->rows[rank];
  const Step at = find(row, {kinds...});
  if (at < 0) return false;
  change(&row, at);
  return true;
}

constexpr Mutation kMutations[] = {
    {ir::Rule::kMissingWork, at_one<first_of, drop, ActionKind::kForward>},
    {ir::Rule::kMissingWork,
     at_one<last_of, drop, ActionKind::kBackward, ActionKind::kBackwardInput>},
    {ir::Rule::kMissingWork, at_one<first_of, drop, ActionKind::kBackwardWeight>},
    {ir::Rule::kDuplicateAction, at_one<last_of, repeat, ActionKind::kForward>},
    {ir::Rule::kDuplicateAction, at_one<first_of, repeat, ActionKind::kSendF, ActionKind::kSendB>},
    {ir::Rule::kBackwardTwice,
     [](ir::Program* program, size_t rank) {
       ir::Row& row = program->rows[rank];
       const Step at = first_of(row, {ActionKind::kBackward});
       if (at < 0) return false;
       const ir::ActionPart whole = row[static_cast<size_t>(at)].parts()[0];
       row.insert(row.begin() + at,
                  Action(ActionKind::kBackwardInput, whole.stage(), whole.microbatch()));
       return true;
     }},
    {ir::Rule::kNeedsEarlier,  // before its F
     at_one<first_of, [](ir::Row* row, Step at) { move(row, at, 0); }, ActionKind::kBackward,
            ActionKind::kBackwardInput>},
    {ir::Rule::kNeedsEarlier,  // before its I
     at_one<last_of, [](ir::Row* row, Step at) { move(row, at, 0); }, ActionKind::kBackwardWeight>},
    {ir::Rule::kNeverSent, at_one<last_of, drop, ActionKind::kSendF, ActionKind::kSendB>},
    {ir::Rule::kNeverReceived, at_one<first_of, drop, ActionKind::kRecvF, ActionKind::kRecvB>},
    {ir::Rule::kUnusedReceive,
     at_one<first_of, [](ir::Row* row, Step at) { move(row, at, std::ssize(*row) - 1); },
            ActionKind::kRecvF, ActionKind::kRecvB>},
    {ir::Rule::kNoPeer,
     [](ir::Program* program, size_t rank) {
       program->rows[rank].push_back(
           Action(ActionKind::kSendF, program->placement.num_stages() - 1, 0));
       return program->placement.rank_of(program->placement.num_stages() - 1) ==
              static_cast<int>(rank);
     }},
    {ir::Rule::kSwap,  // two RECVs of one kind and stage, each before the use of both
     [](ir::Program* program, size_t rank) {
       ir::Row& row = program->rows[rank];
       const Step at = first_of(row, {ActionKind::kRecvF, ActionKind::kRecvB});
       if (at < 0) return false;
       const Action first = row[static_cast<size_t>(at)];
       for (Step other = at + 1; other < std::ssize(row); ++other) {
         const Action second = row[static_cast<size_t>(other)];
         if (second.kind() != first.kind() || second.parts()[0].stage() != first.parts()[0].stage())
           continue;
         move(&row, other, at);
         return true;
       }
       return false;
     }},
    {ir::Rule::kDeadlock,  // a SEND after the actions that depend on its result
     [](ir::Program* program, size_t rank) {
       ir::Row& row = program->rows[rank];
       const Step at = first_of(row, {ActionKind::kSendF});
       if (at < 0 || first_of(row, {ActionKind::kBackward, ActionKind::kBackwardInput,
                                    ActionKind::kOverlapFB}) < 0)
         return false;
       // Moving one SEND past the others would also be a swap, so all of them move, in order.
       ir::Row sends, waits, rest;
       for (const Action& one : row) {
         (one.kind() == ActionKind::kSendF       ? sends
          : one.kind() == ActionKind::kWaitSendF ? waits
                                                 : rest)
             .push_back(one);
       }
       rest.insert(rest.end(), sends.begin(), sends.end());
       rest.insert(rest.end(), waits.begin(), waits.end());
       row = std::move(rest);
       return true;
     }},
    {ir::Rule::kNotAwaited, at_one<first_of, drop, ActionKind::kWaitSendF, ActionKind::kWaitSendB>},
    {ir::Rule::kNotAwaited, at_one<last_of, drop, ActionKind::kWaitReduceGrad>},
    {ir::Rule::kWaitsForNothing,
     at_one<last_of, [](ir::Row* row, Step at) { move(row, at, 0); }, ActionKind::kWaitSendF,
            ActionKind::kWaitSendB, ActionKind::kWaitReduceGrad>},
    {ir::Rule::kReductionPending,
     [](ir::Program* program, size_t rank) {
       ir::Row& row = program->rows[rank];
       const Step wait = first_of(row, {ActionKind::kWaitReduceGrad}),
                  next = last_of(row, {ActionKind::kReduceGrad});
       if (next < wait) return false;
       move(&row, wait, next);
       return true;
     }},
    {ir::Rule::kSharded, at_one<first_of, drop, ActionKind::kUnshard>},
    {ir::Rule::kUnshardTwice, at_one<first_of, repeat, ActionKind::kUnshard>},
    {ir::Rule::kReshardWithoutUnshard, at_one<last_of, repeat, ActionKind::kReshard>},
    {ir::Rule::kReshardBeforeUse,
     at_one<first_of,
            [](ir::Row* row, Step at) {
              const int stage = row->at(static_cast<size_t>(at)).parts()[0].stage();
              row->insert(row->begin() + at + 1, Action(ActionKind::kReshard, stage));
            },
            ActionKind::kUnshard>},
    {ir::Rule::kLeftUnsharded, at_one<last_of, drop, ActionKind::kReshard>},
    {ir::Rule::kReduceTwice, at_one<first_of, repeat, ActionKind::kReduceGrad>},
    {ir::Rule::kReduceMissing, at_one<first_of, drop, ActionKind::kReduceGrad>},
    {ir::Rule::kReduceCount,
     [](ir::Program* program, size_t) {
       program->lowering.reduce_every = 1;
       return true;
     }},
};

TEST(VerifyTest, TheBrokenRuleIsReported) {
  std::map<ir::Rule, int> applied;
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    for (const int ranks : {2, 3}) {
      const ir::Program program = lowered(
          schedules::make_order(*spec, {ranks, schedules::default_stages(*spec, ranks), 6}));
      for (const Mutation& mutation : kMutations) {
        for (size_t rank = 0; rank < program.rows.size(); ++rank) {
          ir::Program mutant = program;
          if (!mutation.apply(&mutant, rank)) continue;
          ir::Diagnostics diagnostics;
          EXPECT_FALSE(verify(mutant, {}, &diagnostics));
          EXPECT_TRUE(std::ranges::any_of(
              diagnostics.kept(),
              [&](const ir::Diagnostic& one) { return one.rule == mutation.rule; }))
              << spec->name << ", rank " << rank << ": no " << ir::code(mutation.rule) << " in\n"
              << why(diagnostics);
          ++applied[mutation.rule];
        }
      }
    }
  }
  // Every rule of completeness, data flow, channels, residency and reduction, except kCannotRun,
  // which is about orders, and kMemoryExceeded, which is about `simulate --memory`.
  for (const ir::RuleInfo& row : ir::rules()) {
    const int number = static_cast<int>(row.rule);
    if (number >= 30 && number < 70 && row.rule != ir::Rule::kCannotRun &&
        row.rule != ir::Rule::kMemoryExceeded) {
      EXPECT_GE(applied[row.rule], 8) << ir::code(row.rule);
    }
  }
}

TEST(VerifyTest, WeightFreeWMayRunOnAReshardedStage) {
  ir::Program program;
  program.placement = ir::Placement::loop(1, 1);
  program.num_microbatches = 1;
  program.rows = {{Action(ActionKind::kUnshard, 0), Action(ActionKind::kForward, 0, 0),
                   Action(ActionKind::kBackwardInput, 0, 0), Action(ActionKind::kReshard, 0),
                   Action(ActionKind::kBackwardWeight, 0, 0)}};
  ir::Diagnostics refused, accepted, recorded;
  EXPECT_FALSE(verify(program, {}, &refused));
  EXPECT_TRUE(verify(program, {.weight_free_w = true}, &accepted));
  program.lowering.weight_free_w = true;
  EXPECT_TRUE(verify(program, {}, &recorded));
}

}  // namespace
}  // namespace pipewright::schedule
