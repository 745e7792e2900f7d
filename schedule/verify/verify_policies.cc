// forward-only, merge-backward and split-backward are judged by one pass over the rows, residency,
// lookahead and evict by another one, with the sliding windows of the pass that adds UNSHARD and
// RESHARD (NextStages). `evict: farthest` promises the fewest UNSHARDs, so they are counted. Where
// a RECV belongs depends on the whole program: receives is judged by placing the RECVs again.
#include "pipewright/schedule/verify/verify_policies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/lowering/add_send_recv.h"
#include "pipewright/schedule/lowering/add_unshard_reshard.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/lowering/place_receives.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::schedule {
namespace {

using ir::Action;
using ir::ActionKind;
using ir::ActionPart;

// "`residency: 2`"
std::string declared_text(std::string_view name, const ir::Lowering& declared) {
  return fmt::format("`{}: {}`", name, *ir::find_lowering_policy(name)->get(declared));
}

std::string remove_help(std::string_view name, const ir::Lowering& declared) {
  return fmt::format("remove {} from the header", declared_text(name, declared));
}

// Adds an error for the first action that breaks a policy, with the help to remove the policy.
class PolicyErrors {
 public:
  PolicyErrors(const ir::Lowering& declared, ir::Diagnostics* diagnostics)
      : declared_(declared), diagnostics_(*diagnostics) {}

  // Whether a policy is already broken; it is then reported once.
  bool has(std::string_view name) const {
    return std::ranges::find(broken_, name) != broken_.end();
  }
  ir::Diagnostic& add(std::string_view name, std::string message, ir::Place place = {}) {
    broken_.push_back(name);
    ir::Diagnostic& error =
        diagnostics_.error(ir::Rule::kDeclaredPolicy, std::move(message), place);
    error.help = remove_help(name, declared_);
    return error;
  }

 private:
  const ir::Lowering& declared_;
  ir::Diagnostics& diagnostics_;
  std::vector<std::string_view> broken_;
};

void check_backwards(const ir::Schedule& schedule, const ir::Lowering& declared,
                     PolicyErrors* errors) {
  const bool forward_only = declared.forward_only.value_or(false);
  const bool split = declared.split_backward.value_or(false);
  const bool merged = declared.merge_backward.value_or(false) && !split;  // split runs after merge
  if (!forward_only && !split && !merged) return;
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const ir::Row& row = schedule.rows[rank];
    Action previous;  // the compute before
    for (size_t step = 0; step < row.size(); ++step) {
      if (!ir::is_compute(row[step].kind())) continue;
      const auto refuse = [&](std::string_view policy, std::string_view what) {
        if (errors->has(policy)) return;
        errors->add(
            policy,
            fmt::format("`{}` on rank {} {}, but the header declares {}", ir::to_string(row[step]),
                        rank, what, declared_text(policy, declared)),
            ir::place_at(rank, step));
      };
      for (const ActionPart part : row[step].parts()) {
        if (forward_only && part.kind() != ActionKind::kForward)
          refuse("forward-only", "is a backward");
        if (split && part.kind() == ActionKind::kBackward)
          refuse("split-backward", "is not split into I and W");
        if (merged && part.kind() == ActionKind::kBackwardWeight &&
            previous ==
                Action(ActionPart(ActionKind::kBackwardInput, part.stage(), part.microbatch())))
          refuse("merge-backward", "directly follows its I");
      }
      previous = row[step];
    }
  }
}

// "among the next 2 stages in use"
std::string among_next(int count) {
  return count == 1 ? "the next stage in use"
                    : fmt::format("among the next {} stages in use", count);
}

// residency, lookahead, and evict: pytorch.
class ResidencyPolicies {
 public:
  ResidencyPolicies(const ir::Program& program, const ir::Lowering& declared, PolicyErrors* errors)
      : program_(program), declared_(declared), errors_(*errors) {}

