#ifndef PIPEWRIGHT_EXECUTOR_HANG_WATCHDOG_H_
#define PIPEWRIGHT_EXECUTOR_HANG_WATCHDOG_H_

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/comms/group.h"
#include "pipewright/executor/hang/device_progress.h"
#include "pipewright/executor/hang/flight_dump.h"
#include "pipewright/executor/hang/hang.h"
#include "pipewright/executor/hang/rank_report.h"
#include "pipewright/ir/tables.h"

namespace pipewright::executor {

// Watches the steps of one executor, and reports on them while its thread is stuck. The executor's
// thread says where it is; the watcher's thread (comms/failure/failure_domain.h) reads that, and
// keeps this object as long as it needs it.
//
// With the variable TORCH_FR_DUMP_TEMP_FILE, PyTorch's own, dump() writes a file of that name
// followed by the world rank, which fr_trace reads (flight_dump.h).
class Watchdog final : public comms::StepObserver {
 public:
  struct Options {
    int world_rank = 0;
    int rank = 0;            // of the program
    std::vector<int> ranks;  // the world rank of each program rank
    std::chrono::milliseconds timeout{};
    bool is_unverified = false;
    std::function<void(const std::string& report)> on_stuck = {};
    at::Device device = at::kCPU;
  };

  Watchdog(const ir::Program& program, std::string digest, std::shared_ptr<comms::Groups> groups,
           Options options);

  // ---- the executor's thread

  Progress& progress() { return progress_; }
  // The program that evaluation runs, once it is known. Called between steps.
  void set_evaluation(const ir::Program& program);
  void begin(int64_t step, bool evaluates);
  // Applies to later steps.
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ms_ = timeout.count(); }
  // What has become of a SEND or RECV of this rank.
  void transfer(ir::ActionPart part, Progress::Transfer state);
  // Waits for this SEND or RECV; it is done.
  void wait_for(ir::ActionPart part);
  void done(ir::ActionPart part);
  // The action at this index of the row, a compute, has been called.
  void computed(int action);
  // All actions have been called, and everything has been waited for.
  void finish();
  // All groups have been connected again after a failure.
  void reset();
  // Whether a step runs, and has made no progress for so long.
  bool is_late(std::chrono::milliseconds limit) const;

  // ---- any thread

  // Where the device is, such as "step 3, action 5 `2F2`", if it has not ended this step; empty if
  // it has, or on a CPU.
  std::string under_way(int64_t step) const;

  std::string stalled() override;
  std::string report() override;
  std::string verdict(const Reports& reports, const Who& who) override;
  void dump() override;
  void stuck(const std::string& report) override;

 private:
  // By kind of SEND or RECV: an index of a row; -1 if the row lacks it.
  using Indices = std::array<int, 4>;
  // A program, and where this rank's SENDs and RECVs are in its row.
  struct Plan {
    ir::Program program;
    ir::StageMicrobatchTable<Indices> transfers;
  };
  int index_of(ir::ActionPart part) const;
  std::shared_ptr<const Plan> make_plan(const ir::Program& program) const;
  std::shared_ptr<const Plan> plan(bool evaluates) const;
  // Where this rank is: on its device if that is behind the host.
  Progress::Moment now() const;
  RankReport own_report(const Progress::Moment& now) const;
  std::string describe_own() const;
  FlightDump flight_dump() const;

  const std::string digest_;
  const std::shared_ptr<comms::Groups> groups_;
  const Options options_;
  std::atomic<int64_t> timeout_ms_;
  const std::shared_ptr<const Plan> steps_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Plan> evaluation_;  // null before the first evaluation
  const Plan* running_;                     // one of the two; for the executor's thread
  Progress progress_;
  std::optional<DeviceProgress> device_;  // nullopt on a CPU
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_HANG_WATCHDOG_H_
