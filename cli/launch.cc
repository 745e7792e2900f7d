#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "pipewright/checkpoint/durable_file.h"
#include "pipewright/cli/command_table.h"

namespace pipewright::cli {
namespace {

using checkpoint::Descriptor;
using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kGrace{5};

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// A free TCP port of this machine. While this object exists, other programs do not get it: the
// kernel gives a port that is bound to nobody who asks for any, and refuses it to those who ask for
// this one, except with SO_REUSEADDR. c10d::TCPStore listens with that.
class Port {
 public:
  Port() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t size = sizeof address;
    if (socket_.get() < 0 ||
        setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
      fail("cannot find a free port");
    number_ = ntohs(address.sin_port);
  }

  int number() const { return number_; }

 private:
  Descriptor socket_;
  int number_ = 0;
};

// One output stream of a rank, forwarded line by line.
struct Output {
  Descriptor pipe{-1};
  std::string line;  // the current line, still incomplete
  bool is_error;     // stderr, not stdout
};

struct Rank {
  pid_t process = -1;
  bool running = false;
  std::array<Output, 2> outputs;
};

// Runs a program as ranks on this machine, one process per rank, with torchrun's environment
// variables (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT;
// OMP_NUM_THREADS=1 unless it is set). Forwards their output line by line, prefixed with the rank,
// stdout to stdout and stderr to stderr. Their stdin is empty.
//
// If a rank fails, prints an error that names it, sends SIGTERM to the others, and returns its exit
// code, or 128 + N if signal N ended it. Forwards SIGINT, SIGTERM and SIGHUP to all ranks and then
// returns 128 + N. Ranks that still run five seconds after that are killed. At the end, processes
// that a rank started and left in its process group are killed too. If this process itself is
// killed, so are the ranks. Returns 0 if all ranks exit with 0.
//
// Only for a process without other threads or children.
class Launcher {
 public:
  // Rank 0 listens on `master_port`; 0: a free port, which no other program gets meanwhile.
  // `program` is the program and its arguments.
  Launcher(int num_ranks, int master_port, std::vector<std::string> program, Console& console)
      : master_port_(master_port),
        program_(std::move(program)),
        console_(console),
        ranks_(static_cast<size_t>(num_ranks)),
        label_width_(std::to_string(num_ranks - 1).size()) {}
  // Kills and reaps all ranks that still run, on exceptions too.
  ~Launcher() {
    signal_all(SIGKILL);
    for (Rank& rank : ranks_) {
      if (rank.running) waitpid(rank.process, nullptr, 0);
    }
    sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  int run() {
    // From here on these signals are read from a descriptor.
    sigset_t signals;
    sigemptyset(&signals);
    for (const int one : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, one);
    sigprocmask(SIG_BLOCK, &signals, &old_mask_);
    signals_ = Descriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (signals_.get() < 0) fail("cannot wait for signals");
    std::optional<Port> own;
    if (master_port_ == 0) own.emplace();
    const int port = own ? own->number() : master_port_;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) start(rank, port);
    while (any_running()) wait();
    // All ranks have exited; kill the processes that they left in their groups, as they could still
    // write to the pipes.
    signal_all(SIGKILL);
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (Output& output : ranks_[rank].outputs) {
        read_from(rank, &output);
        flush_line(rank, &output);
      }
    }
    return exit_code_;
  }

