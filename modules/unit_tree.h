#ifndef PIPEWRIGHT_MODULES_UNIT_TREE_H_
#define PIPEWRIGHT_MODULES_UNIT_TREE_H_

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/modules/data_parallel.h"

// Dotted paths of modules and parameters, as in torch::nn::Module::named_parameters().

namespace pipewright::modules {

// "block0" and "weight" make "block0.weight"; an empty part is left out.
inline std::string join_path(const std::string& outer, const std::string& inner) {
  if (outer.empty() || inner.empty()) return outer + inner;
  return outer + "." + inner;
}

// The path of a module in the list that is wrapped by one call: its index, or the empty string if
// it is the only one.
inline std::string path_in_list(size_t index, size_t count) {
  return count == 1 ? "" : std::to_string(index);
}

// Finds the unit of a wrapped module. PyTorch stores it in the module; LibTorch's torch::nn::Module
// has no field for it. `Module` derives from std::enable_shared_from_this. Owns neither modules nor
// units. Thread-safe.
template <typename Module, typename Unit>
class ModuleRegistry {
 public:
  void set(const Module* module, const std::shared_ptr<Unit>& unit) {
    const std::lock_guard lock(mutex_);
    entries_[module] = {unit, module->weak_from_this(), !module->weak_from_this().expired()};
  }

  // To be called by the unit's destructor.
  void forget(const Module* module) {
    const std::lock_guard lock(mutex_);
    // Another module may have been allocated at the same address, with a unit that is alive.
    const auto found = entries_.find(module);
    if (found != entries_.end() && found->second.unit.expired()) entries_.erase(found);
  }

  // Null if the module has no unit, or no longer has one.
  std::shared_ptr<Unit> find(const Module* module) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(module);
    if (found == entries_.end()) return nullptr;
    const Entry& entry = found->second;
    // The wrapped module may have been destroyed, and another one allocated at its address.
    return entry.is_owned && entry.module.expired() ? nullptr : entry.unit.lock();
  }

  // All units that are alive. A unit of several modules appears once per module.
  std::vector<std::shared_ptr<Unit>> units() {
    std::vector<std::shared_ptr<Unit>> units;
    const std::lock_guard lock(mutex_);
    for (const auto& [module, entry] : entries_) {
      if (auto unit = entry.unit.lock()) units.push_back(std::move(unit));
    }
    return units;
  }

 private:
  struct Entry {
    std::weak_ptr<Unit> unit;
    std::weak_ptr<const Module> module;
    bool is_owned;  // by a shared_ptr, so that `module` tells whether it is alive
  };
  std::mutex mutex_;
  std::map<const Module*, Entry> entries_;
};

// A unit is what one call of fully_shard() or replicate() returns: it owns the parameters of the
// wrapped modules that no earlier call owns. Modules are wrapped bottom-up, layers before the
// model, so units form a tree, as their modules do. The unit around all others is the root; it
// stores the state of a whole forward or backward.

// The place of a `Unit` in its tree; `Unit` derives from UnitTree<Unit>. A unit owns the units
// nested in it, and has a weak pointer to the unit around it: when the latter is destroyed, the
// nested units are roots again. For one thread at a time.
template <typename Unit>
class UnitTree : public std::enable_shared_from_this<Unit> {
 public:
  bool is_root() const { return outer_.expired(); }
  std::shared_ptr<Unit> root() {
    const std::shared_ptr<Unit> outer = outer_.lock();
    return outer ? outer->root() : this->shared_from_this();
  }

  // The units directly in this one, in the order of their modules.
  const std::vector<std::shared_ptr<Unit>>& nested() const { return nested_; }

  // Visits this unit and all units in it: nested units before the unit around them, and the last
  // nested unit first. Backward finishes units in this order if forward ran them in the order of
  // their modules.
  template <typename Visit>
  void for_each(const Visit& visit) {
    for (auto unit = nested_.rbegin(); unit != nested_.rend(); ++unit) (*unit)->for_each(visit);
    visit(static_cast<Unit&>(*this));
  }

  // Visits this unit and all units in it in the order in which forward enters them: each unit
  // before those in it.
  template <typename Visit>
  void for_each_outer_first(const Visit& visit) {
    visit(static_cast<Unit&>(*this));
    for (const std::shared_ptr<Unit>& unit : nested_) unit->for_each_outer_first(visit);
  }

  // Visits this unit and, if `recurse`, all units in it: for setters.
  template <typename Visit>
  void for_each_if(bool recurse, const Visit& visit) {
    if (recurse)
      for_each(visit);
    else
      visit(static_cast<Unit&>(*this));
  }

 protected:
  // Adds a nested unit; a no-op if it has been added. Only adopt() sets the unit around it.
  void nest(std::shared_ptr<Unit> unit) {
    if (std::ranges::find(nested_, unit) == nested_.end()) nested_.push_back(std::move(unit));
  }
  // Makes this unit the unit around its nested units. To be called last, when wrapping can no
  // longer fail, so that a failed call leaves them unchanged.
  void adopt() {
    for (const std::shared_ptr<Unit>& unit : nested_) unit->outer_ = this->weak_from_this();
  }

 private:
  std::weak_ptr<Unit> outer_;
  std::vector<std::shared_ptr<Unit>> nested_;
};

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

#endif  // PIPEWRIGHT_MODULES_UNIT_TREE_H_
