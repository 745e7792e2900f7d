#ifndef PIPEWRIGHT_FSDP_PARAM_GROUP_H_
#define PIPEWRIGHT_FSDP_PARAM_GROUP_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/autograd/node_pointer.h"
#include "pipewright/comms/side_stream.h"
#include "pipewright/comms/world.h"
#include "pipewright/fsdp/offload.h"
#include "pipewright/modules/mixed_precision.h"
#include "pipewright/modules/reduction.h"

namespace pipewright::fsdp {

// kShardedPostForward: over fewer ranks than kSharded, between forward and backward.
enum class ShardState { kSharded, kShardedPostForward, kUnsharded };
const char* to_string(ShardState state);

// One parameter to shard along `dim`. A dimension other than 0 must divide evenly.
struct ParamSpec {
  std::string name;
  at::Tensor parameter;
  int64_t dim = 0;
};

// How one parameter is sharded; constant, except `trainable`.
struct ShardedParam {
  std::string name;
  at::Tensor registered;  // the tensor that the module and the optimizer refer to
  int64_t dim = 0;
  std::vector<int64_t> sizes;        // of the full parameter
  std::vector<int64_t> shard_sizes;  // of this rank's shard, without padding
  int64_t chunk_numel = 0;           // elements of a shard with its padding, the same on all ranks
  bool is_split = false;             // the full parameter is a part of one that parallelize split
  bool trainable = false;            // requires a gradient, as of the last settle()
};

// Parameters that are gathered and freed together: one all-gather per group.
//
// The registered tensors never change identity. Each holds this rank's shard, and the full
// parameter, in the dtype to compute in, while the group is unsharded. So optimizers and state
// dicts see shards, forward and backward see full parameters, and .grad always belongs to the
// shard.
//
// With one rank and no mixed precision, the shard is the full parameter, and nothing is copied or
// communicated. For one thread at a time.
class ParamGroup {
 public:
  // Shards the values of the parameters, all of one device; the trainable ones have one dtype.
  // `post_forward` is the smaller group to shard over after forward, null if there is none:
  // adjacent ranks of `group`. `offload`: shards are on the host; null: on the device of the
  // parameters, which may be meta. If it throws, the parameters are unchanged.
  ParamGroup(std::vector<ParamSpec> specs, comms::BackendPtr group, comms::BackendPtr post_forward,
             const modules::MixedPrecisionPolicy& policy, std::shared_ptr<OffloadCopies> offload);

  // For error messages.
  void set_unit_name(std::string name);
  const std::string& unit_name() const { return unit_; }

  ShardState state() const { return state_; }
  bool is_unsharded() const { return state_ == ShardState::kUnsharded; }
  bool is_gathering() const { return gather_posted_; }
  const comms::BackendPtr& group() const { return group_; }
  int ranks() const { return group_->getSize(); }
  const std::vector<ShardedParam>& params() const { return params_; }
  // Whether registered tensors hold shards, or copies in another dtype, at all.
  bool shards() const { return shards_; }

  // Where shards are on the host: the copies from and to it. Null otherwise.
  OffloadCopies* offload() const { return offload_.get(); }
  // The options of the shards, of the full parameters, and of the gradients to reduce: those of the
  // trainable parameters, if there are any. With parameters.
  at::TensorOptions shard_options() const;
  at::TensorOptions full_options() const;
  at::TensorOptions reduce_options() const;

  // Adopts what users did to the parameters since the last gather: cast or moved them, loaded other
  // values into them, froze or unfroze them. To be called before a gather while the group is
  // sharded; otherwise does nothing. Returns whether dtype, device or a `trainable` changed. Throws
  // ContractError, naming the parameter, if it has neither the shape of the shard nor of the full
  // parameter, the parameters no longer have one device, or the trainable ones one dtype.
  bool settle();
  // Has autograd accept gradients of the full parameter for the registered tensor, through `node`,
  // the parameter's gradient accumulator; after settle().
  void link(size_t i, const autograd::NodePtr& node) const;