 private:
  void start(size_t rank, int port) {
    std::array<std::array<int, 2>, 3> pipes{};  // stdout, stderr, errno of a failed exec
    for (auto& one : pipes) {
      if (pipe2(one.data(), O_CLOEXEC) != 0) fail("cannot make a pipe");
    }
    // Built before the fork: after it, the child may only call async-signal-safe functions.
    std::vector<std::string> variables = environment(rank, port);
    std::vector<char*> environment_words, words;
    for (std::string& variable : variables) environment_words.push_back(variable.data());
    environment_words.push_back(nullptr);
    for (std::string& word : program_) words.push_back(word.data());
    words.push_back(nullptr);
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0) fail("cannot start a process");
    if (child == 0) {
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);
      sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
      const int nothing = open("/dev/null", O_RDONLY);
      dup2(nothing, STDIN_FILENO);
      dup2(pipes[0][1], STDOUT_FILENO);
      dup2(pipes[1][1], STDERR_FILENO);
      execvpe(words[0], words.data(), environment_words.data());
      const int why = errno;
      [[maybe_unused]] const ssize_t told = write(pipes[2][1], &why, sizeof why);
      _exit(127);
    }
    setpgid(child, child);
    for (const auto& one : pipes) close(one[1]);
    Descriptor reason(pipes[2][0]);
    Rank& started = ranks_[rank];
    started.process = child;
    started.running = true;
    for (size_t which = 0; which < 2; ++which) {
      fcntl(pipes[which][0], F_SETFL, O_NONBLOCK);
      started.outputs[which] = {Descriptor(pipes[which][0]), "", which == 1};
    }
    int why = 0;
    if (read(reason.get(), &why, sizeof why) == sizeof why) {
      errno = why;
      fail(("cannot run " + program_[0]).c_str());
    }
  }

  std::vector<std::string> environment(size_t rank, int port) const {
    const std::vector<std::pair<std::string, std::string>> own = {
        {"RANK", std::to_string(rank)},
        {"LOCAL_RANK", std::to_string(rank)},
        {"WORLD_SIZE", std::to_string(ranks_.size())},
        {"LOCAL_WORLD_SIZE", std::to_string(ranks_.size())},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", std::to_string(port)}};
    std::vector<std::string> variables;
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string_view text = *variable;
      bool is_own = false;
      for (const auto& [name, value] : own) is_own = is_own || text.starts_with(name + "=");
      if (!is_own) variables.emplace_back(text);
    }
    for (const auto& [name, value] : own) variables.push_back(name + "=" + value);
    // torchrun sets it too: ranks share the cores.
    if (std::getenv("OMP_NUM_THREADS") == nullptr) variables.emplace_back("OMP_NUM_THREADS=1");
    return variables;
  }

  bool any_running() const {
    for (const Rank& rank : ranks_) {
      if (rank.running) return true;
    }
    return false;
  }

  // Sends a signal to the ranks and to the processes in their groups.
  void signal_all(int signal) {
    for (const Rank& rank : ranks_) {
      if (rank.process > 0) kill(-rank.process, signal);
    }
  }

  // Waits for output, the exit of a rank, a signal or the deadline, and handles it.
  void wait() {
    std::vector<pollfd> descriptors = {{signals_.get(), POLLIN, 0}};
    std::vector<std::pair<size_t, Output*>> behind;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (Output& output : ranks_[rank].outputs) {
        if (output.pipe.get() < 0) continue;
        descriptors.push_back({output.pipe.get(), POLLIN, 0});
        behind.emplace_back(rank, &output);
      }
    }
    int timeout = -1;
    if (kill_at_) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(*kill_at_ - Clock::now()).count();
      timeout = static_cast<int>(std::max<long>(0, left));
    }
    if (poll(descriptors.data(), descriptors.size(), timeout) < 0 && errno != EINTR)
      fail("cannot wait for the ranks");
    for (size_t index = 0; index < behind.size(); ++index) {
      if (descriptors[index + 1].revents != 0) read_from(behind[index].first, behind[index].second);
    }
    console_.out.flush();
    if (kill_at_ && Clock::now() >= *kill_at_) {
      signal_all(SIGKILL);
      kill_at_.reset();
    }
    take_signals();
    reap();
  }

  void take_signals() {
    signalfd_siginfo info{};
    while (read(signals_.get(), &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) continue;
      end_all(signal);
      if (exit_code_ == 0) exit_code_ = 128 + signal;
    }
  }

  void reap() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      int status = 0;
      if (!ranks_[rank].running || waitpid(ranks_[rank].process, &status, WNOHANG) <= 0) continue;
      ranks_[rank].running = false;
      for (Output& output : ranks_[rank].outputs) read_from(rank, &output);
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      if (code == 0 || exit_code_ != 0) continue;
      exit_code_ = code;
      print_trouble(
          WIFEXITED(status)
              ? fmt::format("rank {} failed with exit code {}; terminating the others", rank, code)
              : fmt::format("rank {} was ended by signal {} ({}); terminating the others", rank,
                            WTERMSIG(status), strsignal(WTERMSIG(status))),
          console_);
      end_all(SIGTERM);
    }
  }

  void end_all(int signal) {
    signal_all(signal);
    if (!kill_at_) kill_at_ = Clock::now() + kGrace;
  }

  void read_from(size_t rank, Output* output) {
    char chunk[4096];
    while (output->pipe.get() >= 0) {
      const ssize_t got = read(output->pipe.get(), chunk, sizeof chunk);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) {
        output->pipe.close();
        flush_line(rank, output);
        return;
      }
      for (ssize_t index = 0; index < got; ++index) {
        output->line += chunk[index];
        if (chunk[index] == '\n') flush_line(rank, output);
      }
    }
  }

  void flush_line(size_t rank, Output* output) {
    if (output->line.empty()) return;
    if (output->line.back() != '\n') output->line += '\n';
    std::ostream& out = output->is_error ? console_.err : console_.out;
    const bool color = output->is_error ? console_.err_color : console_.out_color;
    const std::string label = fmt::format("[{:>{}}]", rank, label_width_);
    // Six colours in turn.
    out << (color ? fmt::format("\x1B[{}m{}\x1B[0m", 31 + rank % 6, label) : label) << ' '
        << output->line;
    output->line.clear();
  }

  const int master_port_;
  std::vector<std::string> program_;
  Console& console_;
  std::vector<Rank> ranks_;
  size_t label_width_;
  Descriptor signals_{-1};
  sigset_t old_mask_{};
  int exit_code_ = 0;
  std::optional<Clock::time_point> kill_at_;
};

}  // namespace

int run_launch(const Invocation& invocation, Console& console) {
  try {
    return Launcher(invocation.number("--num-ranks").value_or(1),
                    invocation.number("--master-port").value_or(0), invocation.arguments, console)
        .run();
  } catch (const std::system_error& error) {
    print_trouble(error.what(), console);
    return kExitTrouble;
  }
}

}  // namespace pipewright::cli
