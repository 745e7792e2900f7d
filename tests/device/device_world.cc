#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/nccl/nccl_settings.h"
#include "tests/device/backend.h"
#include "tests/device/machine.h"
#include "tests/device/store.h"

namespace pipewright::testdevice {
namespace {

constexpr std::chrono::milliseconds kWatchdogPeriod{20};

// What the worlds of one call share: a thread that checks the progress of all members, and the
// communicators that not all members have joined yet.
class Watchdog {
 public:
  explicit Watchdog(std::optional<std::chrono::milliseconds> ends_process_after)
      : ends_process_after_(ends_process_after), thread_([this] { run(); }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Finds or creates the communicator of a group; the last member to come removes the entry.
  std::shared_ptr<Communicator> join(const std::string& name, const std::vector<int>& devices) {
    const std::lock_guard lock(mutex_);
    auto& [communicator, joined] = groups_[name];
    if (!communicator) communicator = std::make_shared<Communicator>(name, devices);
    const std::shared_ptr<Communicator> found = communicator;
    if (++joined == devices.size()) groups_.erase(name);
    return found;
  }
  void watch(const std::shared_ptr<Member>& member) {
    const std::lock_guard lock(mutex_);
    std::erase_if(members_, [](const auto& known) { return known.expired(); });
    members_.push_back(member);
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kWatchdogPeriod, [this] { return ends_; })) {
      const std::vector<std::weak_ptr<Member>> members = members_;
      lock.unlock();
      const auto now = std::chrono::steady_clock::now();
      for (const std::weak_ptr<Member>& weak : members) {
        const auto member = weak.lock();
        if (!member) continue;
        if (ends_process_after_ && error_.empty()) {
          error_ = member->asynchronous_error();
          ends_process_at_ = now + *ends_process_after_;
        }
        member->check_progress(now);
      }
      if (!error_.empty() && now >= ends_process_at_) end_process();
      lock.lock();
    }
  }
  // Nothing but the error counts here, whatever has become of its communicator.
  void end_process() {
    const Lock of_machine(machine().mutex);
    machine().errors.push_back(std::exchange(error_, ""));
    ends_process_after_.reset();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::map<std::string, std::pair<std::shared_ptr<Communicator>, size_t>> groups_;
  std::vector<std::weak_ptr<Member>> members_;
  // Only used by the thread.
  std::optional<std::chrono::milliseconds> ends_process_after_;
  std::string error_;  // the first one
  std::chrono::steady_clock::time_point ends_process_at_;
  std::thread thread_;
};

}  // namespace

std::vector<comms::World> device_worlds(int size, const BackendOptions& options) {
  const char* const handling = std::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING");
  const auto ends_process_after =
      handling && std::string_view(handling) == "0" ? std::nullopt : options.ends_process_after;
  const auto shared = std::make_shared<Watchdog>(ends_process_after);
  const comms::MakeBackend make = [=](const std::string& name, int rank,
                                      int group_size) -> comms::BackendPtr {
    const auto member = std::make_shared<Member>(shared->join(name, comms::members_of(name)), rank,
                                                 options.timeout);
    shared->watch(member);
    return c10::make_intrusive<DeviceBackend>(member, rank, group_size, options);
  };
  const comms::StorePtr store = c10::make_intrusive<DeviceStore>();
  const auto watcher = std::make_shared<comms::Watcher>();
  std::vector<comms::World> worlds;
  for (int rank = 0; rank < size; ++rank)
    worlds.emplace_back(rank, size, store, make, options.timeout, watcher);
  return worlds;
}

}  // namespace pipewright::testdevice
