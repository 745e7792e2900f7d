#ifndef PIPEWRIGHT_MODULES_UNIT_TREE_H_
#define PIPEWRIGHT_MODULES_UNIT_TREE_H_

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

// A unit is what one call of fully_shard() or replicate() returns: it owns the parameters of the
// wrapped modules that no earlier call owns. Modules are wrapped bottom-up, layers before the
// model, so units form a tree, as their modules do. The unit around all others is the root; it
// stores the state of a whole forward or backward.

namespace pipewright::modules {

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

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_UNIT_TREE_H_
