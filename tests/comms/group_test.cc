// How the handle of a group makes and ends its backend.
#include "pipewright/comms/group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <latch>
#include <mutex>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/world.h"

namespace pipewright::comms {
namespace {

// Its shutdown() lasts until abort(), as while an operation's peer does not come.
class Stuck : public c10d::Backend {
 public:
  using Backend::Backend;
  const std::string getBackendName() const override { return "stuck"; }
  void shutdown() override { released_.wait(); }
  void abort() override {
    is_aborted_ = true;
    release();
  }

  bool is_aborted() const { return is_aborted_; }
  void release() {
    if (!is_released_.exchange(true)) release_.set_value();
  }

 protected:
  std::promise<void> release_;
  const std::shared_future<void> released_ = release_.get_future().share();
  std::atomic<bool> is_aborted_ = false, is_released_ = false;
};

// As ProcessGroupNCCL of PyTorch 2.11: shutdown() and abort() lock the communicator, and
// shutdown() has it while it waits for operations.
class StuckNccl final : public Stuck {
 public:
  using Stuck::Stuck;
  const std::string getBackendName() const override { return "nccl"; }
  void waitForPendingWorks() override { released_.wait(); }
  void shutdown() override {
    const std::lock_guard lock(communicator_);
    Stuck::shutdown();
  }
  void abort() override {
    const std::lock_guard lock(communicator_);
    Stuck::abort();
  }

 private:
  std::mutex communicator_;
};

// A rank that ends cleanly waits for operations that another rank's failure has made endless.
template <typename Backend>
class GroupEnd : public testing::Test {};
using StuckBackends = testing::Types<Stuck, StuckNccl>;
TYPED_TEST_SUITE(GroupEnd, StuckBackends);

TYPED_TEST(GroupEnd, ThatIsCleanIsAbortedByAFailure) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const auto watcher = std::make_shared<Watcher>();
  std::vector<c10::intrusive_ptr<TypeParam>> made;
  const MakeBackend make = [&](const std::string&, int rank, int size) {
    return made.emplace_back(c10::make_intrusive<TypeParam>(rank, size));
  };
  World ends(0, 2, store, make, std::chrono::seconds(60), watcher);
  World fails(1, 2, store, make, std::chrono::seconds(60), watcher);
  BackendPtr group = ends.make_group("all", std::vector{0, 1});
  auto ended = std::async(std::launch::async, [&] { group.reset(); });
  EXPECT_EQ(ended.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  fails.failures().fail("out of luck");
  const bool has_ended = ended.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  EXPECT_TRUE(has_ended);
  EXPECT_TRUE(made[0]->is_aborted());
  made[0]->release();
}

// As ProcessGroupNCCL on a device that is idle only when all of its groups have been aborted.
class AbortsWithOthers final : public c10d::Backend {
 public:
  AbortsWithOthers(int rank, int size, std::shared_ptr<std::latch> all)
      : Backend(rank, size), all_(std::move(all)) {}
  const std::string getBackendName() const override { return "together"; }
  void abort() override {
    all_->arrive_and_wait();
    throw std::runtime_error("remote error");
  }

 private:
  const std::shared_ptr<std::latch> all_;
};

TEST(Group, AFailureAbortsAllGroupsAtOnceAndLosesNoError) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const auto all = std::make_shared<std::latch>(3);
  World world(0, 1, store, [&](const std::string&, int rank, int size) {
    return c10::make_intrusive<AbortsWithOthers>(rank, size, all);
  });
  std::vector<BackendPtr> groups;
  for (const char* name : {"a", "b", "c"}) groups.push_back(world.make_group(name, std::vector{0}));
  testing::internal::CaptureStderr();
  world.failures().fail("out of luck");
  EXPECT_TRUE(all->try_wait());
  const std::string errors = testing::internal::GetCapturedStderr();
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_NE(errors.find(std::string("abort of group `") + name + "[0]#0`: remote error"),
              std::string::npos)
        << errors;
  }
}

// A communicator that is stuck for good: whoever learns of the failure goes on.
TEST(Group, NobodyWaitsForAnAbortThatDoesNotEnd) {
  const auto never = std::make_shared<std::latch>(2);
  World world(0, 1, c10::make_intrusive<c10d::HashStore>(),
              [&](const std::string&, int rank, int size) {
                return c10::make_intrusive<AbortsWithOthers>(rank, size, never);
              });
  const BackendPtr group = world.make_group("a", std::vector{0});
  auto failed = std::async(std::launch::async, [&] { world.failures().fail("out of luck"); });
  const bool has_returned = failed.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  EXPECT_TRUE(has_returned);
  never->count_down();
}

// Without a failure, all operations have ended before NCCL is shut down.
TEST(Group, ACleanEndWaitsForOperations) {
  const auto backend = c10::make_intrusive<StuckNccl>(0, 1);
  World world(0, 1, c10::make_intrusive<c10d::HashStore>(),
              [&](const std::string&, int, int) { return backend; });
  BackendPtr group = world.make_group("all", std::vector{0});
  auto ended = std::async(std::launch::async, [&] { group.reset(); });
  EXPECT_EQ(ended.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  backend->release();
  ended.get();
  EXPECT_FALSE(backend->is_aborted());
}

TEST(Group, ItsMembersAreRanksOfTheWorld) {
  const MakeBackend make = [](const std::string&, int, int) { return BackendPtr(); };
  World world(5, 8, c10::make_intrusive<c10d::HashStore>(), make);
  const BackendPtr pair = world.make_group("pair", std::vector{5, 7});
  EXPECT_EQ(members_of(*pair), (std::vector{5, 7}));
  EXPECT_EQ(members_of(*c10::make_intrusive<StuckNccl>(1, 2)), (std::vector{0, 1}));
}

TEST(Group, OneThatIsDroppedIsForgotten) {
  const MakeBackend make = [](const std::string&, int, int) { return BackendPtr(); };
  World world(0, 1, c10::make_intrusive<c10d::HashStore>(), make);
  const BackendPtr kept = world.make_group("kept", std::vector{0});
  BackendPtr dropped = world.make_group("dropped", std::vector{0});
  EXPECT_EQ(world.groups()->states().size(), 2u);
  dropped.reset();
  const std::vector<GroupState> states = world.groups()->states();
  ASSERT_EQ(states.size(), 1u);
  EXPECT_TRUE(states[0].name.starts_with("kept")) << states[0].name;
}

// As over Gloo or NCCL if a member ends after the others have found it and before it is connected.
TEST(Group, MakingABackendEndsWithAFailure) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const auto watcher = std::make_shared<Watcher>();
  std::promise<void> connected;
  const std::shared_future<void> connects = connected.get_future().share();
  const MakeBackend make = [connects](const std::string&, int, int) -> BackendPtr {
    connects.wait();
    return {};
  };
  World waits(0, 2, store, make, std::chrono::seconds(60), watcher);
  World fails(1, 2, store, make, std::chrono::seconds(60), watcher);
  auto made = std::async(std::launch::async, [&]() -> std::string {
    try {
      waits.make_group("all", std::vector{0, 1});
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
  });
  fails.failures().fail("out of luck");
  const bool has_ended = made.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  connected.set_value();
  EXPECT_TRUE(has_ended);
  EXPECT_NE(made.get().find("rank 1: out of luck"), std::string::npos);
}

}  // namespace
}  // namespace pipewright::comms
