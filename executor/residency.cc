#include "pipewright/executor/residency.h"

#include <exception>
#include <string>
#include <utility>

#include "pipewright/ir/errors.h"

namespace pipewright::executor {

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