  void check() {
    const auto num_stages = static_cast<size_t>(program_.placement.num_stages());
    uses_kept_.resize(num_stages);
    uses_ahead_.resize(num_stages);
    for (size_t rank = 0; rank < program_.rows.size(); ++rank) check_row(rank);
    if (declared_.residency && most_ > static_cast<size_t>(*declared_.residency))
      report_residency();
  }

 private:
  void check_row(size_t rank) {
    const ir::Row& row = program_.rows[rank];
    const int residency = declared_.residency.value_or(1);
    const bool judges_evict =
        declared_.residency && declared_.evict == ir::Eviction::kPytorch &&
        !declared_.weight_free_w.value_or(false);  // such a W does not keep its stage
    const bool judges_lookahead =
        declared_.lookahead && !errors_.has("lookahead") &&
        (declared_.residency || declared_.lookahead->kind == ir::Lookahead::Kind::kDistances);
    const int distance = judges_lookahead ? declared_.lookahead->of_rank(rank, residency) : 1;
    NextStages kept(row, residency, &uses_kept_), ahead(row, distance, &uses_ahead_);
    std::vector<int> unsharded;
    bool lost = false;
    for (size_t step = 0; step < row.size(); ++step) {
      const Action& action = row[step];
      if (ir::is_transfer(action.kind()) || ir::is_wait(action.kind()) ||
          action.kind() == ActionKind::kReduceGrad)
        continue;
      const auto refuse = [&](std::string_view policy, const std::string& what) {
        if (!errors_.has(policy))
          errors_.add(policy, fmt::format("`{}` on rank {} {}", ir::to_string(action), rank, what),
                      ir::place_at(rank, step));
      };
      kept.fill([](int) {});
      ahead.fill([](int) {});
      const int stage = action.parts()[0].stage();
      if (action.kind() == ActionKind::kUnshard) {
        unsharded.push_back(stage);
        if (unsharded.size() > most_) {
          most_ = unsharded.size();
          if (declared_.residency && most_ == static_cast<size_t>(*declared_.residency) + 1)
            exceeded_at_ = {rank, step};
        }
        if (judges_lookahead && !ahead.has(stage)) {
          refuse("lookahead",
                 fmt::format("is too early: expected stage {} to be {} ({})", stage,
                             among_next(distance), declared_text("lookahead", declared_)));
        }
      } else if (action.kind() == ActionKind::kReshard) {
        std::erase(unsharded, stage);
        if (judges_evict && kept.has(stage)) {
          refuse("evict", fmt::format("is too early: stage {} is {} ({})", stage,
                                      among_next(residency), declared_text("evict", declared_)));
        }
      } else {
        const auto useless =
            std::ranges::find_if(unsharded, [&](int one) { return !kept.has(one); });
        if (judges_evict && lost && useless != unsharded.end()) {
          refuse("evict",
                 fmt::format("runs while stage {} is unsharded, which is not {} ({})", *useless,
                             among_next(residency), declared_text("evict", declared_)));
        }
        lost = kept.pass(action);
        ahead.pass(action);
      }
    }
  }

  void report_residency() {
    const auto [rank, step] = exceeded_at_;
    errors_
        .add("residency",
             fmt::format("too many stages are unsharded at `{}` on rank {}: expected at most {} "
                         "(residency), got {}",
                         ir::to_string(program_.rows[rank][step]), rank, *declared_.residency,
                         *declared_.residency + 1),
             ir::place_at(rank, step))
        .help = fmt::format("set `residency: {}` in the header", most_);
  }

  const ir::Program& program_;
  const ir::Lowering& declared_;
  PolicyErrors& errors_;
  std::vector<uint32_t> uses_kept_, uses_ahead_;
  size_t most_ = 0;                             // stages of a rank unsharded at a time
  std::pair<size_t, size_t> exceeded_at_ = {};  // rank and step of the first UNSHARD too many
};

