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

Progress::Moment Progress::now() const {
  Moment moment{phase(), step(), evaluates(), action(), waits_for(), seconds(), begun(), 0, {}};
  for (const auto& one : transfers_) moment.transfers.push_back(get(one));
  if (moment.begun > 0 && moment.phase != Phase::kBegins) {
    moment.passed =
        moment.phase == Phase::kRuns ? moment.action : static_cast<int>(moment.transfers.size());
  }
  return moment;
}

void Progress::enter(Phase phase, int64_t step) {
  set(action_, -1);
  set(waits_for_, -1);
  set(step_, step);
  set(phase_, phase);
  touch();
}

void Progress::touch() { set(since_, comms::steady_seconds()); }

}  // namespace pipewright::executor
