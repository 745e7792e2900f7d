#ifndef PIPEWRIGHT_TESTS_TP_NOTED_GROUP_H_
#define PIPEWRIGHT_TESTS_TP_NOTED_GROUP_H_

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/comms/world.h"

// A process group and a callback that write down what happens on a rank's thread: matrix products,
// the start and the end of reductions.

namespace pipewright::tp {

using Events = std::vector<std::string>;

// Of this thread, which on the CPU also runs backward.
inline thread_local Events events;

class NotedWork final : public c10d::Work {
 public:
  explicit NotedWork(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  bool isCompleted() override { return work_->isCompleted(); }
  bool wait(std::chrono::milliseconds timeout) override {
    events.emplace_back("wait");
    return work_->wait(timeout);
  }

 private:
  const c10::intrusive_ptr<c10d::Work> work_;
};

// Notes when reductions are posted and waited for.
class NotedGroup final : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  explicit NotedGroup(comms::BackendPtr group)
      : Backend(group->getRank(), group->getSize()), group_(std::move(group)) {}

  const std::string getBackendName() const override { return group_->getBackendName(); }
  Work allreduce(std::vector<at::Tensor>& sum, const c10d::AllreduceOptions& options) override {
    events.emplace_back("all-reduce");
    return c10::make_intrusive<NotedWork>(group_->allreduce(sum, options));
  }
  Work _reduce_scatter_base(at::Tensor& part, at::Tensor& whole,
                            const c10d::ReduceScatterOptions& options) override {
    events.emplace_back("reduce-scatter");
    return c10::make_intrusive<NotedWork>(group_->_reduce_scatter_base(part, whole, options));
  }
  Work _allgather_base(at::Tensor& whole, at::Tensor& part,
                       const c10d::AllgatherOptions& options) override {
    return group_->_allgather_base(whole, part, options);
  }
  Work broadcast(std::vector<at::Tensor>& values, const c10d::BroadcastOptions& options) override {
    return group_->broadcast(values, options);
  }

 private:
  const comms::BackendPtr group_;
};

// A world whose groups note.
inline comms::World noted(comms::World& world) {
  return world.wrapped([](const comms::BackendPtr& group) -> comms::BackendPtr {
    return c10::make_intrusive<NotedGroup>(group);
  });
}

// What `function` does on this thread: one or more matrix products, the start and end of
// reductions.
inline Events events_of(const std::function<void()>& function) {
  const auto note =
      [](const at::RecordFunction& operation) -> std::unique_ptr<at::ObserverContext> {
    // A mark on a weight (modules/part_guard.h) dispatches an operator twice.
    if (std::string(operation.name()) == "aten::mm" &&
        (events.empty() || events.back() != "products"))
      events.emplace_back("products");
    return nullptr;
  };
  events.clear();
  const at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(note).scopes({at::RecordScope::FUNCTION}));
  function();
  at::removeCallback(handle);
  return std::exchange(events, {});
}

}  // namespace pipewright::tp

#endif  // PIPEWRIGHT_TESTS_TP_NOTED_GROUP_H_
