// Connections of processes to rank 0: an end without goodbye is told, and nothing else.
#include "pipewright/comms/failure/lifeline.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "pipewright/comms/process/sockets.h"

namespace pipewright::comms {
namespace {

using namespace std::chrono_literals;

constexpr auto kTimeout = 20s;
constexpr const char* kHost = "127.0.0.1";

// A process of this rank that lives until it is killed.
class Process {
 public:
  Process(int rank, c10d::Store& store) : process_(fork()) {
    if (process_ != 0) return;
    const Lifeline own(rank, store, kHost, kTimeout);
    while (true) pause();
  }
  ~Process() { kill_it(); }
  void kill_it() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    process_ = -1;
  }

 private:
  pid_t process_;
};

// Those that break until one does, or until time is up.
std::vector<int> wait_for_broken(Lifeline& first, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < deadline) {
    if (const std::vector<int> broken = first.broken(); !broken.empty()) return broken;
    std::this_thread::sleep_for(5ms);
  }
  return {};
}

int port_of(c10d::Store& store) {
  const std::string place = store.get_to_str("lifeline");
  return std::stoi(place.substr(place.find(' ')));
}

int connect_to(c10d::Store& store) {
  const int stranger = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port_of(store)));
  EXPECT_EQ(connect(stranger, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return stranger;
}

TEST(Lifeline, TellsOfAProcessThatIsKilled) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Lifeline first(0, *store, kHost, kTimeout);
  Process living(1, *store), killed(258, *store);
  EXPECT_TRUE(wait_for_broken(first, 300ms).empty());
  killed.kill_it();
  EXPECT_EQ(wait_for_broken(first, kTimeout), (std::vector{258}));
  EXPECT_EQ(first.broken(), (std::vector{258}));  // until it connects again
}

// A data loader outlives the process that it was forked from.
TEST(Lifeline, AForkedChildDoesNotStandInForItsParent) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Lifeline first(0, *store, kHost, kTimeout);
  std::array<int, 2> forked{}, ends{};
  ASSERT_EQ(pipe(forked.data()), 0);
  ASSERT_EQ(pipe(ends.data()), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    const Lifeline own(1, *store, kHost, kTimeout);
    char byte = 0;
    if (fork() == 0) {
      close(ends[1]);
      const bool ok = write(forked[1], &byte, 1) == 1;
      _exit(ok && read(ends[0], &byte, 1) == 0 ? 0 : 1);  // when the test ends
    }
    while (true) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(forked[0], &byte, 1), 1);
  EXPECT_TRUE(wait_for_broken(first, 100ms).empty());
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  EXPECT_EQ(wait_for_broken(first, kTimeout), std::vector{1});
  for (const int end : {forked[0], forked[1], ends[0], ends[1]}) close(end);
}

// The connection to that port breaks, as if its process had been killed, or its link were cut.
void break_connection_to(int port) {
  for (const int socket : sockets_to(static_cast<uint16_t>(port))) shutdown(socket, SHUT_RDWR);
}

bool wait_for_connection(Lifeline& first, int rank, int attempt) {
  return poll(kTimeout, 1, [&] { return first.has_connected(rank, attempt); });
}

TEST(Lifeline, WatchesAProcessThatConnectsAgain) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Lifeline first(0, *store, kHost, kTimeout), own(2, *store, kHost, kTimeout);
  EXPECT_TRUE(wait_for_connection(first, 2, 0));
  for (int attempt = 1; attempt <= 2; ++attempt) {
    break_connection_to(port_of(*store));
    EXPECT_EQ(wait_for_broken(first, kTimeout), (std::vector{2}));
    EXPECT_FALSE(first.has_connected(2, attempt));
    own.connect(attempt, kTimeout);
    EXPECT_TRUE(wait_for_connection(first, 2, attempt));
    EXPECT_EQ(first.broken(), std::vector<int>());
  }
}

// A cut link may have broken only one end: rank 0 still has the older connection, and must not
// report its end, nor that of a connection that a rank replaces.
TEST(Lifeline, TheLatestConnectionOfARankCounts) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Lifeline first(0, *store, kHost, kTimeout);
  const int older = connect_to(*store);
  const uint32_t hello[] = {htonl(2), htonl(0)};
  send(older, hello, sizeof hello, 0);
  EXPECT_TRUE(wait_for_connection(first, 2, 0));
  Lifeline own(2, *store, kHost, kTimeout);
  for (int attempt = 1; attempt <= 2; ++attempt) {
    own.connect(attempt, kTimeout);
    EXPECT_TRUE(wait_for_connection(first, 2, attempt));
  }
  close(older);
  EXPECT_TRUE(wait_for_broken(first, 500ms).empty());
  break_connection_to(port_of(*store));
  EXPECT_EQ(wait_for_broken(first, kTimeout), (std::vector{2}));
}

// Replacing a connection while rank 0 checks it is a clean end.
TEST(Lifeline, RanksConnectAgainWhileTheyAreWatched) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Lifeline first(0, *store, kHost, kTimeout);
  constexpr int kRanks = 4, kAttempts = 50;
  std::atomic<bool> ends = false;
  {
    std::jthread watcher([&] {
      while (!ends) EXPECT_EQ(first.broken(), std::vector<int>());
    });
    std::vector<std::jthread> ranks;
    for (int rank = 1; rank <= kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        Lifeline own(rank, *store, kHost, kTimeout);
        for (int attempt = 1; attempt <= kAttempts; ++attempt) own.connect(attempt, kTimeout);
        EXPECT_TRUE(wait_for_connection(first, rank, kAttempts));
      });
    }
    ranks.clear();
    ends = true;
  }
  EXPECT_EQ(first.broken(), std::vector<int>());
}

TEST(Lifeline, DoesNotTellOfACleanEndOrOfStrangers) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Lifeline first(0, *store, kHost, kTimeout);
  {
    Lifeline own(1, *store, kHost, kTimeout);
    EXPECT_TRUE(own.broken().empty());
  }
  const int silent = connect_to(*store);
  close(silent);
  const int short_one = connect_to(*store);
  send(short_one, "ab", 2, 0);
  close(short_one);
  EXPECT_TRUE(wait_for_broken(first, 500ms).empty());
}

TEST(Lifeline, NamesTheRankThatCannotConnect) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  { const Lifeline gone(0, *store, kHost, kTimeout); }
  try {
    const Lifeline own(2, *store, kHost, kTimeout);
    FAIL() << "connected to nobody";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("rank 2 cannot connect to rank 0 at 127.0.0.1:"),
              std::string::npos)
        << error.what();
  }
}

// A store that fails when a process tells its address.
class FailingStore : public c10d::HashStore {
 public:
  using HashStore::set;
  void set(const std::string& /*key*/, const std::vector<uint8_t>& /*value*/) override {
    throw std::runtime_error("out of luck");
  }
};

TEST(Lifeline, AConstructorThatFailsClosesItsSocket) {
  const auto open_files = [] {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return std::distance(begin(files), end(files));
  };
  const auto failing = c10::make_intrusive<FailingStore>();
  const auto before = open_files();
  EXPECT_THROW(Lifeline(0, *failing, kHost, kTimeout), std::runtime_error);
  EXPECT_EQ(open_files(), before);
}

}  // namespace
}  // namespace pipewright::comms
