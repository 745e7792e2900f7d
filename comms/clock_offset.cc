#include "pipewright/comms/clock_offset.h"

#include <bit>
#include <cstdint>
#include <fstream>
#include <limits>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/process/steady_seconds.h"

namespace pipewright::comms {
namespace {

constexpr int kQuestions = 8;

std::string to_text(double number) { return std::to_string(std::bit_cast<uint64_t>(number)); }
double from_text(const std::string& text) { return std::bit_cast<double>(std::stoull(text)); }

}  // namespace

NamedClock steady_clock_of_machine() {
  std::string name;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), name);
  return {name, steady_seconds};
}

ClockOffset clock_offset(World& world, const std::string& key, int rank, int size,
                         const NamedClock& clock, std::chrono::milliseconds timeout) {
  const StorePtr& store = world.store();
  const auto wait_for = [&](const std::string& name, int other) {
    const std::string value = world.failures().wait_for(
        name, timeout,
        "rank " + std::to_string(other) + " of " + key + " did not compare its clock within " +
            std::to_string(timeout.count()) + " ms");
    store->deleteKey(name);
    return value;
  };
  const auto question = [&](int asker, int number) {
    return key + "/question/" + std::to_string(asker) + "/" + std::to_string(number);
  };
  const auto answer = [&](int asker, int number) {
    return key + "/answer/" + std::to_string(asker) + "/" + std::to_string(number);
  };
  if (rank == 0) {
    for (int asker = 1; asker < size; ++asker) {
      // The first question is the name of the asker's clock, the first answer how many follow.
      const bool same = wait_for(question(asker, 0), asker) == clock.name;
      store->set(answer(asker, 0), std::to_string(same ? 0 : kQuestions));
      for (int number = 1; !same && number <= kQuestions; ++number) {
        wait_for(question(asker, number), asker);
        store->set(answer(asker, number), to_text(clock.now()));
      }
    }
    return {.at = clock.now()};
  }
  store->set(question(rank, 0), clock.name);
  const int questions = std::stoi(wait_for(answer(rank, 0), 0));
  ClockOffset best{0, questions == 0 ? 0 : std::numeric_limits<double>::infinity(), clock.now()};
  for (int number = 1; number <= questions; ++number) {
    const double asked = clock.now();
    store->set(question(rank, number), "?");
    const double theirs = from_text(wait_for(answer(rank, number), 0));
    const double answered = clock.now();
    const double middle = (asked + answered) / 2;
    const double error = (answered - asked) / 2;
    if (error < best.error) best = {theirs - middle, error, middle};
  }
  return best;
}

double to_other_clock(double time, const ClockOffset& start, const ClockOffset& end) {
  const double share = (time - start.at) / (end.at - start.at);
  return time + start.seconds + share * (end.seconds - start.seconds);
}

}  // namespace pipewright::comms
