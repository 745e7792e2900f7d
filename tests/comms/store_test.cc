// A store that does not answer: its process has stopped, its host has vanished, or something else
// listens at its port. Each request then ends with an error that names the store; without the time
// limits of comms/torch_gaps/bounded_store.cc these tests hang.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/process/sockets.h"
#include "pipewright/comms/torch_gaps/bounded_store.h"
#include "pipewright/comms/world.h"

namespace pipewright::comms {
namespace {

// Long enough for a server that lives, on a busy machine.
constexpr std::chrono::milliseconds kLimit{3000};

// A process that hosts a store. Its destructor kills it.
class StoreHost {
 public:
  StoreHost() : pipe_(popen("exec tests/comms/store_host", "r")) {
    int port = 0;
    if (!pipe_ || std::fscanf(pipe_, "%d %d", &process_, &port) != 2)
      throw std::runtime_error("cannot start tests/comms/store_host");
    port_ = static_cast<uint16_t>(port);
  }
  ~StoreHost() {
    kill_it();
    pclose(pipe_);
  }
  StoreHost(const StoreHost&) = delete;
  StoreHost& operator=(const StoreHost&) = delete;

  uint16_t port() const { return port_; }
  void kill_it() const { kill(process_, SIGKILL); }
  // From now on the process answers nothing. Its connections stay open.
  void stop() const {
    kill(process_, SIGSTOP);
    int status = 0;
    waitpid(process_, &status, WUNTRACED);  // signals take their time
  }
  void resume() const { kill(process_, SIGCONT); }

 private:
  FILE* const pipe_;
  pid_t process_ = 0;
  uint16_t port_ = 0;
};

// A socket that listens, but nobody ever answers. Either the kernel accepts connections for it, or
// its queue is full, and the kernel drops what arrives, as if the host had vanished.
class SilentListener {
 public:
  explicit SilentListener(bool accepts) : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_, any, size), 0);
    EXPECT_EQ(listen(listener_, accepts ? 8 : 0), 0);
    EXPECT_EQ(getsockname(listener_, any, &size), 0);
    port_ = ntohs(address.sin_port);
    if (accepts) return;
    // A queue of length 0 takes one connection.
    first_ = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(connect(first_, any, size), 0);
  }
  ~SilentListener() {
    close(listener_);
    if (first_ >= 0) close(first_);
  }
  SilentListener(const SilentListener&) = delete;
  SilentListener& operator=(const SilentListener&) = delete;

  uint16_t port() const { return port_; }

 private:
  const int listener_;
  int first_ = -1;
  uint16_t port_ = 0;
};

// Rank 1 of 2 connects to the store at this port.
StorePtr connect_to(uint16_t port) {
  Environment environment;
  environment.rank = 1;
  environment.world_size = 2;
  environment.master_port = port;
  return connect_store(environment, kLimit);
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

std::string named(uint16_t port) { return "the store at 127.0.0.1:" + std::to_string(port); }

TEST(Store, AServerThatAcceptsButNeverAnswers) {
  const SilentListener silent(/*accepts=*/true);
  EXPECT_EQ(error_of([&] { connect_to(silent.port()); }),
            named(silent.port()) + " did not answer within 3000 ms");
}

TEST(Store, AHostThatVanishedBeforeARankConnects) {
  const SilentListener full(/*accepts=*/false);
  const std::string error = error_of([&] { connect_to(full.port()); });
  EXPECT_EQ(error.find(named(full.port())), 0U) << error;
  EXPECT_EQ(error.find("frame #"), std::string::npos) << error;
}

TEST(Store, EveryRequestToAStoppedServerEnds) {
  using Request = std::function<void(c10d::Store&)>;
  const std::vector<Request> requests = {
      [](c10d::Store& store) { store.get("key"); },
      [](c10d::Store& store) { store.add("number", 1); },
      [](c10d::Store& store) { store.check({"key"}); },
      [](c10d::Store& store) { store.compareSet("key", "", "value"); },
      [](c10d::Store& store) { store.deleteKey("key"); },
      [](c10d::Store& store) { store.getNumKeys(); },
      [](c10d::Store& store) { store.wait({"key"}); },
      [](c10d::Store& store) { store.wait({"key"}, kLimit); },
  };
  const StoreHost host;
  std::vector<StorePtr> stores;
  for (size_t i = 0; i < requests.size(); ++i) stores.push_back(connect_to(host.port()));
  const StorePtr idle = connect_to(host.port());
  idle->set("key", "value");
  host.stop();
  std::vector<std::string> errors(requests.size());
  std::string error_of_clone;
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < requests.size(); ++i)
      threads.emplace_back([&, i] { errors[i] = error_of([&] { requests[i](*stores[i]); }); });
    threads.emplace_back([&] { error_of_clone = error_of([&] { idle->clone(); }); });
  }
  const std::string expected = named(host.port()) + " does not answer: ";
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(errors[i].find(expected), 0U) << i << ": " << errors[i];
  EXPECT_EQ(error_of_clone, named(host.port()) + " did not answer within 3000 ms");
  // A late answer must not be taken for that of the next request.
  host.resume();
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::string error = error_of([&] { stores[i]->add("number", 1); });
    EXPECT_EQ(error.find(expected), 0U) << i << ": " << error;
  }
}

