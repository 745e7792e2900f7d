#ifndef PIPEWRIGHT_MODULES_REGISTRY_H_
#define PIPEWRIGHT_MODULES_REGISTRY_H_

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace pipewright::modules {

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

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_REGISTRY_H_
