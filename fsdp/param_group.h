#ifndef PIPEWRIGHT_FSDP_PARAM_GROUP_H_
#define PIPEWRIGHT_FSDP_PARAM_GROUP_H_

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/comms/world.h"
#include "pipewright/fsdp/reduction.h"

// The parameters that are gathered and reduced together. What autograd, optimizers and state dicts
// know is the registered tensor: it holds this rank's shard, and the whole parameter while the
// group is unsharded (set_data). Its .grad is always that of the shard, but for the moment in which
// autograd adds to it.
//
// The gathered parameters lie one behind the other in one storage, each padded to a multiple of the
// number of ranks along its first dimension: a gather writes them where they are used, without a
// copy. The storage is the same object all the time, as autograd may have saved views of it; only
// its memory comes and goes. Gradients lie in a buffer of the same layout, which is what is
// reduced. A parameter that is sharded along another dimension takes one more copy each way.

namespace pipewright::fsdp {

// kShardedPostForward: over fewer ranks than kSharded.
enum class ShardState { kSharded, kShardedPostForward, kUnsharded };
const char* to_string(ShardState state);

struct ParamSpec {
  std::string name;
  at::Tensor parameter;
  int64_t dim = 0;  // to shard along; others than 0 must divide evenly
};

// For one thread at a time.
class ParamGroup {
 public:
  // Shards what the parameters hold; one device, one dtype. `post_forward` is the smaller group to
  // shard over behind forward, null for none: equal numbers of neighbours in `group`.
  ParamGroup(std::vector<ParamSpec> specs, comms::BackendPtr group, comms::BackendPtr post_forward,
             std::string unit_name);

  void set_unit_name(std::string name) { unit_ = std::move(name); }
  ShardState state() const { return state_; }
  bool is_gathering() const { return gather_work_ || gather_begun_; }
  size_t size() const { return parameters_.size(); }
  const at::Tensor& parameter(size_t i) const { return parameters_[i].registered; }
  const std::string& name(size_t i) const { return parameters_[i].name; }

  // Posts the gather, if it is not there or on its way. Whether it was posted.
  bool begin_unshard();
  // Whether there was one to wait for.
  bool wait_unshard();
  // Frees the whole parameters. `post_forward`: keeps a slice for the smaller group.
  void reshard(bool post_forward = false);

  // Around the accumulation into one parameter's .grad, in backward.
  void grad_comes(size_t i);
  void grad_ready(size_t i);
  // A backward stopped between the two.
  void forget_backward();
  // Whether gradients have been added that are not reduced.
  bool has_grads() const;

  // Of the reductions to come. Not between a backward that only adds up and the one that reduces.
  void set_reduction(const Reduction& reduction) { reduction_ = reduction; }
  // Posts the reduction of what has been added, a fixed size however many parameters were used. The
  // next backward adds to another buffer.
  void begin_reduce();
  // Waits for the first one posted, and adds it to the shards' gradients. A parameter that no rank
  // used keeps what it had.
  void wait_reduce();
  size_t reductions_on_their_way() const { return reducing_.size(); }
  // Forgets all reductions and what has been added for them.
  void abandon();
  // Ends what is on its way, so that nobody waits for it, where the backend can.
  void abort();

  // Of parameters and gradients, by this rank since it was made, but for what backends do.
  int64_t bytes_copied() const { return bytes_copied_; }

 private:
  struct Parameter {
    std::string name;
    at::Tensor registered;
    int64_t dim = 0;
    std::vector<int64_t> sizes;                        // of the whole
    int64_t offset = 0;                                // in a buffer of whole parameters
    int64_t chunk_offset = 0;                          // in a buffer of shards
    int64_t grad_offset = 0, grad_chunk_offset = 0;    // as these, of gradients
    int64_t chunk_numel = 0;                           // of a shard with its padding
    at::Tensor padded_shard;                           // flat
    at::Tensor shard;                                  // the part of it that is not padding
    at::Tensor post_forward_flat, post_forward_shard;  // while kShardedPostForward
    at::Tensor gathered;  // flat, with padding, for dim 0 in the storage of `whole`
    at::Tensor whole;
    at::Tensor grad;        // of the whole, in `grads_`; undefined if there is none
    at::Tensor shard_grad;  // put aside while autograd adds
    bool adding = false;
    bool trainable = false;
  };
  struct Reducing {
    at::Tensor input, output;
    std::vector<at::Tensor> pieces;  // inputs that do not lie in it
    std::vector<bool> used;          // by parameter
    double post;                     // to divide by
    c10::intrusive_ptr<c10d::Work> work;
  };

  int64_t ranks() const { return group_->getSize(); }
  // One rank, and gradients that nobody divides: they stay where autograd puts them.
  bool is_direct() const { return ranks() == 1 && reduction_.divisor(1) == 1; }
  void expect(const Parameter& parameter, const at::Tensor& held) const;
  at::Tensor alias(const at::Tensor& flat, int64_t offset, at::IntArrayRef sizes) const;
  void allocate_grads();
  at::Tensor grad_place(const Parameter& parameter) const;
  void make_post_forward_shards();

  const comms::BackendPtr group_;
  const comms::BackendPtr post_forward_;
  std::string unit_;
  std::vector<Parameter> parameters_;
  at::TensorOptions options_;
  Reduction reduction_;
  int64_t whole_numel_ = 0, chunk_numel_ = 0;
  int64_t grad_numel_ = 0, grad_chunk_numel_ = 0;  // frozen parameters have none
  ShardState state_ = ShardState::kSharded;

  at::Tensor wholes_;  // its storage is freed and filled again
  bool gather_begun_ = false;
  c10::intrusive_ptr<c10d::Work> gather_work_, abandoned_gather_;
  at::Tensor grads_;  // undefined while nothing has been added
  std::deque<Reducing> reducing_;
  int64_t bytes_copied_ = 0;
};

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_PARAM_GROUP_H_
