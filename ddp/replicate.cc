#include "ddp/replicate.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>

#include "autograd/backward_watch.h"
#include "autograd/grad_hooks.h"
#include "comms/agreement.h"
#include "ddp/buckets.h"

namespace pipewright::ddp {
namespace {

struct Parameter {
  std::string name;
  at::Tensor tensor;
  // Held, as the tensor does not hold it, and the hook lives on it.
  std::shared_ptr<torch::autograd::Node> accumulator;
  size_t bucket = 0;
  at::Tensor view;     // of its bucket: where its gradient lies
  bool ready = false;  // has had its gradient in the backward that runs
  bool used = false;   // has had one since the last reduction
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
  std::vector<at::Tensor> counts;  // one tensor: how many ranks used each parameter of the call
  c10::intrusive_ptr<c10d::Work> work;
};

// The parameters of one call.
class Unit final : public Replicated,
                   public autograd::GradListener,
                   public autograd::BackwardWatch {
 public:
  Unit(const std::vector<torch::nn::Module*>& modules, comms::BackendPtr group, Options options)
      : group_(std::move(group)),
        options_(std::move(options)),
        reduce_(options_.comm_hook ? options_.comm_hook : all_reduce_hook()) {
    std::set<at::TensorImpl*> seen;  // a tied weight counts once
    for (size_t i = 0; i < modules.size(); ++i) {
      const std::string prefix = modules.size() == 1 ? "" : std::to_string(i) + ".";
      for (const auto& named : modules[i]->named_parameters()) {
        if (!seen.insert(named.value().unsafeGetTensorImpl()).second) continue;
        if (!device_) device_ = named.value().device();
        const std::string name = prefix + named.key();
        if (named.value().device() != *device_) {
          refusal_ = c10::str("replicate: `", name, "` is on ", named.value().device(),
                              ", the first parameter on ", *device_, ": wanted one device");
        }
        if (const std::shared_ptr<Unit> owner = owner_of(name, named.value()))
          nest(owner->root());
        else
          parameters_.push_back({name, named.value(), nullptr, 0, {}, false, false});
      }
      for (const auto& named : modules[i]->named_buffers()) {
        if (named.value().defined() && std::ranges::none_of(nested_, [&](const auto& unit) {
              return unit->has(named.value());
            }))
          buffers_.emplace_back(prefix + named.key(), named.value());
      }
    }
    for (const std::shared_ptr<Unit>& unit : nested_) {
      if (unit->options_.find_unused_parameters == options_.find_unused_parameters) continue;
      refusal_ =
          "replicate: find_unused_parameters must be the same as in the calls for parts of the "
          "module";
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
    comms::compare_lines(lines, *group_, device());
    // Only now, so that no rank waits for one that was refused.
    if (!refusal_.empty()) throw std::invalid_argument(refusal_);
    std::vector<at::Tensor> values;
    for (const Parameter& parameter : parameters_) values.push_back(parameter.tensor);
    for (const auto& [name, buffer] : buffers_) values.push_back(buffer);
    comms::broadcast_values(values, *group_);
    for (const Parameter& parameter : parameters_) {
      if (!parameter.tensor.requires_grad()) frozen_.emplace_back(parameter.name, parameter.tensor);
    }
    std::erase_if(parameters_,
                  [](const Parameter& parameter) { return !parameter.tensor.requires_grad(); });
    for (size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& parameter = parameters_[i];
      parameter.accumulator = autograd::listen(parameter.tensor, weak_unit(), i);
    }
    for (const std::shared_ptr<Unit>& unit : nested_) unit->outer_ = weak_unit();
    // Backward makes the last parameters' gradients ready first.
    std::vector<size_t> order(parameters_.size());
    std::iota(order.rbegin(), order.rend(), size_t{0});
    make_buckets(assignment(order));
  }

  // The call around all others.
  std::shared_ptr<Unit> root() {
    const std::shared_ptr<Unit> outer = outer_.lock();
    return outer ? outer->root() : weak_unit().lock();
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

  std::vector<at::Tensor> forward_begins(std::vector<at::Tensor> inputs) override {
    prepare_forward();
    const std::optional<at::Device> device = options_.device ? options_.device : device_;
    for (at::Tensor& input : inputs) {
      if (device && input.defined()) input = input.to(*device, /*non_blocking=*/true);
    }
    return inputs;
  }

  void prepare_forward() {
    for (const std::shared_ptr<Unit>& unit : nested_) unit->prepare_forward();
    for (const Parameter& parameter : parameters_) {
      // A cast or a move gives it a new one, without our hooks.
      if (torch::autograd::impl::try_get_grad_accumulator(parameter.tensor) ==
          parameter.accumulator)
        continue;
      throw std::logic_error(c10::str(
          "replicate: parameter `", parameter.name, "` became ", parameter.tensor.scalar_type(),
          " on ", parameter.tensor.device(), ": replicate a module after it is cast or moved"));
    }
    for (const auto& [name, tensor] : frozen_) {
      if (!tensor.requires_grad()) continue;
      throw std::logic_error("replicate: parameter `" + name +
                             "` was frozen: replicate a module after its parameters are chosen");
    }
    if (!options_.broadcast_buffers || !requires_gradient_sync()) return;
    std::vector<at::Tensor> values;
    for (const auto& [name, buffer] : buffers_) values.push_back(buffer);
    comms::broadcast_values(values, *group_);
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

  // The gradient of a parameter is about to be added to. In the thread of backward.
  void grad_comes(size_t index) override {
    // What an earlier REDUCE_GRAD of the step still reduces must not change.
    wait_for(buckets_[parameters_[index].bucket]);
  }

  // It has been.
  void grad_ready(size_t index) override {
    if (group_->getSize() == 1) return;
    Parameter& parameter = parameters_[index];
    move_into_bucket(parameter);
    parameter.used = true;
    if (!reduces()) return;
    const std::shared_ptr<Unit> outermost = root();
    if (!driven_) outermost->watch();
    if (parameter.ready) {
      if (parameter.bucket >= next_bucket_) return;
      fail("parameter `" + parameter.name +
           "` got a gradient again after its bucket was reduced: part of the model that uses it "
           "is checkpointed and part is not, or it was used in two backwards at once");
    }
    parameter.ready = true;
    ready_order_.push_back(index);
    --buckets_[parameter.bucket].missing;
    // Ranks that use different parameters, in a microbatch or at all, only agree on an order that
    // is fixed over all calls.
    if (options_.find_unused_parameters || driven_)
      outermost->launch_in_order();
    else
      launch_ready();
  }

  // Driven by the executor.
  void set_driven(bool driven) {
    driven_ = driven;
    reduces_now_ = false;
    for (const std::shared_ptr<Unit>& unit : nested_) unit->set_driven(driven);
  }
  void before_backward(bool last) {
    reduces_now_ = last;
    for (const std::shared_ptr<Unit>& unit : nested_) unit->before_backward(last);
  }
  void reduce_grad() {
    for_each([](Unit& unit) { unit.check_used(&Parameter::used); });
    for_each([](Unit& unit) { unit.launch_rest(); });
    for_each([](Unit& unit) { unit.launch_counts(); });
  }
  void wait_reduce() {
    for_each([](Unit& unit) { unit.finish(); });
  }
  void abort() {
    for_each([](Unit& unit) {
      unit.group_->abort();
      unit.forget_reductions();
      unit.reduces_now_ = false;
    });
  }

 private:
  static std::shared_ptr<Unit> owner_of(const std::string& name, const at::Tensor& parameter) {
    const auto listener = autograd::listener_of(parameter);
    auto unit = std::dynamic_pointer_cast<Unit>(listener);
    if (listener && !unit) {
      throw std::invalid_argument("replicate: `" + name +
                                  "` is kept by another wrapper, such as fully_shard");
    }
    return unit;
  }

  std::weak_ptr<Unit> weak_unit() { return std::static_pointer_cast<Unit>(shared_from_this()); }

  // Whether a buffer is kept by it or by a nested call.
  bool has(const at::Tensor& buffer) const {
    return std::ranges::any_of(buffers_,
                               [&](const auto& known) { return known.second.is_same(buffer); }) ||
           std::ranges::any_of(nested_, [&](const auto& unit) { return unit->has(buffer); });
  }

  void nest(const std::shared_ptr<Unit>& unit) {
    if (std::ranges::find(nested_, unit) == nested_.end()) nested_.push_back(unit);
  }

  // Nested calls first, the last one first, as backward comes to them if they follow one another.
  template <typename Function>
  void for_each(const Function& function) {
    for (auto unit = nested_.rbegin(); unit != nested_.rend(); ++unit) (*unit)->for_each(function);
    function(*this);
  }

  // Of what is sent over the group.
  at::Device device() const {
    return device_ ? *device_ : group_->getBoundDeviceId().value_or(at::kCPU);
  }

  // Whether the backward that runs is to reduce.
  bool reduces() const { return driven_ ? reduces_now_ : requires_gradient_sync(); }

  static std::string describe(const std::string& name, const at::Tensor& tensor) {
    return c10::str(name, ", ", tensor.scalar_type(), " ", tensor.sizes(),
                    tensor.requires_grad() ? "" : ", frozen");
  }

  // The parameters of each bucket, if they become ready in this order.
  std::vector<std::vector<size_t>> assignment(const std::vector<size_t>& order) const {
    std::map<std::pair<at::ScalarType, int>, int> kinds;
    std::vector<Piece> pieces;
    for (const Parameter& parameter : parameters_) {
      const std::pair<at::ScalarType, int> kind = {parameter.tensor.scalar_type(),
                                                   parameter.tensor.get_device()};
      pieces.push_back({parameter.tensor.nbytes(),
                        kinds.try_emplace(kind, static_cast<int>(kinds.size())).first->second});
    }
    constexpr double kMiB = 1 << 20;
    return assign_buckets(pieces, order, static_cast<size_t>(options_.first_bucket_cap_mb * kMiB),
                          static_cast<size_t>(options_.bucket_cap_mb * kMiB));
  }

  void make_buckets(std::vector<std::vector<size_t>> assigned) {
    buckets_.clear();
    for (std::vector<size_t>& members : assigned) {
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
    if (grad.defined() && grad.layout() != at::kStrided) {
      fail(c10::str("parameter `", parameter.name, "` has a gradient that is ", grad.layout(),
                    ": only dense ones are reduced"));
    }
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
  }

  void forget_reductions() {
    for (Bucket& bucket : buckets_) bucket.wait = nullptr;
    for (Parameter& parameter : parameters_) parameter.used = false;
    unused_.reset();
    begin_backward();
  }

  // Of the outermost call.
  void backward_begins() override {
    for_each([](Unit& unit) { unit.forget_stopped_backward(); });
  }

  void forget_stopped_backward() {
    if (driven_) return;
    if (next_bucket_ > 0) {
      fail(
          "an earlier backward stopped on an error after its reductions had begun: ranks may "
          "not agree on them any more");
    }
    begin_backward();
  }

  void launch(Bucket& bucket) {
    wait_for(bucket);
    try {
      bucket.wait = reduce_(bucket.flat, group_);
    } catch (const std::exception& error) {
      fail_reduction(bucket, error);
    }
    if (!bucket.wait) fail("the comm hook returned nothing that waits for its reduction");
  }

  void wait_for(Bucket& bucket) {
    if (!bucket.wait) return;
    try {
      std::exchange(bucket.wait, nullptr)();
    } catch (const std::exception& error) {
      fail_reduction(bucket, error);
    }
  }

  [[noreturn]] void fail_reduction(const Bucket& bucket, const std::exception& error) {
    const Parameter& first = parameters_[bucket.parameters[0]];
    fail(c10::str("the reduction of `", first.name, "` and ", bucket.parameters.size() - 1,
                  " more over ", group_->getSize(), " ranks failed on rank ", group_->getRank(),
                  ": ", error.what()));
  }

  // In the order of the buckets, which is the same on all ranks. Whether none is left.
  bool launch_ready() {
    for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_].missing == 0; ++next_bucket_)
      launch(buckets_[next_bucket_]);
    return next_bucket_ == buckets_.size();
  }

  bool launch_in_order() {
    for (auto unit = nested_.rbegin(); unit != nested_.rend(); ++unit) {
      if (!(*unit)->launch_in_order()) return false;
    }
    return group_->getSize() == 1 || !reduces() || launch_ready();
  }

  // Throws if parameters had no gradient that have to have one.
  void check_used(bool Parameter::*had) {
    if (options_.find_unused_parameters || group_->getSize() == 1) return;
    std::string missing;
    for (const Parameter& parameter : parameters_) {
      if (!(parameter.*had)) missing += (missing.empty() ? "`" : ", `") + parameter.name + "`";
    }
    if (missing.empty()) return;
    fail("no gradient in this backward for " + missing +
         ": use all parameters in every forward, or set find_unused_parameters");
  }

  // Where a parameter has no gradient on this rank, zeros go: every reduction has its fixed size.
  void launch_rest() {
    if (group_->getSize() == 1 || parameters_.empty()) return;
    if (options_.find_unused_parameters) {
      tell_unused();
      Unused unused;
      at::Tensor used = at::ones({static_cast<int64_t>(parameters_.size())}, at::kFloat);
      for (size_t i = 0; i < parameters_.size(); ++i) {
        if (parameters_[i].ready) continue;
        unused.parameters.push_back(i);
        // What was added without a reduction counts too.
        unused.had_grad.push_back(parameters_[i].tensor.grad().defined());
        used[static_cast<int64_t>(i)] = unused.had_grad.back() ? 1 : 0;
      }
      unused.counts = {used.to(device())};
      unused_ = std::move(unused);
    }
    for (Parameter& parameter : parameters_) {
      if (!parameter.ready) move_into_bucket(parameter);
      parameter.used = false;
    }
    for (; next_bucket_ < buckets_.size(); ++next_bucket_) launch(buckets_[next_bucket_]);
    if (!reduced_) first_order_ = ready_order_;
    reduced_ = true;
    begin_backward();
  }

  // Behind the buckets of all calls, as some have started them before.
  void launch_counts() {
    if (unused_) unused_->work = group_->allreduce(unused_->counts);
  }

  // What no rank used keeps what it had: nothing, where there was nothing.
  void tell_unused() {
    if (!unused_) return;
    const Unused unused = std::exchange(unused_, std::nullopt).value();
    unused.work->wait();
    const at::Tensor counts = unused.counts[0].cpu();
    for (size_t i = 0; i < unused.parameters.size(); ++i) {
      Parameter& parameter = parameters_[unused.parameters[i]];
      if (counts[static_cast<int64_t>(unused.parameters[i])].item<float>() == 0 &&
          !unused.had_grad[i] && !parameter.used)
        parameter.tensor.mutable_grad().reset();
    }
  }

  // Whether the backward that has run without an executor, here or in a call around it, was one
  // of its parameters.
  bool takes_part() const {
    return group_->getSize() > 1 && requires_gradient_sync() &&
           (options_.find_unused_parameters || !ready_order_.empty());
  }

  bool is_complete() override {
    bool complete = true;
    for_each([&](Unit& unit) {
      complete = complete && (!unit.takes_part() || unit.next_bucket_ == unit.buckets_.size());
    });
    return complete;
  }

  // Nobody drives it.
  void backward_ends() override {
    std::vector<Unit*> units;
    for_each([&](Unit& unit) {
      if (unit.takes_part()) units.push_back(&unit);
    });
    for (Unit* unit : units) unit->check_used(&Parameter::ready);
    for (Unit* unit : units) unit->launch_rest();
    for (Unit* unit : units) unit->launch_counts();
    for (Unit* unit : units) unit->finish();
  }

  // Waits for all reductions; after the first, buckets are made anew in the order in which
  // gradients became ready on rank 0.
  void finish() {
    for (Bucket& bucket : buckets_) wait_for(bucket);
    tell_unused();
    reduces_now_ = false;
    if (reduced_ && !rebuilt_) rebuild(std::exchange(first_order_, {}));
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
    shared = shared.to(device());
    comms::broadcast_values({shared}, *group_);
    shared = shared.cpu();
    for (size_t i = 0; i < order.size(); ++i)
      order[i] = static_cast<size_t>(shared[static_cast<int64_t>(i)].item<int64_t>());
    std::vector<std::vector<size_t>> anew = assignment(order);
    if (std::ranges::equal(anew, buckets_, {}, {}, &Bucket::parameters)) return;
    // Gradients move to their new places. From here on only they hold the old ones, each of which
    // is freed with the last gradient in it.
    for (Parameter& parameter : parameters_) parameter.view.reset();
    make_buckets(std::move(anew));
    for (Bucket& bucket : buckets_) {
      allocate(bucket);
      for (const size_t index : bucket.parameters) {
        at::Tensor& grad = parameters_[index].tensor.mutable_grad();
        if (!grad.defined()) continue;
        parameters_[index].view.copy_(grad);
        grad = parameters_[index].view;
      }
    }
  }

  // The others would wait for this rank: where a backend can, they are told.
  [[noreturn]] void fail(const std::string& message) {
    root()->for_each([](Unit& unit) { unit.forget_reductions(); });
    group_->abort();
    throw std::runtime_error("replicate: " + message);
  }

  const comms::BackendPtr group_;
  const Options options_;
  const CommHook reduce_;
  std::weak_ptr<Unit> outer_;
  std::vector<std::shared_ptr<Unit>> nested_;
  std::vector<Parameter> parameters_;
  std::vector<std::pair<std::string, at::Tensor>> frozen_, buffers_;
  std::string refusal_;  // why the module cannot be replicated
  std::vector<Bucket> buckets_;

  std::optional<at::Device> device_;  // of all parameters
  bool sync_ = true;
  int held_ = 0;              // by NoSyncs
  bool driven_ = false;       // by the executor, which says when to reduce
  bool reduces_now_ = false;  // driven: the last backward before REDUCE_GRAD runs
  bool reduced_ = false;      // at least once
  bool rebuilt_ = false;
  std::vector<size_t> first_order_;  // of readiness, in the first backward that reduced
  std::optional<Unused> unused_;
  size_t next_bucket_ = 0;
  std::vector<size_t> ready_order_;
};

class ReplicatedStage final : public executor::DataParallel {
 public:
  explicit ReplicatedStage(std::shared_ptr<Unit> unit) : unit_(std::move(unit)) {
    unit_->set_driven(true);
  }
  ~ReplicatedStage() override { unit_->set_driven(false); }
  ReplicatedStage(const ReplicatedStage&) = delete;
  ReplicatedStage& operator=(const ReplicatedStage&) = delete;
  void step_begins() override { unit_->prepare_forward(); }
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
  return std::make_shared<ReplicatedStage>(weak_unit().lock());
}

}  // namespace

std::shared_ptr<Replicated> replicate(const std::vector<torch::nn::Module*>& modules,
                                      comms::BackendPtr group, Options options) {
  const auto unit = std::make_shared<Unit>(modules, std::move(group), std::move(options));
  unit->begin();
  return unit;
}

}  // namespace pipewright::ddp
