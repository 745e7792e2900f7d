#ifndef PIPEWRIGHT_EXECUTOR_TRANSFERS_H_
#define PIPEWRIGHT_EXECUTOR_TRANSFERS_H_

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/comms/channels.h"
#include "pipewright/executor/tensor_meta.h"
#include "pipewright/ir/dependencies.h"

namespace pipewright::executor {

// The SENDs and RECVs of one rank. Posting and waiting are apart: a SEND or RECV is posted at its
// place in the list and waited for where it is needed, or at the end of the step.
//
// Shapes. A receiver must know what comes. They are given, or learned: the first time that a
// result is sent, its sender also puts its shapes into the store, and the receiver posts the RECV
// once it finds them there. Until then what stands behind it in the same queue of the channel model
// waits too, so that each queue is served in the order of the list. A transfer cannot end before
// its SEND is posted, so a RECV that is posted no earlier than that changes nothing of the proof.
// Later steps must send the same shapes, else an error says so before anything goes.
//
// For the thread of the step.
class Transfers {
 public:
  struct Options {
    ir::ChannelModel channels = ir::kDefaultChannels;
    std::chrono::milliseconds timeout{};
    at::Device device = at::kCPU;
    // The outputs of a stage, where they are given.
    std::function<TensorMetas(int stage, int microbatch)> output_metas = {};
    // Throws if another rank of the pipeline has failed; asked while waiting without a message.
    std::function<void()> check_peers = {};
  };

  // `placement` and `channels` must outlive it. `key` is its own part of the store.
  Transfers(const ir::Placement& placement, comms::Channels& channels, comms::StorePtr store,
            std::string key, Options options);
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  // A step begins. Forward alone sends nothing that requires a gradient, so it learns apart.
  void begin_step(bool with_backward);
  // Forgets what was learned: the next step learns anew. On all ranks between the same steps.
  void forget_shapes();

  // SEND: one tensor a place. Of gradients some may be undefined, always the same ones: where there
  // was one the first time zeros go, and where there was none a gradient is an error. They are kept
  // until they are known to have gone; a backend that says so only when it is waited for, as Gloo,
  // says it of an output when its gradient comes, and of all at the end of the step.
  void post_send(ir::ActionPart send, Tensors tensors);
  // RECV.
  void post_receive(ir::ActionPart receive);
  // The tensors of a RECV that was posted; floating ones require a gradient if their sender's did.
  Tensors wait_receive(ir::ActionPart receive);
  // The end of a step: all that was posted has gone and come.
  void finish();
  // After a failure: lets go of all that is on its way.
  void clear();

 private:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;
  struct Pending {
    ir::ActionPart action;
    Tensors tensors;  // of a SEND
  };
  struct Posted {
    Tensors tensors;
    Works works;
  };
  using Clock = std::chrono::steady_clock;

  ir::Transfer transfer_of(ir::ActionPart action) const;
  void enqueue(ir::ActionPart action, Tensors tensors);
  void flush(std::deque<Pending>& queue);
  void flush_all();
  bool post(Pending& pending);
  void post(ir::ActionPart send, Tensors tensors);
  // Of what `receive` receives; null while they are not known.
  const TensorMetas* metas(ir::ActionPart receive);
  std::string shape_key(ir::ActionPart receive) const;
  void conform(ir::ActionPart send, Tensors& tensors);
  void wait(Posted& posted, ir::ActionPart action) const;
  void pause(Clock::time_point deadline, ir::ActionPart action) const;
  int tag(ir::ActionPart receive, size_t tensor) const;

  const ir::Placement& placement_;
  comms::Channels& channels_;
  const comms::StorePtr store_;
  const std::string key_;
  const Options options_;

  bool with_backward_ = true;
  int generation_ = 0;
  std::map<ir::ActionPart, TensorMetas> learned_[2];  // by with_backward_, then by the RECV
  std::map<uint32_t, std::deque<Pending>> queues_;    // not posted yet, by queue_index
  size_t num_pending_ = 0;
  std::map<ir::ActionPart, Posted> receives_;           // posted, not waited for
  std::map<ir::ActionPart, Posted> sends_;              // posted, not known to have gone
  std::map<int, std::deque<ir::ActionPart>> sends_to_;  // by peer, in the order of posting
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_TRANSFERS_H_
