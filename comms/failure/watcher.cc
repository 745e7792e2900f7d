// The thread that watches the failure domains of a process, ten times a second.
#include <chrono>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/process/error_file.h"

namespace pipewright::comms {
namespace {

constexpr std::chrono::milliseconds kTick{100};

}  // namespace

Watcher::~Watcher() {
  {
    const std::lock_guard lock(wake_mutex_);
    stop_ = true;
  }
  woken_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watcher::add(FailureDomain* domain) {
  const std::lock_guard lock(domains_mutex_);
  domains_.push_back(domain);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
}

void Watcher::remove(FailureDomain* domain) {
  const std::lock_guard lock(domains_mutex_);
  std::erase(domains_, domain);
}

void Watcher::wake() {
  {
    const std::lock_guard lock(wake_mutex_);
    wake_ = true;
  }
  woken_.notify_all();
}

void Watcher::run() {
  std::unique_lock lock(wake_mutex_);
  while (!stop_) {
    woken_.wait_for(lock, kTick, [this] { return wake_ || stop_; });
    wake_ = false;
    lock.unlock();
    tick();
    lock.lock();
  }
}

void Watcher::tick() {
  const std::lock_guard lock(domains_mutex_);
  if (const int requested = dumps_requested(); requested != dumps_requested_) {
    dumps_requested_ = requested;
    for (FailureDomain* domain : domains_) domain->dump();
  }
  for (FailureDomain* domain : domains_) {
    const std::optional<std::string> hang = domain->tick();
    if (!hang || *hang == printed_) continue;  // another rank of this process had the same
    printed_ = *hang;
    std::fprintf(stderr, "hang: %s\n", hang->c_str());
    write_error_file(*hang);
  }
}

}  // namespace pipewright::comms
