#include "ddp/replicate.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "ddp/agreement.h"
#include "ddp/buckets.h"

namespace pipewright::ddp {
namespace {

using torch::autograd::variable_list;

class Unit;

// Behind a parameter's accumulation. It also marks the parameter as taken, and by whom.
class GradReady final : public torch::autograd::FunctionPostHook {
 public:
  GradReady(std::weak_ptr<Unit> unit, size_t parameter)
      : unit_(std::move(unit)), parameter_(parameter) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override;
  std::shared_ptr<Unit> unit() const { return unit_.lock(); }

 private:
  const std::weak_ptr<Unit> unit_;
  const size_t parameter_;
};

struct Parameter {
  std::string name;
  at::Tensor tensor;
  // Held, as the tensor does not hold it, and the hook lives on it.
  std::shared_ptr<torch::autograd::Node> accumulator;
  size_t bucket = 0;
  at::Tensor view;     // of its bucket: where its gradient lies
  bool ready = false;  // has had its gradient in the backward that runs
};

struct Bucket {
  at::Tensor flat;
  std::vector<size_t> parameters;
  size_t missing = 0;          // parameters that are not ready
  std::function<void()> wait;  // for a reduction that runs
};

// An all-reduce, in another precision.
CommHook compress_hook(at::ScalarType dtype) {
  return [dtype](const at::Tensor& bucket, const comms::BackendPtr& group) {
    std::vector<at::Tensor> small = {bucket.to(dtype).div_(group->getSize())};
    const auto work = group->allreduce(small);
    return [bucket, small = small[0], work] {
      work->wait();
      bucket.copy_(small);
    };
  };
}

std::function<void()> all_reduce(const at::Tensor& bucket, const comms::BackendPtr& group) {
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::AVG;
  std::vector<at::Tensor> tensors = {bucket};
  const auto work = group->allreduce(tensors, options);
  return [work] { work->wait(); };
}

// The parameters of one call.
class Unit final : public Replicated, public std::enable_shared_from_this<Unit> {
 public:
  Unit(torch::nn::Module& module, comms::BackendPtr group, Options options)
      : group_(std::move(group)), options_(std::move(options)) {
    const std::vector<at::Tensor> all = module.parameters();
    if (!all.empty()) device_ = all[0].device();
    std::set<at::TensorImpl*> seen;  // a tied weight counts once
    for (const auto& named : module.named_parameters()) {
      if (!seen.insert(named.value().unsafeGetTensorImpl()).second) continue;
      if (const std::shared_ptr<Unit> owner = owner_of(named.value())) {
        if (std::ranges::find(nested_, owner) == nested_.end()) nested_.push_back(owner);
        continue;
      }
      parameters_.push_back({named.key(), named.value(), nullptr, 0, {}, false});
    }
    for (const auto& named : module.named_buffers()) {
      const auto taken = [&](const std::shared_ptr<Unit>& unit) {
        return std::ranges::any_of(unit->buffers_, [&](const auto& buffer) {
          return buffer.second.is_same(named.value());
        });
      };
      if (named.value().defined() && std::ranges::none_of(nested_, taken))
        buffers_.emplace_back(named.key(), named.value());
    }
    if (options_.find_unused_parameters && !nested_.empty()) {
      throw std::invalid_argument(
          "replicate: find_unused_parameters wants one call for the whole module, and parts of it "
          "were replicated before");
    }
  }