size_t count_unshards(const ir::Row& row) {
  return static_cast<size_t>(std::ranges::count_if(
      row, [](const Action& action) { return action.kind() == ActionKind::kUnshard; }));
}

void check_farthest(const ir::Program& program, const ir::Lowering& declared,
                    PolicyErrors* errors) {
  const std::vector<size_t> fewest = fewest_unshards(compute_order(program), *declared.residency);
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    const size_t unshards = count_unshards(program.rows[rank]);
    if (unshards <= fewest[rank]) continue;
    errors->add("evict", fmt::format("rank {} has too many UNSHARDs: expected {} ({}, {}), got {}",
                                     rank, fewest[rank], declared_text("evict", declared),
                                     declared_text("residency", declared), unshards));
    return;
  }
}

// Without any UNSHARD, all stages of a rank are unsharded throughout.
void check_never_resharded(const ir::Program& program, const ir::Lowering& declared,
                           PolicyErrors* errors) {
  const ir::Placement& placement = program.placement;
  std::vector<int> stages(program.rows.size());
  for (int one = 0; one < placement.num_instances(); ++one)
    ++stages[static_cast<size_t>(placement.rank_of_instance(one))];
  const auto most = std::ranges::max_element(stages);
  if (*most <= *declared.residency) return;
  errors
      ->add("residency",
            fmt::format("without UNSHARD, all {} stages of rank {} are unsharded: expected at most "
                        "{} (residency)",
                        *most, most - stages.begin(), *declared.residency))
      .help = fmt::format("set `residency: {}` in the header", *most);
}

// verify() counts the microbatches of each REDUCE_GRAD, if there is any.
void check_is_reduced(const ir::Program& program, const ir::Lowering& declared,
                      PolicyErrors* errors) {
  const bool reduces = (ir::kinds_in(program.rows) & ir::bit_of(ActionKind::kReduceGrad)) != 0;
  if (!reduces && ir::has_backward(program))
    errors->add("reduce-every",
                fmt::format("the program has no REDUCE_GRAD, but the header declares {}",
                            declared_text("reduce-every", declared)));
}

bool is_wait_send(const Action& action) { return ir::is_wait_send(action.kind()); }

// The program, which has no WAIT_SENDs, with its RECVs where the policy posts them.
ir::Rows with_declared_receives(const ir::Program& program, const ir::Lowering& declared) {
  if (declared.receives == ir::Receives::kLatest) {
    const VerifyOptions options = options_of(declared);
    return latest_receives(program, options.channels, options.capacity).rows;
  }
  ir::Program without = program;
  for (ir::Row& row : without.rows)
    std::erase_if(row, [](const Action& action) { return ir::is_transfer(action.kind()); });
  std::optional<ir::Program> placed = add_send_recv(std::move(without));
  if (!placed) return ir::Rows(program.rows.size());
  return declared.receives == ir::Receives::kParity ? parity_receives(std::move(*placed)).rows
                                                    : placed->rows;
}

void check_receives(const ir::Program& program, const ir::Lowering& declared,
                    PolicyErrors* errors) {
  // Lowering adds WAIT_SENDs after all other actions are placed.
  ir::Program without_waits = program;
  for (ir::Row& row : without_waits.rows) std::erase_if(row, is_wait_send);
  const ir::Rows expected = with_declared_receives(without_waits, declared);
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    const ir::Row& row = without_waits.rows[rank];
    const auto [found, other] = std::ranges::mismatch(row, expected[rank]);
    if (found == row.end() || other == expected[rank].end()) continue;
    size_t step = 0;
    for (auto left = found - row.begin(); left > 0 || is_wait_send(program.rows[rank][step]);
         ++step)
      left -= is_wait_send(program.rows[rank][step]) ? 0 : 1;
    errors->add("receives",
                fmt::format("RECVs of rank {} are not where {} posts them: expected `{}`, got `{}`",
                            rank, declared_text("receives", declared), ir::to_string(*other),
                            ir::to_string(*found)),
                ir::place_at(rank, step));
    return;
  }
}

