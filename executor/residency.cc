#include "pipewright/executor/residency.h"

#include <exception>
#include <set>
#include <string>
#include <utility>

#include "pipewright/ir/action_kind.h"
#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/errors.h"

namespace pipewright::executor {

using ir::ActionKind;

RowPlan plan_row(const ir::Row& row) {
  RowPlan plan;
  plan.has_backward = ir::has_backward(row);
  for (size_t step = 0; step < row.size(); ++step) {
    if (row[step].is_idle()) continue;
    plan.actions.push_back({row[step], static_cast<int>(step), false});
    for (const ir::ActionPart part : row[step].parts()) {
      plan.has_residency = plan.has_residency || part.kind() == ActionKind::kUnshard ||
                           part.kind() == ActionKind::kReshard;
    }
  }
  std::set<int> open;  // stages with a later REDUCE_GRAD and no B or W before it yet
  for (auto planned = plan.actions.rbegin(); planned != plan.actions.rend(); ++planned) {
    for (const ir::ActionPart part : planned->action.parts()) {
      if (part.kind() == ActionKind::kReduceGrad) open.insert(part.stage());
      if (ir::completes_backward(part.kind()))
        planned->last_backward = open.erase(part.stage()) > 0;
    }
  }
  return plan;
}

std::vector<std::pair<int, int>> edges_of(const ir::Program& program) {
  std::set<std::pair<int, int>> edges;
  for (const ir::Row& row : program.rows) {
    for (const ir::Action& action : row) {
      if (!ir::is_transfer(action.kind())) continue;
      if (const auto transfer = ir::partner_of(action.parts()[0], program.placement))
        edges.insert({transfer->from, transfer->to});
    }
  }
  return {edges.begin(), edges.end()};
}

Residency::Residency(int stage, std::shared_ptr<modules::DataParallel> data_parallel)
    : stage_(stage),
      data_parallel_(data_parallel ? std::move(data_parallel)
                                   : std::make_shared<modules::NoDataParallel>()) {}

void Residency::begin(bool with_backward, bool whole_step) {
  state_ = State::kResharded;
  whole_step_ = whole_step;
  has_reduced_ = is_reducing_ = false;
  if (with_backward) data_parallel_->step_begins();
  if (whole_step) unshard();
}

void Residency::finish() {
  wait_reduce();
  // A program may end with an UNSHARD: nothing stays in flight after the step.
  if (whole_step_ || state_ == State::kGathering) need_unsharded();
  if (state_ == State::kUnsharded && (whole_step_ || has_reduced_)) reshard();
}

void Residency::abort() {
  try {
    data_parallel_->abort();
  } catch (const std::exception&) {
    // The step has already failed for another reason, and the other stages must be aborted too.
  }
}

void Residency::unshard() {
  if (state_ != State::kResharded)
    throw ContractError("stage " + std::to_string(stage_) + " is already unsharded");
  data_parallel_->unshard();
  state_ = State::kGathering;
}

void Residency::reshard() {
  need_unsharded();
  data_parallel_->reshard();
  state_ = State::kResharded;
}

void Residency::reduce_grad() {
  data_parallel_->reduce_grad();
  has_reduced_ = is_reducing_ = true;
}

void Residency::wait_reduce() {
  if (std::exchange(is_reducing_, false)) data_parallel_->wait_reduce();
}

void Residency::need_unsharded() {
  if (state_ == State::kResharded)
    throw ContractError("stage " + std::to_string(stage_) + " is not unsharded");
  if (state_ == State::kGathering) data_parallel_->wait_unshard();
  state_ = State::kUnsharded;
}

bool Residency::prepare_backward_weight(bool weight_free) {
  if (!weight_free || state_ == State::kGathering) need_unsharded();
  return state_ == State::kResharded && data_parallel_->frees_parameters();
}

}  // namespace pipewright::executor