  // Posts the all-gather unless the parameters are unsharded or a gather is pending. Returns
  // whether it was posted. `beside`: on a device, does not wait for what the current stream
  // computes; what writes to shards must be followed by order_gathers(). Throws ContractError for
  // parameters on the meta device.
  bool begin_unshard(bool beside = true);
  // Orders gathers that are posted later after what the current stream has been given so far.
  void order_gathers();
  // After `event` alone.
  void order_gathers_after(const c10::Event& event);
  // Posts gathers on the stream of `other` from now on; before the first gather.
  void share_gather_stream(const ParamGroup& other);
  // Waits for the all-gather and returns whether one was pending. Throws ContractError if anything
  // but this group has replaced the memory of a parameter, and what the backend throws.
  bool wait_unshard();
  // Frees the full parameters; waits for a pending gather first. `post_forward`: keeps this rank's
  // slice for the smaller group. Throws as wait_unshard() does.
  void reshard(bool post_forward = false);
  // Returns `output`, or, if it is in the memory of a full parameter, which reshard() frees, a copy
  // through which gradients flow.
  at::Tensor outlive_reshard(const at::Tensor& output);
  // The parameter in whose shard's memory `tensor` is.
  std::optional<size_t> shard_with(const at::Tensor& tensor) const;
  // Whether gathers and reductions write to memory that the group's backend allocates, if it can.
  void set_allocates_from_group(bool from_group) { allocates_from_group_ = from_group; }
  // That backend, or null.
  c10d::Backend* allocator() const;
  // Aborts the group's communication, if the backend supports it, so that no rank waits for it.
  void abort();
  // After a failed step, whose communication has been aborted: forgets a pending gather, and frees
  // the full parameters.
  void abandon();

  // Bytes of parameters that this rank has copied, without copies inside backends.
  int64_t bytes_copied() const { return bytes_copied_; }

 private:
  // The memory of the parameters of one dtype. Flat tensors, with padding.
  struct Flat {
    at::Tensor shards;
    at::Tensor full;
    int64_t full_bytes = 0;
    at::Tensor sent;  // the shards on the device and in the dtype to gather, if others
  };
  // The memory of one parameter.
  struct Memory {
    size_t flat = 0;                                   // in flats_
    int64_t chunk_offset = 0;                          // in its shards
    at::Tensor padded_shard;                           // flat
    at::Tensor shard;                                  // its part without padding
    at::Tensor held;                                   // the same, guarded: what is registered
    at::Tensor post_forward_flat, post_forward_shard;  // only while kShardedPostForward
    at::Tensor gathered;                               // flat; for dim 0 in the memory of `full`
    at::Tensor full;
  };

  std::string quoted(size_t i) const;
  void expect(size_t i, const at::Tensor& held) const;
  size_t first_trainable() const;
  at::TensorOptions full_options(const at::TensorOptions& shard) const;
  void allocate(const std::vector<at::Tensor>& parts);
  void allocate_flats(const std::vector<at::Tensor>& parts);
  at::Tensor my_part(size_t i, const at::Tensor& found) const;
  void put(size_t i, const at::Tensor& contents) const;
  void adopt();
  void make_post_forward_shards();
  void post_gather();
  void send_copies();
  void free_full();

  const comms::BackendPtr group_;
  const comms::BackendPtr post_forward_;
  const modules::MixedPrecisionPolicy policy_;
  const std::shared_ptr<OffloadCopies> offload_;
  std::shared_ptr<comms::SideStream> gathers_ = std::make_shared<comms::SideStream>();
  bool shards_ = false;
  bool allocates_from_group_ = false;
  std::string unit_;
  std::vector<ShardedParam> params_;
  std::vector<Memory> memory_;  // by parameter
  std::vector<Flat> flats_;     // more than one only if frozen parameters have another dtype
  ShardState state_ = ShardState::kSharded;
  bool gather_posted_ = false;
  c10::intrusive_ptr<c10d::Work> gather_;  // null if there was nothing to send
  c10::intrusive_ptr<c10d::Work>
      abandoned_gather_;  // of a failed step: may still write to the full ones
  int64_t bytes_copied_ = 0;
};

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_PARAM_GROUP_H_
