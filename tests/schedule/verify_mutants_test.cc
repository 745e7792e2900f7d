// The verifier over mutants: valid programs that are broken in one place. It refuses those that an
// independent walk finds broken, and reports each mistake under its own rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "pipewright/ir/text/csv.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/verify/verify.h"
#include "pipewright/schedules/registry.h"
#include "tests/channel_model/interpreter.h"

namespace pipewright::schedule {
namespace {

using ir::Action;
using ir::ActionKind;

ir::Program lowered(const ir::ComputeOrder& order) {
  ir::Diagnostics diagnostics;
  auto program = lower(order, {}, &diagnostics);
  EXPECT_TRUE(program);
  return *program;
}

std::string why(const ir::Diagnostics& diagnostics) { return ir::render(diagnostics, nullptr, {}); }

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
        const bool input_local = !first_stage && mutant.placement.rank_of(stage - 1, microbatch) ==
                                                     static_cast<int>(rank);
        const bool gradient_local =
            !last_stage &&
            mutant.placement.rank_of(stage + 1, microbatch) == static_cast<int>(rank);
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

TEST(VerifyMutantsTest, MutantsAreRefusedExactlyIfTheyAreBroken) {
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
       return program->placement.rank_of(program->placement.num_stages() - 1, 0) ==
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

TEST(VerifyMutantsTest, TheBrokenRuleIsReported) {
  std::map<ir::Rule, int> applied;
  for (const schedules::ScheduleSpec* spec : schedules::all_schedules()) {
    for (const int ranks : {2, 3}) {
      const schedules::Shape shape{ranks, schedules::default_stages(*spec, ranks), 6};
      if (schedules::shape_error(*spec, shape)) continue;  // three ranks and two replicas
      const ir::Program program = lowered(schedules::make_order(*spec, shape));
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

}  // namespace
}  // namespace pipewright::schedule
