// One rank of pp 2 x dp 2 over Gloo that fails, or whose peer does: kill_worker KIND RANK STEP WRAP
// HOW
//
// Before its first action of KIND (`F`, `SEND_B`, ...) in step STEP, rank RANK kills itself (HOW is
// `kill`), stops as if its host hung (`stop`), sleeps forever (`sleep`), or loses its connections
// to other ranks (`cut`). KIND `-` is a second before the step, when all others wait for it, and
// KIND `+` a second before it creates its groups, which all others do then. With `cut+reset` all
// ranks reset after the cut, and go on; with `cut+kill` rank RANK kills itself a second later, when
// all others wait for it. WRAP is `replicate` or `shard`. Prints "killed MS" or "ended MS", in Unix
// milliseconds, and the error, or "weights" and a hash of the bytes of its weights after three
// steps. Exits with 1, and with 3 after a hang.
#include <ATen/Parallel.h>
#include <arpa/inet.h>
#include <sys/socket.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/gloo/gloo.h"
#include "pipewright/comms/process/error_file.h"
#include "pipewright/ir/action_kind.h"
#include "pipewright/schedules/registry.h"
#include "tests/executor/models.h"
#include "tests/executor/trainer.h"

namespace pipewright::executor {
namespace {

long long now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Connections over TCP, except those to the store.
void cut_connections(int port_of_store) {
  for (int socket = 3; socket < 256; ++socket) {
    sockaddr_in local{}, peer{};
    socklen_t size = sizeof local, peer_size = sizeof peer;
    if (getsockname(socket, reinterpret_cast<sockaddr*>(&local), &size) != 0) continue;
    if (getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) continue;
    const bool is_ours = ntohs(local.sin_port) != port_of_store;
    if (is_ours && ntohs(peer.sin_port) != port_of_store) shutdown(socket, SHUT_RDWR);
  }
}

void fail(const std::string& how, int port_of_store) {
  std::printf("%s %lld\n", how.starts_with("cut+") ? "cut" : "killed", now_ms());
  std::fflush(stdout);
  if (how == "kill") std::raise(SIGKILL);
  if (how == "stop") std::raise(SIGSTOP);
  if (how == "sleep") std::this_thread::sleep_for(std::chrono::hours(1));
  if (how.starts_with("cut")) cut_connections(port_of_store);
}

void print_weights(const std::vector<at::Tensor>& weights) {
  std::string bytes;
  for (const at::Tensor& weight : weights)
    bytes.append(static_cast<const char*>(weight.data_ptr()), weight.nbytes());
  std::printf("weights %zu\n", std::hash<std::string>()(bytes));
}

int run(const std::string& kind, int victim, int64_t victim_step, bool shards,
        const std::string& how) {
  const comms::Environment environment = comms::read_environment();
  // Only the time limit tells of a rank that has stopped.
  const bool hangs = how == "stop" || how == "sleep";
  comms::World world =
      comms::gloo_world(environment, hangs ? std::chrono::seconds(4) : std::chrono::minutes(10));
  const ir::Program program = make_program(
      *schedules::find_schedule(kind == "B" ? "Interleaved1F1B" : "InterleavedZeroBubble"),
      {2, 4, 4});
  const auto ended = [](const char* error) {
    std::printf("ended %lld\n%s\n", now_ms(), error);
    std::fflush(stdout);
  };
  int64_t step = 0;
  const bool before_step = kind == "-", before_groups = kind == "+";
  const auto fail_before_step = [&](const std::string& in_which_way) {
    if (world.rank() != victim) return;
    std::this_thread::sleep_for(std::chrono::seconds(1));
    fail(in_which_way, environment.master_port);
  };
  bool has_reset = false;
  try {
    if (before_groups) {
      // A rank that starts later would look for a store that may be gone.
      const int64_t all = world.size();
      for (int64_t here = world.store()->add("here", 1); world.rank() == victim && here < all;
           here = world.store()->add("here", 0))
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      fail_before_step(how);
    }
    Trainer trainer(program, shards ? Parallel::kShard : Parallel::kReplicate, 2, world, nullptr,
                    {.on_stuck = [&](const std::string& report) {
                      ended(report.c_str());
                      std::_Exit(3);
                    }});
    if (world.rank() == victim && !before_step && !before_groups) {
      trainer.executor->set_function(ir::kind_of_token(kind).value(),
                                     [&](const ActionContext& context) {
                                       if (step == victim_step && !has_reset)
                                         fail(how, environment.master_port);
                                       context.run_default();
                                     });
    }
    while (step < 3) {
      if (before_step && step == victim_step) fail_before_step(how);
      try {
        trainer.train(step);
        ++step;
      } catch (const StepError&) {
        if (!how.starts_with("cut+") || std::exchange(has_reset, true)) throw;
        step = trainer.executor->reset();
        if (how == "cut+kill") fail_before_step("kill");
      }
    }
    print_weights(trainer.weights);
  } catch (const HangError& error) {
    comms::write_error_file(error.what());
    ended(error.what());
    return 3;
  } catch (const StepError& error) {
    ended(error.what());
    return 1;
  } catch (const std::exception& error) {
    ended(world.failures().explain(world.failures().fail(error.what())).c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace pipewright::executor

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  at::set_num_threads(1);
  return pipewright::executor::run(argv[1], std::atoi(argv[2]), std::atoll(argv[3]),
                                   std::strcmp(argv[4], "shard") == 0, argv[5]);
}
