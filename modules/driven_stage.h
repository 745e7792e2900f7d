#ifndef PIPEWRIGHT_MODULES_DRIVEN_STAGE_H_
#define PIPEWRIGHT_MODULES_DRIVEN_STAGE_H_

#include <memory>
#include <utility>

#include "pipewright/modules/data_parallel.h"

namespace pipewright::modules {

// Base class of the wrappers' DataParallel adapters. A stage is a tree of units; while the adapter
// exists, the executor drives all of them, that is, its program decides when they reduce. `Unit` is
// a UnitTree<Unit> with set_driven(bool) and gradient_sync().
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

 protected:
  Unit& root() const { return *root_; }
  void set_last_backward(bool last) {
    root_->for_each([last](Unit& unit) { unit.gradient_sync().set_last_backward(last); });
  }

 private:
  const std::shared_ptr<Unit> root_;
};

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_DRIVEN_STAGE_H_
