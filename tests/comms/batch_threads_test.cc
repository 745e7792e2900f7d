#include "pipewright/comms/torch_gaps/batch_threads.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <thread>

#include "pipewright/comms/gloo/gloo.h"
#include "tests/support/shell/free_port.h"

namespace pipewright::comms {
namespace {

int policy_of_a_new_thread() {
  int policy = -1;
  std::thread([&policy] { policy = ::sched_getscheduler(0); }).join();
  return policy;
}

std::set<pid_t> batch_threads_of_this_process() {
  std::set<pid_t> threads;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    const pid_t id = std::stoi(thread.path().filename());
    if (::sched_getscheduler(id) == SCHED_BATCH) threads.insert(id);
  }
  return threads;
}

TEST(BatchThreads, AreThoseThatStartWhileItLives) {
  {
    const BatchThreads batch;
    EXPECT_EQ(policy_of_a_new_thread(), SCHED_BATCH);
  }
  EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
  EXPECT_EQ(policy_of_a_new_thread(), SCHED_OTHER);
}

TEST(BatchThreads, KeepThePolicyThatTheUserChose) {
  std::thread([] {
    const sched_param no_priority{};
    ASSERT_EQ(::sched_setscheduler(0, SCHED_IDLE, &no_priority), 0);
    {
      const BatchThreads batch;
      EXPECT_EQ(policy_of_a_new_thread(), SCHED_IDLE);
    }
    EXPECT_EQ(::sched_getscheduler(0), SCHED_IDLE);
  }).join();
}

TEST(BatchThreads, OneForTheDeviceOfGloo) {
  const auto port = static_cast<uint16_t>(tests::free_port());
  const World world = gloo_world({0, 1, 0, "127.0.0.1", port});
  EXPECT_EQ(batch_threads_of_this_process().size(), 1u);
  EXPECT_EQ(policy_of_a_new_thread(), SCHED_OTHER);
}

}  // namespace
}  // namespace pipewright::comms
