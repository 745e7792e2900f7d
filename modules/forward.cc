#include "pipewright/modules/forward.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "pipewright/autograd/outside_writes.h"

namespace pipewright::modules {
namespace {

using torch::nn::Module;

class Hooks {
 public:
  void add(const Module& module, const std::shared_ptr<ForwardHook>& hook) {
    const std::lock_guard lock(mutex_);
    if (hooks_.size() >= purge_at_) {
      std::erase_if(hooks_, [](const auto& entry) {
        return std::ranges::none_of(entry.second, &Entry::is_alive);
      });
      purge_at_ = 2 * hooks_.size() + 64;
    }
    const auto owner = module.weak_from_this();
    std::vector<Entry>& entries = hooks_[&module];
    std::erase_if(entries, [](const Entry& each) { return !each.is_alive(); });
    entries.push_back({hook, owner, !owner.expired()});
  }

  // In the order of registration.
  std::vector<std::shared_ptr<ForwardHook>> find(const Module& module) {
    std::vector<std::shared_ptr<ForwardHook>> found;
    const std::lock_guard lock(mutex_);
    const auto entries = hooks_.find(&module);
    if (entries == hooks_.end()) return found;
    for (const Entry& entry : entries->second) {
      auto hook = entry.hook.lock();
      if (hook && entry.is_alive()) found.push_back(std::move(hook));
    }
    return found;
  }

 private:
  struct Entry {
    std::weak_ptr<ForwardHook> hook;
    std::weak_ptr<const Module> module;
    bool is_owned;  // by a shared_ptr, so that `module` tells whether it is alive

    // Another module may have been allocated at the address of one that was destroyed.
    bool is_alive() const { return !hook.expired() && !(is_owned && module.expired()); }
  };
  std::mutex mutex_;
  std::map<const Module*, std::vector<Entry>> hooks_;
  size_t purge_at_ = 64;
};

// LibTorch's modules have no field for their hooks. Never destroyed: modules in global variables
// may outlive static objects.
Hooks& hooks() {
  static auto* hooks = new Hooks;
  return *hooks;
}

}  // namespace

void register_forward_hook(const Module& module, const std::shared_ptr<ForwardHook>& hook) {
  hooks().add(module, hook);
}

Tensors call(const Module& module, const ForwardHook::Function& function, const Tensors& inputs) {
  const auto found = hooks().find(module);
  if (found.empty()) return function(inputs);
  // A checkpointed part undoes what the module writes in its second forward, not what wrappers do.
  const autograd::RecordsWrites not_wrappers(false);
  ForwardHook::Function inner = [&function](const Tensors& in) {
    const autograd::RecordsWrites but_module(true);
    return function(in);
  };
  for (size_t i = 0; i + 1 < found.size(); ++i) {
    inner = [&module, &found, i, inside = std::move(inner)](const Tensors& in) {
      return found[i]->run(&module, inside, in);
    };
  }
  return found.back()->run(&module, inner, inputs);
}

}  // namespace pipewright::modules
