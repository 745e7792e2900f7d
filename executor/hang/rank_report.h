#ifndef PIPEWRIGHT_EXECUTOR_HANG_RANK_REPORT_H_
#define PIPEWRIGHT_EXECUTOR_HANG_RANK_REPORT_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/ir/schedule.h"

namespace pipewright::executor {

// What a rank is doing, in the order of a step.
enum class Phase : uint8_t {
  kIdle,      // between two steps
  kDrains,    // waits until its device has ended the last step
  kConfirms,  // waits until all ranks have completed the last step
  kBegins,    // waits until all ranks begin the step
  kRuns,      // runs an action
  kEnds,      // has run all actions, and waits for what is in flight
};

// How far one rank has come. The thread that runs the steps writes it, in a few nanoseconds per
// action; any thread may read it, for example because the first one hangs. Values that are read
// while the rank makes progress may be of two moments. Torch-free.
class Progress {
 public:
  // `num_actions`: of this rank's row, idle slots included.
  explicit Progress(size_t num_actions) : transfers_(num_actions), starts_(num_actions) {}

  // ---- the thread that runs the steps

  void idle(int64_t step) { enter(Phase::kIdle, step); }
  void drain() { enter(Phase::kDrains, step()); }
  void confirm() { enter(Phase::kConfirms, step()); }
  void begin(int64_t step, bool evaluates);
  // Runs the action at this index of the row.
  void run(int action);
  // What has become of a SEND or RECV.
  enum class Transfer : uint8_t { kNotCalled, kQueued, kPosted, kDone };
  void transfer(int action, Transfer state) { set(transfers_[static_cast<size_t>(action)], state); }
  // Waits for a SEND or RECV of this rank, at this index of its row, or no longer for any.
  void wait_for(int action);
  void end();

  // ---- any thread

  Phase phase() const { return get(phase_); }
  int64_t step() const { return get(step_); }
  bool evaluates() const { return get(evaluates_); }
  // -1: none.
  int action() const { return get(action_); }
  int waits_for() const { return get(waits_for_); }
  Transfer transfer(int action) const { return get(transfers_[static_cast<size_t>(action)]); }
  // Since the rank has last made progress.
  double seconds() const;
  // All of it. What is `begun` or later in this list is of the last step of which the rank has run
  // an action, which is an evaluation if `ran_evaluation`.
  struct Moment {
    Phase phase;
    int64_t step;
    bool evaluates, ran_evaluation;
    int action, waits_for;
    double seconds, begun;
    int passed;  // actions of the row that the rank has passed: it has called their transfers
    std::vector<Transfer> transfers;  // by action
    // When the actions of the row started, and all of them had run, by steady_seconds(); infinity
    // for what has not happened.
    std::vector<double> starts;
    double ended;
  };
  Moment now() const;
  // When the step began on all ranks, by steady_seconds().
  double begun() const { return get(begun_); }

 private:
  template <typename Value>
  static void set(std::atomic<Value>& to, Value value) {
    to.store(value, std::memory_order_release);
  }
  template <typename Value>
  static Value get(const std::atomic<Value>& from) {
    return from.load(std::memory_order_acquire);
  }
  void enter(Phase phase, int64_t step);
  void touch();
  void forget_last_step();

  std::atomic<Phase> phase_ = Phase::kIdle;
  std::atomic<int64_t> step_ = 0;
  std::atomic<bool> evaluates_ = false, ran_evaluation_ = false;
  std::atomic<int> action_ = -1;
  std::atomic<int> waits_for_ = -1;
  std::atomic<double> since_ = 0, begun_ = 0;
  std::vector<std::atomic<Transfer>> transfers_;
  std::vector<std::atomic<double>> starts_;
  std::atomic<double> ended_ = 0;
};

// Where one rank is when a step hangs.
struct RankReport {
  // A SEND or RECV of this step, or between two steps of the last one, that the rank has passed,
  // and yet not posted.
  struct Unposted {
    int action;      // index in the rank's row
    bool is_queued;  // waits in its queue; otherwise the rank has left it out
  };
  // A process group with collectives.
  struct Group {
    std::string name;  // the same on all members
    std::vector<int> members;
    int64_t issued = 0;     // collectives that this rank has called
    int64_t joined = 0;     // of those, how many its device has come to; on a CPU all
    int64_t waits_for = 0;  // the number, from 1, of the one it waits for; 0: none
    std::string op;         // of that one
  };

  std::string program;     // a digest
  int rank = 0;            // of the program
  std::vector<int> ranks;  // the world rank of each program rank
  Phase phase = Phase::kIdle;
  int64_t step = 0;
  bool evaluates = false;
  int action = -1;     // index in the row; -1: none
  int waits_for = -1;  // a SEND or RECV of this rank, likewise
  double seconds = 0;  // since the rank has last made progress
  std::vector<Unposted> unposted;
  std::vector<Group> groups;
};

std::string to_text(const RankReport& report);
// The inverse; nullopt for other text.
std::optional<RankReport> parse_report(const std::string& text);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_HANG_RANK_REPORT_H_