// verify() finds SENDs and REDUCE_GRADs that are not awaited, if others are.
void check_torch(const ir::Program& program, const ir::Lowering& declared, PolicyErrors* errors) {
  const bool awaits = declared.torch == ir::Torch::k2_15;
  const ir::KindSet kinds = ir::kinds_in(program.rows);
  const bool has_waits = (kinds & ir::kWaits) != 0;
  const bool has_operations = (kinds & (ir::kinds_of_group(ir::ActionGroup::kSend) |
                                        ir::bit_of(ActionKind::kReduceGrad))) != 0;
  if (awaits && has_operations && !has_waits)
    errors->add("torch", "no SEND or REDUCE_GRAD is awaited, but the header declares " +
                             declared_text("torch", declared));
  if (!awaits && has_waits)
    errors->add("torch", "the program has WAITs, but the header declares " +
                             declared_text("torch", declared));
}

void check_outstanding_sends(const ir::Program& program, const ir::Lowering& declared,
                             PolicyErrors* errors) {
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    const ir::Row& row = program.rows[rank];
    int pending = 0;
    for (size_t step = 0; step < row.size(); ++step) {
      if (is_wait_send(row[step])) --pending;
      if (!ir::is_send(row[step].kind()) || ++pending <= *declared.max_outstanding_sends) continue;
      errors->add("max-outstanding-sends",
                  fmt::format("too many SENDs are pending at `{}` on rank {}: expected at most {} "
                              "({}), got {}",
                              ir::to_string(row[step]), rank, *declared.max_outstanding_sends,
                              declared_text("max-outstanding-sends", declared), pending),
                  ir::place_at(rank, step));
      return;
    }
  }
}

}  // namespace

std::optional<std::string> lookahead_problem(const ir::Lookahead& lookahead, int num_ranks,
                                             int residency) {
  const std::vector<int>& distances = lookahead.distances;
  if (distances.size() <= 1) return std::nullopt;
  if (distances.size() != static_cast<size_t>(num_ranks))
    return fmt::format("expected one distance per rank ({}), got {}", num_ranks, distances.size());
  const int largest = *std::ranges::max_element(distances);
  if (largest > residency)
    return fmt::format("expected distances from 1 to {} (residency), got {}", residency, largest);
  return std::nullopt;
}

bool verify_policies(const ir::ComputeOrder& order, ir::Diagnostics* diagnostics) {
  const size_t before = diagnostics->total();
  PolicyErrors errors(order.lowering, diagnostics);
  check_backwards(order, order.lowering, &errors);
  return diagnostics->total() == before;
}

bool verify_policies(const ir::Program& program, ir::Diagnostics* diagnostics) {
  const size_t before = diagnostics->total();
  const ir::Lowering& declared = program.lowering;
  PolicyErrors errors(declared, diagnostics);
  check_backwards(program, declared, &errors);
  if (declared.lookahead) {
    if (const auto problem =
            lookahead_problem(*declared.lookahead, program.placement.num_ranks(),
                              declared.residency.value_or(std::numeric_limits<int>::max())))
      errors.add("lookahead", "`lookahead`: " + *problem);
  }
  const bool unshards =
      std::ranges::any_of(program.rows, [](const ir::Row& row) { return count_unshards(row) > 0; });
  if (unshards) {
    ResidencyPolicies(program, declared, &errors).check();
    if (declared.residency && declared.evict == ir::Eviction::kFarthest)
      check_farthest(program, declared, &errors);
  } else if (declared.residency) {
    check_never_resharded(program, declared, &errors);
  }
  if (declared.reduce_every) check_is_reduced(program, declared, &errors);
  if (declared.torch) check_torch(program, declared, &errors);
  if (declared.max_outstanding_sends) check_outstanding_sends(program, declared, &errors);
  if (declared.receives) check_receives(program, declared, &errors);
  return diagnostics->total() == before;
}

}  // namespace pipewright::schedule
