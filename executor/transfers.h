#ifndef PIPEWRIGHT_EXECUTOR_TRANSFERS_H_
#define PIPEWRIGHT_EXECUTOR_TRANSFERS_H_

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pipewright/comms/channels.h"
#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/executor/hang/watchdog.h"
#include "pipewright/executor/step_lock.h"
#include "pipewright/executor/transfer_shapes.h"
#include "pipewright/ir/dependencies.h"

namespace pipewright::executor {

// The SENDs and RECVs of one rank. Posting and waiting are separate: a SEND or RECV is posted at
// its place in the program, and waited for where its tensors are needed, or at the end of the step.
//
// A RECV whose shapes are not known yet (transfer_shapes.h) delays the operations after it in its
// queue of the channel model, so that each queue is served in program order. A transfer cannot
// finish before its SEND is posted anyway, and shapes are known once it is, so this delay does not
// weaken the deadlock proof.
//
// With dynamic shapes every transfer is preceded by a header, which the receiver waits for before
// it posts the RECV of the tensors. Queues of the edge model hold SENDs or RECVs, never both, so a
// wait for a header delays no SEND.
//
// Memory. A rank that is faster than its peer keeps the tensors of at most 16 SENDs to it, if the
// program is proved to end then: before the next SEND to that peer the rank waits for the oldest,
// on a device its current stream, so that the host still runs ahead.
//
// For the thread that runs the step.
class Transfers {
 public:
  struct Options {
    ir::ChannelModel channels = ir::kDefaultChannels;
    // The program is proved to end even if each SEND waits for its RECV.
    bool is_proved = false;
    std::chrono::milliseconds timeout{};  // of each wait for a peer
    at::Device device = at::kCPU;
    // The metadata of each stage's outputs, if it is known in advance.
    TransferShapes::OutputMetas output_metas = {};
    bool dynamic_shapes = false;  // needs ChannelModel::kEdge
    std::vector<int> ranks = {};  // the world rank of each program rank, for errors
    // Whose failure ends a wait for shapes.
    comms::FailureDomain* failures = nullptr;
    // Is told what becomes of each SEND and RECV; may be null.
    Watchdog* watchdog = nullptr;
    // Called when the tensors of a RECV are there, on a device when they are ordered.
    std::function<void(ir::ActionPart receive)> on_received = {};
    // Released where the host waits for a peer; may be null.
    StepLock* lock = nullptr;
  };

  // `placement` and `channels` must outlive this object. `key` is a prefix in the store that
  // nothing else uses.
  Transfers(const ir::Placement& placement, comms::Channels& channels, comms::StorePtr store,
            std::string key, Options options);
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  // Between two steps.
  void set_timeout(std::chrono::milliseconds timeout) { options_.timeout = timeout; }
  void begin_step(bool with_backward) { shapes_.begin_step(with_backward); }
  // See TransferShapes.
  void forget_shapes(bool with_backward) { shapes_.forget(with_backward); }
  void reset_shapes() { shapes_.reset(); }

  // All of these throw std::runtime_error that names the action, its peer action and rank if a
  // transfer fails or times out; post_send() and post_receive() leave out their own action.

  // SEND: one tensor per output (SEND_F) or input (SEND_B) of the stage; may be undefined.
  // Tensors are released when the backend reports that they are sent.
  void post_send(ir::ActionPart send, Tensors tensors);
  // RECV.
  void post_receive(ir::ActionPart receive);
  // The tensors of a posted RECV. Tensors of a RECV_F require a gradient if their sender's did;
  // tensors of a RECV_B are undefined if there is no gradient.
  // Throws ContractError if the RECV was not posted.
  Tensors wait_receive(ir::ActionPart receive);
  // WAIT_SEND: waits until the posted `send` has finished, and frees its tensors. On a device the
  // current stream waits, the host does not.
  void wait_send(ir::ActionPart send);
  // The end of a step: waits until everything posted is sent and received.
  void finish();
  // After a failure: releases everything in flight.
  void clear();

 private:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Works = std::vector<WorkPtr>;
  struct Pending {
    ir::ActionPart action;
    Tensors tensors;         // of a SEND
    at::Tensor header = {};  // of a RECV with dynamic shapes, once it is the head of its queue
    WorkPtr header_work = {};
    bool is_read = false;
  };
  struct Posted {
    Tensors tensors;  // headers included
    Works works;
  };
  using Clock = std::chrono::steady_clock;

  ir::Transfer transfer_of(ir::ActionPart action) const;
  void enqueue(ir::ActionPart action, Tensors tensors);
  void flush(std::deque<Pending>& queue);
  void flush_all();
  bool post(Pending& pending);
  Tensors post_headers(ir::ActionPart send, Posted& posted);
  void post_header(Pending& pending);
  void wait_header(Pending& pending);
  at::Tensor on_host(const at::Tensor& message) const;
  std::deque<Pending>& queue_of(ir::ActionPart action);
  void post_now(ir::ActionPart send, Tensors tensors);
  void release_sent(int peer);
  void wait(Posted& posted, ir::ActionPart action);
  void began_to_wait(ir::ActionPart action) const;
  void wait_for(const WorkPtr& work, ir::ActionPart action) const;
  void unlock() const {
    if (options_.lock) options_.lock->unlock();
  }
  void pause(Clock::time_point deadline, ir::ActionPart action, std::chrono::milliseconds* slice);
  std::string waiting(ir::ActionPart action) const;
  std::string not_posted(ir::ActionPart receive) const;
  // Calls `body`; what it throws then says which action of which rank this one meets.
  template <typename Body>
  auto naming_peer(ir::ActionPart action, const Body& body) const;
  int world_rank(int rank) const;
  int tag(ir::ActionPart receive, size_t tensor) const;

  const ir::Placement& placement_;
  comms::Channels& channels_;
  Options options_;
  TransferShapes shapes_;

  std::map<uint32_t, std::deque<Pending>> queues_;  // not posted yet, by queue_index
  size_t num_pending_ = 0;
  ir::ActionPart running_;  // of post_send() or post_receive(): errors need not name it
  std::map<ir::ActionPart, Posted> receives_;           // posted, not yet waited for
  std::map<ir::ActionPart, Posted> sends_;              // posted, not yet known to be sent
  std::map<int, std::deque<ir::ActionPart>> sends_to_;  // by peer, in posting order
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_TRANSFERS_H_
