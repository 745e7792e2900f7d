#ifndef PIPEWRIGHT_DDP_GRAD_BUCKETS_H_
#define PIPEWRIGHT_DDP_GRAD_BUCKETS_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/ddp/replicate.h"

// Where the gradients of one call's parameters lie, and what is sent of them. When that happens is
// for the call to say.
//
// Gradients are views of buckets, of which each is reduced by one call. Which parameters share a
// bucket is first guessed from their order; once gradients have been seen to become ready, buckets
// are made anew in the order in which they did so on rank 0. As c10d's Reducer does it.

namespace pipewright::ddp {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// For one thread at a time. An error ends the group's communication, as the others would wait.
class GradBuckets {
 public:
  // `parameters` are trained, of one device. `forget_all` is called where an error is about to be
  // thrown: forget() of all that is reduced together with this.
  GradBuckets(std::vector<NamedTensor> parameters, comms::BackendPtr group, Options options,
              std::function<void()> forget_all);

  size_t size() const { return parameters_.size(); }
  const std::string& name(size_t i) const { return parameters_[i].name; }
  const at::Tensor& tensor(size_t i) const { return parameters_[i].tensor; }
  std::vector<std::vector<std::string>> names_by_bucket() const;
  size_t bytes() const;

  // Around the accumulation into a parameter's .grad, which then lies in its bucket.
  void grad_comes(size_t i);
  void grad_added(size_t i);

  // It is all that the backward that runs gives. An error if its bucket is reduced already.
  void grad_ready(size_t i);
  bool is_any_ready() const { return !ready_order_.empty(); }
  // Throws if parameters had no gradient that have to have one: in the backward that runs, or since
  // the last reduction.
  void check_all_ready();
  void check_all_used();

  // Starts the reductions of the buckets that are full, in their order, which is the same on all
  // ranks. Whether all have been started.
  bool launch_ready();
  bool is_launched() const { return next_bucket_ == buckets_.size(); }
  // Of all that are left. Where a parameter has no gradient on this rank, zeros go: every reduction
  // has its fixed size.
  void launch_rest();
  // With find_unused_parameters, behind launch_rest() of all that is reduced together with this.
  void launch_counts();
  // Waits for all reductions.
  void finish();

  // A backward begins. An error if the one before has stopped after reductions had begun.
  void begin_backward();
  void forget();
  [[noreturn]] void fail(const std::string& message);

 private:
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    size_t bucket = 0;
    at::Tensor view = {};  // of its bucket: where its gradient lies
    bool ready = false;    // has had its gradient in the backward that runs
    bool used = false;     // has had one since the last reduction
  };
  struct Bucket {
    at::Tensor flat;
    std::vector<size_t> parameters;
    size_t missing = 0;          // parameters that are not ready
    std::function<void()> wait;  // for a reduction that runs
  };
  // The parameters that this rank did not use, on their way to be known to all.
  struct Unused {
    std::vector<size_t> parameters;
    std::vector<bool> had_grad;      // by their place in `parameters`
    std::vector<at::Tensor> counts;  // one tensor: how many ranks used each parameter
    c10::intrusive_ptr<c10d::Work> work;
  };

  std::vector<std::vector<size_t>> assignment(const std::vector<size_t>& order) const;
  void make_buckets(std::vector<std::vector<size_t>> assigned);
  void allocate(Bucket& bucket);
  void move_into_bucket(Parameter& parameter);
  void restart();
  void check(bool Parameter::*had);
  void launch(Bucket& bucket);
  void wait_for(Bucket& bucket);
  [[noreturn]] void fail_reduction(const Bucket& bucket, const std::exception& error);
  void tell_unused();
  void make_anew(const std::vector<size_t>& ready);

  const comms::BackendPtr group_;
  const Options options_;
  const CommHook reduce_;
  const std::function<void()> forget_all_;
  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  size_t next_bucket_ = 0;
  std::vector<size_t> ready_order_;
  std::optional<Unused> unused_;
  bool reduced_ = false;  // at least once
  bool made_anew_ = false;
  std::vector<size_t> first_order_;  // of readiness, in the first backward that reduced
};

}  // namespace pipewright::ddp

#endif  // PIPEWRIGHT_DDP_GRAD_BUCKETS_H_
