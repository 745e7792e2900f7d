// A group over Gloo is aborted in the middle of a large message: whoever waits for it goes on at
// once, and so does whoever drops the group. The message never ends, because rank 1 is a process
// that has been stopped.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <future>
#include <string>

#include "pipewright/comms/gloo/gloo.h"
#include "tests/support/shell/free_port.h"

namespace pipewright::comms {
namespace {

using Tensors = std::vector<at::Tensor>;
using Work = c10::intrusive_ptr<c10d::Work>;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::minutes kTimeout{2};
constexpr std::chrono::seconds kAtOnce{10};
constexpr int64_t kElements = 32 << 20;  // 128 MiB, far more than sockets hold
constexpr const char* kIssued = "issued";
constexpr const char* kPortVariable = "BROKEN_CONNECTION_PORT";

World world_of(int rank, int port) {
  return gloo_world({rank, 2, rank, "127.0.0.1", static_cast<uint16_t>(port)}, kTimeout);
}

// An operation that fills `tensor`, or reads it.
Work issue(const std::string& operation, c10d::Backend& group, at::Tensor& tensor) {
  Tensors tensors = {tensor};
  if (operation == "send") return group.send(tensors, 1 - group.getRank(), 0);
  if (operation == "receive") return group.recv(tensors, 1 - group.getRank(), 0);
  c10d::BroadcastOptions of_rank_1;
  of_rank_1.rootRank = 1;
  return group.broadcast(tensors, of_rank_1);
}

// Rank 1, until it is killed.
TEST(Peer, DISABLED_Issues) {
  World world = world_of(1, std::atoi(std::getenv(kPortVariable)));
  const BackendPtr group = world.make_group("pair", std::vector<int>{0, 1});
  at::Tensor ones = at::ones({kElements});
  const Work work = issue(std::getenv("OPERATION"), *group, ones);
  world.store()->set(kIssued, "");
  work->wait();
  pause();
}

pid_t start_peer(const std::string& operation, int port) {
  const pid_t peer = fork();
  if (peer != 0) return peer;
  setenv(kPortVariable, std::to_string(port).c_str(), 1);
  setenv("OPERATION", operation.c_str(), 1);
  execl("/proc/self/exe", "peer", "--gtest_also_run_disabled_tests",
        "--gtest_filter=Peer.DISABLED_Issues", nullptr);
  _exit(1);
}

// What rank 0 does, and what rank 1 does.
class BrokenConnection : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(BrokenConnection, AbortEndsTheWait) {
  const auto [own, peers] = GetParam();
  const int port = tests::free_port();
  const pid_t peer = start_peer(peers, port);
  {
    World world = world_of(0, port);
    BackendPtr group = world.make_group("pair", std::vector<int>{0, 1});
    at::Tensor tensor = at::zeros({kElements});
    auto waits =
        std::async(std::launch::async, [work = issue(own, *group, tensor)] { work->wait(); });
    // Stops rank 1 in the middle of the message.
    if (own == std::string("send")) {
      world.store()->wait({kIssued}, kTimeout);
    } else {
      const volatile float* const first = tensor.data_ptr<float>();
      while (*first == 0) {
      }
    }
    kill(peer, SIGSTOP);
    EXPECT_EQ(waits.wait_for(std::chrono::milliseconds(500)), std::future_status::timeout);

    const Clock::time_point aborted = Clock::now();
    group->abort();
    EXPECT_THROW(waits.get(), std::exception);
    EXPECT_LT(Clock::now() - aborted, kAtOnce);
    group.reset();
    EXPECT_LT(Clock::now() - aborted, kAtOnce);
  }
  kill(peer, SIGKILL);
  waitpid(peer, nullptr, 0);
}

INSTANTIATE_TEST_SUITE_P(Operations, BrokenConnection,
                         testing::Values(std::pair("send", "receive"), std::pair("receive", "send"),
                                         std::pair("broadcast", "broadcast")),
                         [](const auto& test) { return std::string(test.param.first); });

}  // namespace
}  // namespace pipewright::comms
