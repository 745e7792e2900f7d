// Tests with real processes and signals that pipewright launch leaves no process running.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

// pipewright launch -n 2 sh -c SCRIPT, in a separate process group, as a shell starts it.
pid_t start(const std::string& script) {
  const pid_t child = fork();
  if (child == 0) {
    setpgid(0, 0);
    execl("cli/pipewright", "pipewright", "launch", "-n", "2", "sh", "-c", script.c_str(), nullptr);
    _exit(127);
  }
  setpgid(child, child);
  return child;
}

int exit_code(pid_t process) {
  int status = 0;
  waitpid(process, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// The numbers that the script wrote to files in `folder`, process ids most often; waits until there
// are `wanted`.
std::vector<pid_t> numbers_in(const fs::path& folder, size_t wanted) {
  std::vector<pid_t> found;
  for (int tries = 0; tries < 1000 && found.size() < wanted; ++tries) {
    std::this_thread::sleep_for(10ms);
    found.clear();
    for (const auto& entry : fs::directory_iterator(folder)) {
      pid_t process = 0;
      if (std::ifstream(entry.path()) >> process) found.push_back(process);
    }
  }
  EXPECT_EQ(found.size(), wanted);
  return found;
}

// Whether the process ends within five seconds. A zombie that was not reaped yet counts as ended.
bool is_gone(pid_t process) {
  for (int tries = 0; tries < 500; ++tries) {
    std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
    std::string line;
    if (!std::getline(stat, line)) return true;
    if (line.find(") Z") != std::string::npos) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

fs::path new_folder(const std::string& name) {
  const fs::path folder = fs::path(std::getenv("TEST_TMPDIR")) / name;
  fs::create_directory(folder);
  return folder;
}

// Each rank starts a child process; both write their process ids.
std::string script_for(const fs::path& folder, const std::string& first) {
  return first + "; sleep 300 & echo $! >" + folder.string() + "/child$RANK; echo $$ >" +
         folder.string() + "/rank$RANK; wait";
}

TEST(LaunchTest, InterruptEndsRanksAndWhatTheyStarted) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const fs::path folder = new_folder("signal" + std::to_string(signal));
    const pid_t launcher = start(script_for(folder, ":"));
    const std::vector<pid_t> processes = numbers_in(folder, 4);
    kill(launcher, signal);
    EXPECT_EQ(exit_code(launcher), 128 + signal);
    for (const pid_t process : processes) EXPECT_TRUE(is_gone(process));
  }
}

TEST(LaunchTest, WhatWillNotEndIsKilled) {
  const fs::path folder = new_folder("stubborn");
  const pid_t launcher = start(script_for(folder, "trap '' INT TERM"));
  const std::vector<pid_t> processes = numbers_in(folder, 4);
  const auto begin = std::chrono::steady_clock::now();
  kill(launcher, SIGINT);
  EXPECT_EQ(exit_code(launcher), 128 + SIGINT);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 4s);  // they had time to end by themselves
  for (const pid_t process : processes) EXPECT_TRUE(is_gone(process));
}

TEST(LaunchTest, AKilledLauncherTakesItsRanksAlong) {
  const fs::path folder = new_folder("killed");
  const pid_t launcher = start("echo $$ >" + folder.string() + "/rank$RANK; exec sleep 300");
  const std::vector<pid_t> processes = numbers_in(folder, 2);
  kill(launcher, SIGKILL);
  EXPECT_EQ(exit_code(launcher), -SIGKILL);
  for (const pid_t process : processes) EXPECT_TRUE(is_gone(process));
}

// Whether a server can listen on the port, as the store of rank 0 does: with SO_REUSEADDR, on all
// addresses. Without it, as a program does that was given no port of its own.
bool can_listen(int port, bool reuse) {
  const int server = socket(AF_INET6, SOCK_STREAM, 0);
  const int on = reuse ? 1 : 0;
  setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(static_cast<uint16_t>(port));
  const bool listens = bind(server, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                       listen(server, 1) == 0;
  close(server);
  return listens;
}

TEST(LaunchTest, OnlyTheRanksCanTakeTheirPort) {
  const fs::path folder = new_folder("port");
  const pid_t launcher = start("echo $MASTER_PORT >" + folder.string() + "/$RANK; exec sleep 300");
  const std::vector<int> ports = numbers_in(folder, 2);
  ASSERT_EQ(ports.size(), 2u);
  EXPECT_EQ(ports[0], ports[1]);
  EXPECT_FALSE(can_listen(ports[0], false));
  EXPECT_TRUE(can_listen(ports[0], true));
  kill(launcher, SIGTERM);
  exit_code(launcher);
  EXPECT_TRUE(can_listen(ports[0], false));
}

TEST(LaunchTest, AFailingRankEndsTheOthers) {
  const fs::path folder = new_folder("failing");
  const std::string go = folder.string() + "-go";
  const pid_t launcher = start(script_for(
      folder, "test $RANK = 0 || { while ! test -e " + go + "; do sleep 0.01; done; exit 3; }"));
  const std::vector<pid_t> processes = numbers_in(folder, 2);  // rank 0 and its child
  std::ofstream(go) << "go";
  EXPECT_EQ(exit_code(launcher), 3);
  for (const pid_t process : processes) EXPECT_TRUE(is_gone(process));
}

}  // namespace
