#include "pipewright/executor/progress.h"

#include "pipewright/comms/steady_seconds.h"

namespace pipewright::executor {

void Progress::begin(int64_t step, bool evaluates) {
  for (auto& transfer : transfers_) transfer.store(Transfer::kNotCalled, std::memory_order_relaxed);
  set(evaluates_, evaluates);
  set(begun_, comms::steady_seconds());
  enter(Phase::kBegins, step);
}

void Progress::run(int action) {
  set(action_, action);
  set(phase_, Phase::kRuns);
  touch();
}

void Progress::wait_for(int action) {
  set(waits_for_, action);
  touch();
}

double Progress::seconds() const { return comms::steady_seconds() - get(since_); }

void Progress::enter(Phase phase, int64_t step) {
  set(action_, -1);
  set(waits_for_, -1);
  set(step_, step);
  set(phase_, phase);
  touch();
}

void Progress::touch() { set(since_, comms::steady_seconds()); }

}  // namespace pipewright::executor
