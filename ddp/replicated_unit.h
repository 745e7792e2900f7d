#ifndef PIPEWRIGHT_DDP_REPLICATED_UNIT_H_
#define PIPEWRIGHT_DDP_REPLICATED_UNIT_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/autograd/hooks.h"
#include "pipewright/ddp/compute_copies.h"
#include "pipewright/ddp/grad_buckets.h"
#include "pipewright/ddp/linked_params.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/modules/forward.h"
#include "pipewright/modules/reduction.h"
#include "pipewright/modules/unit_tree.h"

namespace pipewright::ddp {

// The unit of one replicate() call: finds its parameters and keeps hold of them (LinkedParams), and
// decides when their gradients are reduced (GradBuckets). Units form a tree, as their modules do;
// the root stores the state of a whole backward.
class ReplicatedUnit final : public autograd::GradListener,
                             public autograd::BackwardWatch,
                             public modules::ForwardHook,
                             public modules::Distributor,
                             public modules::UnitTree<ReplicatedUnit> {
 public:
  ReplicatedUnit(const std::vector<torch::nn::Module*>& modules, comms::BackendPtr group,
                 Options options);
  // Completes the construction, once shared_from_this() works. Collective.
  void begin(const std::vector<torch::nn::Module*>& modules);
  ~ReplicatedUnit() override { drop_copies(); }
  c10d::Backend* group() const { return group_.get(); }

  // See Replicated.
  void unshard();
  void reshard();
  std::shared_ptr<modules::DataParallel> data_parallel();
  const GradBuckets& grads() const { return *grads_; }

  // ForwardHook:
  modules::Tensors run(const torch::nn::Module* module, const Function& forward,
                       modules::Tensors inputs) override;
  void prepare_forward();

  // Distributor:
  void store_parts() override { copies_.end(); }

  // GradListener, on the thread of backward:
  void before_accumulate(size_t parameter) override;
  at::Tensor take(size_t parameter, const at::Tensor& grad) override;
  void after_accumulate(size_t parameter) override;

  // For the executor's adapter.
  void set_driven(bool driven) { sync_.set_driven(driven); }
  modules::GradientSync& gradient_sync() { return sync_; }
  void reduce_all();
  bool shares_autograd_thread() const;
  void wait_for_buckets();
  void wait_reduce();
  void abort();

 private:
  bool has(const at::Tensor& buffer) const;
  bool is_alone() const { return group_->getSize() == 1; }
  void check_link(size_t i);
  void settle();
  void drop_copies();
  void recover();
  modules::Tensors run_outermost(const Function& forward, const modules::Tensors& inputs);
  void watch_backward_of(const modules::Tensors& outputs);
  void backward_enters();
  void end_all_on_error(const std::function<void()>& body);
  void accumulated(size_t grad);
  bool launch_in_order();
  bool takes_part() const;
  void backward_begins() override;
  bool is_complete() override;
  void backward_ends() override;

  const comms::BackendPtr group_;
  const Options options_;
  std::string refusal_;  // why the modules cannot be replicated; empty if they can
  LinkedParams parameters_;
  ComputeCopies copies_;  // of the parameters
  std::vector<NamedTensor> buffers_;
  std::optional<GradBuckets> grads_;  // of the parameters that require grad

  std::optional<at::Device> device_;  // of all parameters
  modules::GradientSync sync_;
  int generation_;              // of the group, as of the last recover()
  bool is_in_forward_ = false;  // of the root
  bool is_expected_ = false;    // the backward that runs must reach all parameters
};

}  // namespace pipewright::ddp

#endif  // PIPEWRIGHT_DDP_REPLICATED_UNIT_H_
