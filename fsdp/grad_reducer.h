#ifndef PIPEWRIGHT_FSDP_GRAD_REDUCER_H_
#define PIPEWRIGHT_FSDP_GRAD_REDUCER_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "pipewright/fsdp/param_group.h"
#include "pipewright/modules/reduction.h"

namespace pipewright::fsdp {

// Tells what a user has done to the .grad of a parameter that has more gradients elsewhere, which
// are not reduced yet. zero_grad() means these too, but only .grad is there for it to clear. So
// between two backwards such a parameter has a .grad: a mark of zeros if it had none.
class ZeroGradWatch {
 public:
  enum class Found {
    kUntouched,
    kCleared,  // zero_grad() has been called, or .grad replaced
    kWritten   // other values have been written to it
  };

  // Begins to watch. `mark` becomes the .grad if there is none; see make_mark().
  void begin(const at::Tensor& registered, const at::Tensor& mark);
  // Ends the watch, and takes the mark away if it is untouched. kUntouched if there was no watch.
  Found end(const at::Tensor& registered);

  // Zeros, negative ones: equal to others, but zero_grad(false) writes positive ones, whereas those
  // that are multiplied, as in clipping, stay negative.
  static at::Tensor make_mark(int64_t numel, const at::TensorOptions& options);

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  std::optional<WeakStorage> storage_;  // of .grad; nullopt: no watch
  int64_t version_ = 0;                 // of .grad
  bool is_mark_ = false;                // .grad is the mark
};

// The gradients of one ParamGroup: accumulates full gradients over backwards, in the dtype in which
// they are reduced, and reduces them into the .grad of the shards, one reduce-scatter per group.
//
// With one rank and no division, gradients stay where autograd puts them. On a device, the
// all-reduce over replicas and all that follows it run on a stream of their own, behind what is
// computed later, as in FSDP2 (all_reduce_stream). For one thread at a time.
class GradReducer {
 public:
  // `params` must outlive the reducer. `replicas`: the ranks that have the same shards as this one;
  // null if it is the only one.
  GradReducer(const ParamGroup& params, comms::BackendPtr replicas);
  int replicas() const { return replicas_ ? replicas_->getSize() : 1; }
  // This rank among the replicas.
  int replica() const { return replicas_ ? replicas_->getRank() : 0; }
  // Whether a reduction is a collective.
  bool communicates() const { return params_.ranks() > 1 || replicas() > 1; }
  // Called with each reduced shard before the final division; on the stream of the all-reduce.
  void set_all_reduce_hook(std::function<void(const at::Tensor&)> hook) { hook_ = std::move(hook); }

  // Applies to later reductions. Must not change between a backward that only accumulates and the
  // one that reduces.
  void set_reduction(const modules::Reduction& reduction) { reduction_ = reduction; }

  // Computes the places of gradients in buffers again, after ParamGroup::settle() has changed
  // dtype, device or trainable parameters. Throws ContractError if gradients have been accumulated.
  void lay_out();

  // Between two backwards: what zero_grad() does to the .grad of a parameter is done to all its
  // gradients that are not reduced yet. Until backward_begins() such a parameter has a .grad, which
  // is zero if there was none. backward_begins() throws ContractError, naming the parameter, if
  // other values have been written to it.
  void backward_ended();
  void backward_begins();

  // Takes the full gradient of parameter `i` before autograd accumulates it, and returns what
  // autograd should accumulate: nothing, or the gradient itself if gradients stay where autograd
  // puts them. A gradient that only the caller has is kept, others are copied. Throws
  // std::runtime_error for a gradient that is not dense.
  at::Tensor take(size_t i, const at::Tensor& grad);
  // Whether gradients have been accumulated since the last reduction.
  bool has_grads() const { return has_grads_; }

  // Posts the reduction of the accumulated gradients. If not `all_reduces`, the result is not
  // reduced over the replicas but added to a partial sum, which joins the next reduction that is.
  // Its size is fixed: parameters without a gradient contribute zeros, so all ranks post the same.
  // The next backward begins with none.
  void begin_reduce(bool all_reduces);
  // Waits for the oldest posted reduction and adds it to the .grad of the shards, which may be read
  // after join(). A parameter that no rank used keeps the .grad it had. A no-op if none is pending.
  void wait_reduce();
  bool is_reducing() const { return !pending_.empty(); }
  // Makes the current stream wait for the gradients of wait_reduce(). Never blocks the host.
  void join();

  // After a failed step: drops pending reductions and accumulated gradients.
  void abandon();
  // Aborts the communication over the replicas, so that no rank waits for it.
  void abort();

  // Bytes of gradients that this rank has copied, without copies inside backends.
  int64_t bytes_copied() const { return bytes_copied_; }

 private:
  struct Slot {
    int64_t chunk_offset = 0;  // in the output of a reduction
    at::Tensor grad;  // full, flat, and zeros up to whole chunks; undefined if there is none
  };
  struct Pending {
    std::vector<at::Tensor> inputs;
    at::Tensor output;
    std::vector<bool> used;     // by parameter: on this rank
    std::vector<bool> cleared;  // by parameter: by zero_grad(), since it was posted
    double divisor;             // of the output
    bool all_reduces;
    bool is_posted = false;  // reduce_over_replicas() has been called
    c10::intrusive_ptr<c10d::Work> work;
  };

  // Whether gradients stay where autograd puts them.
  bool is_direct() const {
    return !params_.shards() && replicas() == 1 && reduction_.divisor(1) == 1;
  }
  void clear(size_t i);
  void clear(size_t i, const at::Tensor& output, std::vector<bool>& used) const;
  bool may_keep(size_t i, const at::Tensor& grad) const;
  at::Tensor empty(int64_t numel) const;
  at::Tensor empty_padded(size_t i) const;
  at::Tensor unpadded(size_t i, const at::Tensor& grad) const;
  // Enters the stream of all-reduces, after what the current stream has been given so far. Does
  // nothing on CPUs and without replicas.
  void go_beside(std::optional<comms::SideStream::Scope>* scope);
  bool goes_beside() const;
  void reduce_over_replicas(Pending& pending);
  at::Tensor to_host(const at::Tensor& reduced) const;

  const ParamGroup& params_;
  const comms::BackendPtr replicas_;
  std::function<void(const at::Tensor&)> hook_;
  modules::Reduction reduction_;
  std::vector<Slot> slots_;             // by parameter
  std::vector<ZeroGradWatch> watches_;  // by parameter
  bool has_grads_ = false;
  int64_t chunk_numel_ = 0;         // of all slots; frozen parameters take no space
  std::deque<Pending> pending_;     // oldest first
  at::Tensor partial_;              // sum of outputs that were not all-reduced
  std::vector<bool> partial_used_;  // by parameter: on this rank
  comms::SideStream beside_;        // of all-reduces and what follows
  std::optional<c10::Event> done_;
  std::vector<at::Tensor> used_beside_;  // by what join() waits for
  int64_t bytes_copied_ = 0;
};

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_GRAD_REDUCER_H_
