#ifndef PIPEWRIGHT_DDP_GRAD_BUCKETS_H_
#define PIPEWRIGHT_DDP_GRAD_BUCKETS_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pipewright/ddp/replicate.h"

// The assignment of gradients to buckets. A bucket is a group of gradients that one all-reduce
// averages: few large reductions are faster than many small ones, and several buckets let reduction
// overlap with backward. No LibTorch.

namespace pipewright::ddp {

// One gradient.
struct GradSize {
  size_t bytes;
  int kind;  // a number per dtype and device; a bucket contains gradients of one kind
};

// Returns the indices of the gradients in each bucket. `order` lists the indices of `grads` in the
// order in which they are expected to become ready. A bucket is closed once it has at least
// `first_bytes` (the first of its kind) or `bytes` (the others). Closed buckets come first, in the
// order of closing, then the buckets that are still open. The rule is that of c10d's
// compute_bucket_assignment_by_size. A pure function; any thread.
//
//   assign_buckets({{4, 0}, {4, 0}, {4, 0}}, {2, 1, 0}, 4, 8)  // {{2}, {1, 0}}
std::vector<std::vector<size_t>> assign_buckets(std::span<const GradSize> grads,
                                                std::span<const size_t> order, size_t first_bytes,
                                                size_t bytes);

// The gradients of the parameters of one replicate() call: their memory and their reductions. The
// caller (replicate.cc) decides when to reduce.
//
// Gradients are views of flat buckets, or with mixed precision are added to them, and one
// communication hook call averages each bucket. The
// first assignment of parameters to buckets assumes that gradients become ready in the reverse of
// their registration order. After the first reduction, buckets are rebuilt in the order that rank 0
// observed. Both are what c10d's Reducer does.
//
//   grads.begin_backward();
//   // For each gradient:
//   grads.before_accumulate(i);  // then autograd adds to .grad
//   grads.after_accumulate(i);
//   grads.grad_ready(i);
//   grads.launch_ready();  // starts the reductions of complete buckets
//   // At the end of backward:
//   grads.launch_rest();
//   grads.finish();  // .grad is averaged

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// For one thread at a time. Throws ContractError if gradients are missing, sparse, or received
// after their reduction; std::runtime_error if a reduction fails. The caller must then forget() on
// all ranks, and tell the other ranks, because they would wait forever.
class GradBuckets {
 public:
  // `parameters` require grad and are on one device.
  GradBuckets(std::vector<NamedTensor> parameters, comms::BackendPtr group, Options options);

  size_t size() const { return parameters_.size(); }
  const std::string& name(size_t i) const { return parameters_[i].name; }
  const at::Tensor& tensor(size_t i) const { return parameters_[i].tensor; }
  std::vector<std::vector<std::string>> names_by_bucket() const;
  size_t bytes() const;  // of the buckets allocated so far

  // Whether there is anything to reduce: there are other ranks, or gradients have another dtype.
  bool is_needed() const { return is_mixed_ || group_->getSize() > 1; }

  // To be called before and after autograd accumulates into a parameter's .grad.
  // before_accumulate() waits if the bucket is still being reduced; after_accumulate() moves .grad
  // into the bucket. take() returns what autograd is to accumulate: `grad`, or with mixed precision
  // nothing, because it has added it to the bucket.
  void before_accumulate(size_t i);
  at::Tensor take(size_t i, const at::Tensor& grad);
  void after_accumulate(size_t i);

  // The parameter's gradient of the current backward is final. Fails if its bucket is already being
  // reduced.
  void grad_ready(size_t i);
  bool is_any_ready() const { return !ready_order_.empty(); }
  // Whether gradients have been accumulated since the last reduction.
  bool is_any_unreduced() const;
  // Fail unless every parameter received a gradient: in the current backward (check_all_ready), or
  // since the last reduction (check_all_used). Do nothing with find_unused_parameters, or if the
  // group has only one rank.
  void check_all_ready();
  void check_all_used();

  // Starts the reductions of complete buckets in bucket order, which is the same on all ranks, up
  // to the first bucket that is not complete. Returns whether all have been started. Does not wait.
  bool launch_ready();
  bool is_launched() const { return next_bucket_ == buckets_.size(); }
  // Starts all remaining reductions. A parameter without a gradient on this rank contributes zeros,
  // so that every reduction has a fixed size.
  void launch_rest();
  // With find_unused_parameters: starts counting how many ranks used each parameter. To be called
  // after launch_rest() of all GradBuckets that are reduced together with this one.
  void launch_counts();
  // Waits for the reductions that have started.
  void wait_for_all();
  // Waits for all reductions. After the first one, rebuilds the buckets, which is collective.
  void finish();

  // Starts a backward. Fails if the previous backward stopped on an error after reductions had
  // started.
  void begin_backward();
  // After a failure: drops all state of the current backward, including reductions in flight, and
  // returns to the first assignment of buckets, so that all ranks have the same one again.
  void forget();

 private:
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    at::ScalarType dtype, reduce_dtype;  // of its .grad, and of its gradient in the bucket
    size_t bucket = 0;
    at::Tensor view = {};  // its gradient's memory in the bucket
    bool ready = false;    // its gradient of the current backward is final
    bool used = false;     // received a gradient since the last reduction
  };
  struct Bucket {
    at::Tensor flat;
    std::vector<size_t> parameters;
    size_t missing = 0;          // number of parameters that are not ready
    std::function<void()> wait;  // for the reduction in flight; null if there is none
  };
  // The parameters that this rank did not use, while the counts of all ranks are being reduced.
  struct Unused {
    std::vector<size_t> parameters;
    std::vector<bool> had_grad;      // parallel to `parameters`: .grad was defined
    std::vector<at::Tensor> counts;  // one tensor: the number of ranks that used each parameter
    c10::intrusive_ptr<c10d::Work> work;
    bool is_read = false;  // `counts` are reduced, and on the host
  };

  std::vector<std::vector<size_t>> assignment(const std::vector<size_t>& order) const;
  void make_first_buckets();
  void make_buckets(std::vector<std::vector<size_t>> assigned);
  void allocate(Bucket& bucket);
  static void expect_dense(const Parameter& parameter, const at::Tensor& grad);
  void move_into_bucket(Parameter& parameter);
  void restart();
  void check(bool Parameter::*had);
  void launch(Bucket& bucket);
  void wait_for(Bucket& bucket);
  void unpack(Bucket& bucket);
  [[noreturn]] void fail_reduction(const Bucket& bucket, const std::exception& error);
  void wait_for_counts();
  void read_counts();
  bool is_used_by_any(size_t i);
  void reset_unused();
  void rebuild(const std::vector<size_t>& ready);
  template <typename Error>
  [[noreturn]] static void fail(const std::string& message);

  const comms::BackendPtr group_;
  const Options options_;
  const CommHook reduce_;
  const bool is_mixed_;  // gradients are computed or reduced in another dtype than that of .grad
  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  size_t next_bucket_ = 0;
  std::vector<size_t> ready_order_;
  std::optional<Unused> unused_;
  bool reduced_ = false;  // at least once
  bool rebuilt_ = false;
  std::vector<size_t> first_order_;  // of readiness in the first backward that reduced
};

}  // namespace pipewright::ddp

#endif  // PIPEWRIGHT_DDP_GRAD_BUCKETS_H_