  // Collective.
  void begin() {
    std::vector<std::string> lines;
    lines.push_back(c10::str("options: bucket_cap_mb ", options_.bucket_cap_mb,
                             ", first_bucket_cap_mb ", options_.first_bucket_cap_mb,
                             ", find_unused_parameters ", options_.find_unused_parameters,
                             ", broadcast_buffers ", options_.broadcast_buffers, ", comm_hook ",
                             options_.comm_hook != nullptr));
    for (const Parameter& parameter : parameters_)
      lines.push_back(describe("`" + parameter.name + "`", parameter.tensor));
    for (const auto& [name, buffer] : buffers_)
      lines.push_back(describe("buffer `" + name + "`", buffer));
    compare_lines(lines, *group_, device_);
    std::vector<at::Tensor> values;
    for (const Parameter& parameter : parameters_) values.push_back(parameter.tensor);
    for (const auto& [name, buffer] : buffers_) values.push_back(buffer);
    broadcast(values);
    std::erase_if(parameters_,
                  [](const Parameter& parameter) { return !parameter.tensor.requires_grad(); });
    for (size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& parameter = parameters_[i];
      parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.tensor);
      parameter.accumulator->add_post_hook(std::make_unique<GradReady>(weak_from_this(), i));
    }
    // Backward makes the last parameters' gradients ready first.
    std::vector<size_t> order(parameters_.size());
    std::iota(order.rbegin(), order.rend(), size_t{0});
    make_buckets(order);
  }

  void set_requires_gradient_sync(bool sync, bool recurse) override {
    sync_ = sync;
    if (!recurse) return;
    for (const std::shared_ptr<Unit>& unit : nested_) unit->set_requires_gradient_sync(sync, true);
  }
  bool requires_gradient_sync() const override { return sync_ && held_ == 0; }
  void hold_sync(int change) override {
    held_ += change;
    for (const std::shared_ptr<Unit>& unit : nested_) unit->hold_sync(change);
  }

  void forward_begins() override {
    for (const std::shared_ptr<Unit>& unit : nested_) unit->forward_begins();
    if (!options_.broadcast_buffers || !requires_gradient_sync()) return;
    std::vector<at::Tensor> values;
    for (const auto& [name, buffer] : buffers_) values.push_back(buffer);
    broadcast(values);
  }

  std::shared_ptr<executor::DataParallel> data_parallel() override;

  size_t bucket_bytes() const override {
    size_t bytes = 0;
    for (const Bucket& bucket : buckets_) bytes += bucket.flat.defined() ? bucket.flat.nbytes() : 0;
    return bytes;
  }

  std::vector<std::vector<std::string>> buckets() const override {
    std::vector<std::vector<std::string>> names;
    for (const Bucket& bucket : buckets_) {
      names.emplace_back();
      for (const size_t index : bucket.parameters) names.back().push_back(parameters_[index].name);
    }
    return names;
  }

  // The gradient of a parameter has been added to. In the thread of backward.
  void grad_ready(size_t index) {
    if (group_->getSize() == 1) return;
    Parameter& parameter = parameters_[index];
    move_into_bucket(parameter);
    if (!(driven_ ? reduces_now_ : requires_gradient_sync())) return;
    if (!driven_) see_to_the_end();
    Bucket& bucket = buckets_[parameter.bucket];
    if (parameter.ready) {
      if (!bucket.wait) return;
      fail("parameter `" + parameter.name +
           "` got a gradient again after its bucket was reduced: part of the model that uses it "
           "is checkpointed and part is not, or it was used in two backwards at once");
    }
    parameter.ready = true;
    ready_order_.push_back(index);
    --bucket.missing;
    launch_ready();
  }

  // Driven by the executor.
  void before_backward(bool last) {
    driven_ = true;
    // What an earlier REDUCE_GRAD of the step still reduces must not be added to.
    if (std::ranges::any_of(buckets_, [](const Bucket& bucket) { return bool(bucket.wait); }))
      finish();
    reduces_now_ = last;
    for (const std::shared_ptr<Unit>& unit : nested_) unit->before_backward(last);
  }
  void reduce_grad() {
    for (const std::shared_ptr<Unit>& unit : nested_) unit->reduce_grad();
    if (group_->getSize() > 1) launch_rest();
  }
  void wait_reduce() {
    for (const std::shared_ptr<Unit>& unit : nested_) unit->wait_reduce();
    finish();
    driven_ = false;
  }
  void abort() {
    for (const std::shared_ptr<Unit>& unit : nested_) unit->abort();
    group_->abort();
    for (Bucket& bucket : buckets_) bucket.wait = nullptr;
    begin_backward();
    driven_ = reduces_now_ = false;
  }

