#ifndef PIPEWRIGHT_COMMS_TORCH_GAPS_ABORTABLE_GLOO_H_
#define PIPEWRIGHT_COMMS_TORCH_GAPS_ABORTABLE_GLOO_H_

#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO 1
#endif

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace pipewright::comms {

// The waits for one Gloo group's operations, all of which abort() ends.
//
// Closing a group's connections is not enough. When a connection breaks, Gloo tells whoever waits
// for a message that has not begun, but forgets the one that is being sent or received
// (tcp::Pair::signalException). Whoever waits for that one waits until its time limit. Thread-safe.
class AbortableWaits : public std::enable_shared_from_this<AbortableWaits> {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // Return a Work that is `work`, except that its wait() throws std::runtime_error once abort() has
  // been called, unless `work` has ended by then. A SEND's or RECV's own abort() must end its
  // wait(), as for torch's; a collective must have a future, and an abort() also ends that of what
  // is returned, with the same error.
  WorkPtr transfer(WorkPtr work);
  WorkPtr collective(WorkPtr work);

  void abort();

 private:
  class Transfer;
  class Collective;
  class Ending;

  std::mutex mutex_;
  std::condition_variable changed_;  // a collective has ended, or aborted_
  bool aborted_ = false;
  std::multiset<c10d::Work*> awaited_;  // SENDs and RECVs
  std::set<std::shared_ptr<Ending>> endings_;
};

// torch's Gloo with the abort() that it lacks: it ends every wait for an operation of this group,
// and closes the group's connections, so that what peers wait for from this rank ends too.
//
// The destructor waits for torch's threads, of which one may be stuck until its time limit after an
// abort (AbortableWaits): Group lets another thread wait for it.
class AbortableGloo : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  void abort() override;

  using Tensor = at::Tensor;
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using Sizes = std::vector<int64_t>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

#define PW_COLLECTIVE(op, parameters, arguments, input, output) \
  WorkPtr op parameters override { return abortable(ProcessGroupGloo::op arguments); }
#define PW_COLLECTIVE_BY_OTHERS(...)
#include "pipewright/comms/torch_gaps/collectives.def"
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return abortable(ProcessGroupGloo::barrier(options));
  }

 private:
  WorkPtr abortable(WorkPtr work);
  void close_connections();

  const std::shared_ptr<AbortableWaits> waits_ = std::make_shared<AbortableWaits>();
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_TORCH_GAPS_ABORTABLE_GLOO_H_