// The limit of requests can be shorter than the timeout of connecting and waiting; clones have the
// same. A wait may take longer than a request.
TEST(Store, TheLimitOfRequestsMayChange) {
  const StoreHost host;
  Environment environment;
  environment.rank = 1;
  environment.world_size = 2;
  environment.master_port = host.port();
  const StorePtr store = connect_store(environment, std::chrono::hours(1));
  const StorePtr clone = store->clone();
  auto& bounded = dynamic_cast<BoundedStore&>(*store);
  bounded.limit_requests(std::chrono::milliseconds(500));
  EXPECT_THROW(store->wait({"key"}, std::chrono::milliseconds(1000)), c10::DistStoreError);
  clone->set("key", "value");
  EXPECT_EQ(store->get_to_str("key"), "value");
  host.stop();
  for (const StorePtr& one : {store, clone}) {
    const std::string error = error_of([&] { one->check({"key"}); });
    EXPECT_EQ(error.find(named(host.port()) + " does not answer: "), 0U) << error;
  }
}

// A data loader outlives the process that it was forked from. Whoever is connected to that, or
// connects, learns that it has ended.
TEST(Store, AForkedChildDoesNotStandInForTheHost) {
  const StoreHost host;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(host.port());
  const auto connected = [&](int to) {
    return connect(to, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  };
  const int own = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_TRUE(connected(own));
  c10d::TCPStoreOptions options;
  options.port = host.port();
  BoundedStore store("", "127.0.0.1", "its host", options);  // accepted after `own`
  store.set("fork", "1");
  store.wait({"forked"}, kLimit);
  host.kill_it();
  const timeval limit{.tv_sec = 20, .tv_usec = 0};
  setsockopt(own, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  char byte = 0;
  EXPECT_EQ(recv(own, &byte, 1, 0), 0) << strerror(errno);
  close(own);
  // The kernel closes the sockets of a killed process one by one, maybe the listener last.
  EXPECT_TRUE(poll(std::chrono::seconds(20), 1, [&] {
    const int late = socket(AF_INET, SOCK_STREAM, 0);
    const bool refused = !connected(late);
    close(late);
    return refused;
  }));
}

// The host of the store need not be a rank: torchrun's agent is none.
TEST(Store, ALostAgentIsNotBlamedOnRank0) {
  std::optional<StoreHost> host(std::in_place);
  std::vector<std::unique_ptr<World>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    Environment environment;
    environment.rank = rank;
    environment.world_size = 2;
    environment.master_port = host->port();
    environment.agent_has_store = true;
    ranks.push_back(std::make_unique<World>(rank, 2, connect_store(environment, kLimit),
                                            MakeBackend(), kLimit));
    ranks.back()->failures().set_place([] { return "step 1"; });
  }
  host.reset();
  for (const auto& rank : ranks) {
    const auto failed = [&] { return rank->failures().failed(); };
    EXPECT_TRUE(poll(std::chrono::seconds(20), 1, failed));
    EXPECT_EQ(rank->failures().cause(),
              "torchrun's agent, which hosts the store, has ended, or its host is unreachable: "
              "host 127.0.0.1");
  }
}

}  // namespace
}  // namespace pipewright::comms
