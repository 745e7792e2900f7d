#include "tests/device/communicator.h"

#include <stdexcept>

#include "tests/device/current.h"
#include "tests/device/device.h"
#include "tests/device/host_alias.h"
#include "tests/device/memory.h"
#include "tests/device/scheduler.h"

namespace pipewright::testdevice {

std::shared_ptr<Meeting> Communicator::match(int rank, const Request& request) {
  Queue& queue = queues_[request.queue];
  const size_t number = queue.issued[rank]++;
  const size_t place = number - queue.completed;
  if (place == queue.pairings.size()) {
    auto meeting = std::make_shared<Meeting>();
    meeting->name = name_ + ": " + request.what;
    meeting->expected = static_cast<size_t>(request.parties);
    queue.pairings.push_back({meeting, request.what, request.description, rank, {}});
  }
  Pairing& pairing = queue.pairings.at(place);
  if (pairing.what != request.what) {
    const std::string message =
        "communicator " + name_ + ", operation " + std::to_string(number) + " of `" +
        request.queue + "`: rank " + std::to_string(pairing.first_rank) + " issued " +
        pairing.description + ", rank " + std::to_string(rank) + " issued " + request.description;
    machine().errors.push_back(message);
    throw std::runtime_error(message);
  }
  Part part;
  HostAliases aliases;
  for (const at::Tensor& tensor : request.reads) part.inputs.push_back(aliases(tensor));
  for (const at::Tensor& tensor : request.writes) part.outputs.push_back(aliases(tensor));
  pairing.parts[rank] = std::move(part);
  const std::shared_ptr<Meeting> meeting = pairing.meeting;
  if (static_cast<int>(pairing.parts.size()) == request.parties) {
    meeting->body = [parts = std::move(pairing.parts), body = request.body]() mutable {
      body(parts);
    };
    queue.pairings.pop_front();  // every rank issues in order, so it is the first
    ++queue.completed;
  }
  return meeting;
}

Member::Member(std::shared_ptr<Communicator> communicator, int rank,
               std::chrono::milliseconds timeout)
    : communicator_(std::move(communicator)),
      rank_(rank),
      timeout_(timeout),
      stream_(new_stream(communicator_->devices().at(static_cast<size_t>(rank)))),
      state_([&]() -> Stream& {
        const Lock lock(machine().mutex);
        return stream_of(stream_);
      }()) {}

Member::~Member() {
  const Lock lock(machine().mutex);
  if (state_.run == machine().run && state_.done < state_.issued) abort_because("was destroyed");
}

size_t Member::issue(std::vector<Request> requests) {
  const Lock lock(machine().mutex);
  if (!failure_.empty()) {
    throw std::runtime_error("communicator " + communicator_->name() + " on rank " +
                             std::to_string(rank_) + ": " + failure_);
  }
  Operation operation;
  std::vector<std::shared_ptr<Meeting>> meetings;
  for (const Request& request : requests) {
    operation.name += (operation.name.empty() ? "" : ", ") + request.description;
    meetings.push_back(communicator_->match(rank_, request));
  }
  operation.meetings = meetings;
  wait_event(state_, record_event(stream_of(current_stream(device()))));
  const std::string description = operation.name;
  const size_t position = testdevice::issue(state_, std::move(operation));
  for (size_t i = 0; i < requests.size(); ++i) {
    HostAliases aliases;
    Tensors garbage;
    for (const at::Tensor& tensor : requests[i].writes) garbage.push_back(aliases(tensor));
    meetings[i]->parties.push_back(
        {&state_, position, uses_of(requests[i].reads, requests[i].writes), [garbage] {
           for (const at::Tensor& tensor : garbage)
             poison(tensor.mutable_data_ptr(), tensor.nbytes());
         }});
  }
  issued_.push_back({position, std::chrono::steady_clock::now() + timeout_, description});
  while (state_.done >= issued_.front().position && issued_.size() > 1) issued_.pop_front();
  drift(device());
  return position;
}

void Member::abort() {
  Lock lock(machine().mutex);
  abort_because("was aborted");
  await_idle(lock, device());
}

void Member::abort_because(const std::string& cause) {
  if (failure_.empty()) failure_ = cause;
  communicator_->set_broken();
  for (Operation& operation : state_.queue) {
    for (const auto& meeting : operation.meetings) {
      for (Meeting::Party& party : meeting->parties)
        if (party.stream == &state_) party.aborted = true;
    }
  }
  announce();
}

void Member::shutdown() {
  Lock lock(machine().mutex);
  try {
    run_until(lock, state_, state_.issued);
  } catch (const std::runtime_error&) {  // a deadlock
    abort_because("was shut down before " + issued_.back().description + " could complete");
  }
  if (failure_.empty()) failure_ = "was shut down";
}

std::string Member::failure() const {
  const Lock lock(machine().mutex);
  return failure_;
}

std::string Member::asynchronous_error() const {
  const Lock lock(machine().mutex);
  const bool waits = failure_.empty() && state_.run == machine().run && state_.done < state_.issued;
  if (!waits || !communicator_->is_broken()) return "";
  return "watchdog of communicator " + communicator_->name() +
         ": ends the process, because a peer of rank " + std::to_string(rank_) + " has aborted";
}

void Member::check_progress(std::chrono::steady_clock::time_point now) {
  const Lock lock(machine().mutex);
  if (!failure_.empty() || state_.run != machine().run) return;
  while (!issued_.empty() && issued_.front().deadline < now) {
    // A device makes progress even if no host waits for it.
    if (!try_to_reach(state_, issued_.front().position)) {
      const std::string cause = "rank " + std::to_string(rank_) + ": " +
                                issued_.front().description + " did not complete within " +
                                std::to_string(timeout_.count()) + " ms";
      machine().errors.push_back("watchdog of communicator " + communicator_->name() + ": " +
                                 cause);
      return abort_because(cause);
    }
    issued_.pop_front();
  }
}

}  // namespace pipewright::testdevice
