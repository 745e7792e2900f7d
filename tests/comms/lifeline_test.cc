// Connections of processes to rank 0: an end without goodbye is told, and nothing else.
#include "pipewright/comms/lifeline.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

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

int connect_to(const std::string& place) {
  const int stranger = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(place.substr(place.find(' ')))));
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
  EXPECT_TRUE(wait_for_broken(first, 300ms).empty());  // once
}

TEST(Lifeline, DoesNotTellOfACleanEndOrOfStrangers) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Lifeline first(0, *store, kHost, kTimeout);
  {
    Lifeline own(1, *store, kHost, kTimeout);
    EXPECT_TRUE(own.broken().empty());
  }
  const int silent = connect_to(store->get_to_str("lifeline"));
  close(silent);
  const int short_one = connect_to(store->get_to_str("lifeline"));
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
