// The comparison of what ranks have called, while the store is slow.
#include "pipewright/comms/collective_log.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/group.h"
#include "pipewright/comms/process/sockets.h"

namespace pipewright::comms {
namespace {

constexpr std::chrono::seconds kTimeout(20);

// Answers comparisons only after answer(), or when the time limit is over.
class SlowStore final : public c10d::HashStore {
 public:
  using HashStore::compareSet;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& value) override {
    ++asked;
    if (!poll(kTimeout, 1, [&] { return answers.load(); })) is_late = true;
    return HashStore::compareSet(key, expected, value);
  }
  std::atomic<int> asked = 0;
  std::atomic<bool> answers = false, is_late = false;
};

// A collective that lasts until its wait is released.
class Pending final : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds) override {
    return poll(kTimeout, 1, [&] { return over.load(); });
  }
  std::atomic<bool> over = false;
};

class PendingBackend final : public c10d::Backend {
 public:
  PendingBackend(int rank, int size) : Backend(rank, size) {}
  const std::string getBackendName() const override { return "pending"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions&) override {
    return work;
  }
  void shutdown() override {}
  const c10::intrusive_ptr<Pending> work = c10::make_intrusive<Pending>();
};

// The thread that asks holds no lock that a wait needs, and does not keep the group alive.
TEST(Groups, AWaitEndsWhileTheStoreIsAsked) {
  const auto store = c10::make_intrusive<SlowStore>();
  const auto groups = std::make_shared<Groups>();
  const auto backend = c10::make_intrusive<PendingBackend>(0, 2);
  auto group = c10::make_intrusive<Group>(
      "pair", 0, std::vector{0, 1}, [&](const std::string&, int, int) { return backend; }, kTimeout,
      std::weak_ptr<FailureDomain>());
  groups->add(group);
  std::vector<at::Tensor> sum = {at::ones({2})};
  const auto work = group->allreduce(sum, {});
  std::jthread waiter([&] { work->wait(); });
  std::jthread watcher([&] {
    while (store->asked == 0) EXPECT_EQ(groups->difference(*store), "");
  });
  ASSERT_TRUE(poll(kTimeout, 1, [&] { return store->asked > 0; }));
  backend->work->over = true;
  waiter.join();
  EXPECT_EQ(group.use_count(), 1u);
  group.reset();
  store->answers = true;
  watcher.join();
  EXPECT_FALSE(store->is_late);
}

}  // namespace
}  // namespace pipewright::comms
