#ifndef PIPEWRIGHT_MODULES_DRIVEN_STAGE_H_
#define PIPEWRIGHT_MODULES_DRIVEN_STAGE_H_

#include <memory>
#include <utility>

#include "pipewright/modules/data_parallel.h"

namespace pipewright::modules {

// Base class of the wrappers' DataParallel adapters. A stage is a tree of units; while the adapter
// exists, the executor drives all of them, that is, its program decides when they reduce. `Unit` is
// a UnitTree<Unit> with set_driven(bool), gradient_sync() and abort().
//
// Units reduce during the last backward before a REDUCE_GRAD as they become ready, the others right
// after it. What is left for the REDUCE_GRAD itself is a stage that had no backward before it.
template <typename Unit>
class DrivenStage : public DataParallel {
 public:
  explicit DrivenStage(std::shared_ptr<Unit> root) : root_(std::move(root)) {
    root_->for_each([](Unit& unit) { unit.set_driven(true); });
  }
  ~DrivenStage() override {
    root_->for_each([](Unit& unit) { unit.set_driven(false); });
  }
  DrivenStage(const DrivenStage&) = delete;
  DrivenStage& operator=(const DrivenStage&) = delete;

  void before_backward(int /*microbatch*/, bool last) override { set_last_backward(last); }
  void after_last_backward() final {
    reduce_all();
    is_reduced_ = true;
  }
  void reduce_grad() final {
    if (!std::exchange(is_reduced_, false)) reduce_all();
  }
  void abort() final {
    is_reduced_ = false;
    set_last_backward(false);
    root_->for_each([](Unit& unit) { unit.abort(); });
  }

 protected:
  Unit& root() const { return *root_; }
  // Starts all reductions that have not started since the previous call, in an order that is the
  // same on all ranks.
  virtual void reduce_all() = 0;
  void set_last_backward(bool last) {
    root_->for_each([last](Unit& unit) { unit.gradient_sync().set_last_backward(last); });
  }

 private:
  const std::shared_ptr<Unit> root_;
  bool is_reduced_ = false;  // by after_last_backward(); the REDUCE_GRAD is still to come
};

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_DRIVEN_STAGE_H_