 private:
  static std::shared_ptr<Unit> owner_of(const at::Tensor& parameter) {
    if (!parameter.requires_grad()) return nullptr;
    for (const auto& hook : torch::autograd::impl::grad_accumulator(parameter)->post_hooks()) {
      if (const auto* ready = dynamic_cast<const GradReady*>(hook.get())) {
        if (std::shared_ptr<Unit> unit = ready->unit()) return unit;
      }
    }
    return nullptr;
  }

  static std::string describe(const std::string& name, const at::Tensor& tensor) {
    return c10::str(name, ", ", tensor.scalar_type(), " ", tensor.sizes(),
                    tensor.requires_grad() ? "" : ", frozen");
  }

  void broadcast(const std::vector<at::Tensor>& values) {
    if (group_->getSize() == 1) return;
    for (const at::Tensor& value : values) {
      std::vector<at::Tensor> tensors = {value.detach().contiguous()};
      group_->broadcast(tensors)->wait();
      if (!tensors[0].is_same(value) && tensors[0].data_ptr() != value.data_ptr())
        value.detach().copy_(tensors[0]);
    }
  }

  void make_buckets(const std::vector<size_t>& order) {
    std::map<std::pair<at::ScalarType, int>, int> kinds;
    std::vector<Piece> pieces;
    for (const Parameter& parameter : parameters_) {
      const std::pair<at::ScalarType, int> kind = {parameter.tensor.scalar_type(),
                                                   parameter.tensor.get_device()};
      pieces.push_back({parameter.tensor.nbytes(),
                        kinds.try_emplace(kind, static_cast<int>(kinds.size())).first->second});
    }
    constexpr double kMiB = 1 << 20;
    buckets_.clear();
    for (std::vector<size_t>& members :
         assign_buckets(pieces, order, static_cast<size_t>(options_.first_bucket_cap_mb * kMiB),
                        static_cast<size_t>(options_.bucket_cap_mb * kMiB))) {
      for (const size_t index : members) parameters_[index].bucket = buckets_.size();
      buckets_.push_back({{}, std::move(members), 0, nullptr});
    }
    begin_backward();
  }

  void allocate(Bucket& bucket) {
    int64_t size = 0;
    for (const size_t index : bucket.parameters) size += parameters_[index].tensor.numel();
    bucket.flat = at::zeros({size}, parameters_[bucket.parameters[0]].tensor.options());
    int64_t offset = 0;
    for (const size_t index : bucket.parameters) {
      Parameter& parameter = parameters_[index];
      // Shares the memory, and is no view to autograd: an optimizer may call detach_() on it.
      parameter.view = at::empty({0}, bucket.flat.options());
      parameter.view.set_(bucket.flat.storage(), bucket.flat.storage_offset() + offset,
                          parameter.tensor.sizes());
      offset += parameter.tensor.numel();
    }
  }

  void move_into_bucket(Parameter& parameter) {
    Bucket& bucket = buckets_[parameter.bucket];
    if (!bucket.flat.defined()) allocate(bucket);
    at::Tensor& grad = parameter.tensor.mutable_grad();
    if (grad.defined() && grad.data_ptr() == parameter.view.data_ptr()) return;
    if (grad.defined())
      parameter.view.copy_(grad);
    else
      parameter.view.zero_();
    grad = parameter.view;
  }

  void begin_backward() {
    for (Parameter& parameter : parameters_) parameter.ready = false;
    for (Bucket& bucket : buckets_) bucket.missing = bucket.parameters.size();
    next_bucket_ = 0;
    ready_order_.clear();
    end_.reset();
    deferred_ = false;
  }

