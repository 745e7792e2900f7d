// The comparison of what ranks have called, while the store is slow.
#include "pipewright/comms/collective_log.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "pipewright/comms/group.h"
#include "pipewright/comms/poll.h"

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

TEST(Groups, AWaitEndsWhileTheStoreIsAsked) {
  const auto store = c10::make_intrusive<SlowStore>();
  const auto groups = std::make_shared<Groups>();
  const auto log = std::make_shared<CollectiveLog>("pair", 0, std::vector{0, 1});
  log->start("pair");
  const int work = 0;
  log->set_work(log->add("allreduce", at::ones({2}), at::ones({2})), &work);
  log->begin_wait(&work);
  std::jthread watcher;
  {
    const Groups::Wait wait(groups, log);
    watcher = std::jthread([&] {
      while (store->asked == 0) EXPECT_EQ(groups->difference(*store), "");
    });
    ASSERT_TRUE(poll(kTimeout, 1, [&] { return store->asked > 0; }));
  }
  store->answers = true;
  watcher.join();
  EXPECT_FALSE(store->is_late);
}

}  // namespace
}  // namespace pipewright::comms
