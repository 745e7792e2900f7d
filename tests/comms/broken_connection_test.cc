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

// Returns when the first bytes of a message are in `tensor`, which was filled with zeros.
void wait_for_first(const at::Tensor& tensor) {
  const volatile float* const first = tensor.data_ptr<float>();
  while (*first == 0) {
  }
}

// Rank 1, until it is killed. If it receives, it stops in the middle of the message.
TEST(Peer, DISABLED_Issues) {
  World world = world_of(1, std::atoi(std::getenv(kPortVariable)));
  const BackendPtr group = world.make_group("pair", std::vector<int>{0, 1});
  const std::string operation = std::getenv("OPERATION");
  const bool receives = operation == "receive";
  at::Tensor tensor = receives ? at::zeros({kElements}) : at::ones({kElements});
  const Work work = issue(operation, *group, tensor);
  if (receives) {
    wait_for_first(tensor);
    raise(SIGSTOP);
  }
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
    const bool sends = own == std::string("send");
    at::Tensor tensor = sends ? at::ones({kElements}) : at::zeros({kElements});
    auto waits =
        std::async(std::launch::async, [work = issue(own, *group, tensor)] { work->wait(); });
    if (sends) {
      int status = 0;
      ASSERT_EQ(waitpid(peer, &status, WUNTRACED), peer);
      ASSERT_TRUE(WIFSTOPPED(status));
    } else {
      wait_for_first(tensor);
      kill(peer, SIGSTOP);
    }
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