  // Has the engine call back at the end of this backward. An engine that stops on an error forgets
  // its callbacks: then what they held is gone.
  void see_to_the_end() {
    if (!end_.expired()) return;
    if (!ready_order_.empty() && !deferred_) {
      if (std::ranges::any_of(buckets_, [](const Bucket& bucket) { return bool(bucket.wait); })) {
        fail(
            "an earlier backward stopped on an error after its reductions had begun: ranks may "
            "not agree on them any more");
      }
      begin_backward();
    }
    const auto end = std::make_shared<int>();
    end_ = end;
    torch::autograd::Engine::get_default_engine().queue_callback(
        [self = shared_from_this(), end] { self->backward_ends(); });
  }

  void launch(Bucket& bucket) {
    bucket.wait = options_.comm_hook ? options_.comm_hook(bucket.flat, group_)
                                     : all_reduce(bucket.flat, group_);
    if (!bucket.wait) fail("the comm hook returned nothing that waits for its reduction");
  }

  // In the order of the buckets, which is the same on all ranks.
  void launch_ready() {
    for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_].missing == 0; ++next_bucket_)
      launch(buckets_[next_bucket_]);
  }

  // Where a parameter has no gradient on this rank, zeros go: every reduction has its fixed size.
  void launch_rest() {
    for (Parameter& parameter : parameters_) {
      if (!parameter.ready) move_into_bucket(parameter);
    }
    for (; next_bucket_ < buckets_.size(); ++next_bucket_) launch(buckets_[next_bucket_]);
  }

  // At the end of a backward that nobody drives.
  void backward_ends() {
    // This may be the end of a backward within a node of another, as checkpointing runs it: the
    // other goes on, unless nothing is left for it to do.
    const bool complete = next_bucket_ == buckets_.size();
    if (torch::autograd::get_current_node() && !complete) {
      end_.reset();
      deferred_ = true;
      return;
    }
    std::string missing;
    std::vector<size_t> unused;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].ready) continue;
      unused.push_back(i);
      missing += (missing.empty() ? "`" : ", `") + parameters_[i].name + "`";
    }
    if (!unused.empty() && !options_.find_unused_parameters) {
      fail("no gradient in this backward for " + missing +
           ": use all parameters in every forward, or set find_unused_parameters");
    }
    deferred_ = false;
    at::Tensor used;
    std::vector<at::Tensor> before;
    if (options_.find_unused_parameters) {
      used = at::ones({static_cast<int64_t>(parameters_.size())},
                      at::TensorOptions(at::kFloat).device(parameters_[0].tensor.device()));
      for (const size_t index : unused) {
        // What was added without a reduction counts too.
        const at::Tensor& grad = parameters_[index].tensor.grad();
        used[static_cast<int64_t>(index)] = grad.defined() ? 1 : 0;
        before.push_back(grad);
      }
    }
    launch_rest();
    if (used.defined()) {
      std::vector<at::Tensor> counts = {used};
      group_->allreduce(counts)->wait();
      used = used.cpu();
    }
    finish();
    // What no rank used keeps what it had: nothing, where there was nothing.
    for (size_t i = 0; i < unused.size(); ++i) {
      if (used[static_cast<int64_t>(unused[i])].item<float>() == 0 && !before[i].defined())
        parameters_[unused[i]].tensor.mutable_grad().reset();
    }
  }

  // Waits for all reductions; after the first, buckets are made anew in the order in which
  // gradients became ready on rank 0.
  void finish() {
    bool reduced = false;
    for (Bucket& bucket : buckets_) {
      if (!bucket.wait) continue;
      try {
        std::exchange(bucket.wait, nullptr)();
      } catch (const std::exception& error) {
        const Parameter& first = parameters_[bucket.parameters[0]];
        fail(c10::str("the reduction of `", first.name, "` and ", bucket.parameters.size() - 1,
                      " more over ", group_->getSize(), " ranks failed on rank ", group_->getRank(),
                      ": ", error.what()));
      }
      reduced = true;
    }
    const std::vector<size_t> order = ready_order_;
    begin_backward();
    reduces_now_ = false;
    if (reduced && !rebuilt_) rebuild(order);
  }

  void rebuild(const std::vector<size_t>& ready) {
    rebuilt_ = true;
    std::vector<size_t> order = ready;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (std::ranges::find(ready, i) == ready.end()) order.push_back(i);
    }
    at::Tensor shared = at::empty({static_cast<int64_t>(order.size())}, at::kLong);
    for (size_t i = 0; i < order.size(); ++i)
      shared[static_cast<int64_t>(i)] = static_cast<int64_t>(order[i]);
    shared = shared.to(parameters_[0].tensor.device());
    broadcast({shared});
    shared = shared.cpu();
    for (size_t i = 0; i < order.size(); ++i)
      order[i] = static_cast<size_t>(shared[static_cast<int64_t>(i)].item<int64_t>());
    const std::vector<std::vector<std::string>> assignment = buckets();
    const std::vector<Bucket> before = buckets_;
    make_buckets(order);
    if (buckets() == assignment) {
      buckets_ = before;
      begin_backward();
      return;
    }
    // Gradients move to their new places.
    for (Bucket& bucket : buckets_) allocate(bucket);
    for (Parameter& parameter : parameters_) {
      at::Tensor& grad = parameter.tensor.mutable_grad();
      if (!grad.defined()) continue;
      parameter.view.copy_(grad);
      grad = parameter.view;
    }
  }

  // The others would wait for this rank: where a backend can, they are told.
  [[noreturn]] void fail(const std::string& message) {
    for (Bucket& bucket : buckets_) bucket.wait = nullptr;
    begin_backward();
    group_->abort();
    throw std::runtime_error("replicate: " + message);
  }

  const comms::BackendPtr group_;
  const Options options_;
  std::vector<std::shared_ptr<Unit>> nested_;
  std::vector<Parameter> parameters_;
  std::vector<std::pair<std::string, at::Tensor>> buffers_;
  std::vector<Bucket> buckets_;

  at::Device device_ = at::kCPU;
  bool sync_ = true;
  int held_ = 0;              // by NoSyncs
  bool driven_ = false;       // by the executor, which says when to reduce
  bool reduces_now_ = false;  // driven: the last backward before REDUCE_GRAD runs
  std::weak_ptr<int> end_;    // of the backward that runs: gone if it stopped on an error
  bool deferred_ = false;     // a backward within it has ended
  bool rebuilt_ = false;
  size_t next_bucket_ = 0;
  std::vector<size_t> ready_order_;
};

variable_list GradReady::operator()(const variable_list& outputs, const variable_list&) {
  if (const std::shared_ptr<Unit> unit = unit_.lock()) unit->grad_ready(parameter_);
  return outputs;
}

class ReplicatedStage final : public executor::DataParallel {
 public:
  explicit ReplicatedStage(std::shared_ptr<Unit> unit) : unit_(std::move(unit)) {}
  // Parameters are always whole.
  void unshard() override {}
  void wait_unshard() override {}
  void reshard() override {}
  void before_backward(int /*microbatch*/, bool last) override { unit_->before_backward(last); }
  void reduce_grad() override { unit_->reduce_grad(); }
  void wait_reduce() override { unit_->wait_reduce(); }
  void abort() override { unit_->abort(); }

 private:
  const std::shared_ptr<Unit> unit_;
};

std::shared_ptr<executor::DataParallel> Unit::data_parallel() {
  return std::make_shared<ReplicatedStage>(shared_from_this());
}

}  // namespace

CommHook fp16_compress_hook() { return compress_hook(at::kHalf); }
CommHook bf16_compress_hook() { return compress_hook(at::kBFloat16); }

std::shared_ptr<Replicated> replicate(torch::nn::Module& module, comms::BackendPtr group,
                                      Options options) {
  const auto unit = std::make_shared<Unit>(module, std::move(group), std::move(options));
  unit->begin();
  return unit;
}

}  // namespace pipewright::ddp
