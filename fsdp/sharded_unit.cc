#include "pipewright/fsdp/sharded_unit.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "pipewright/comms/group.h"
#include "pipewright/ir/errors.h"
#include "pipewright/modules/unit_tree.h"

namespace pipewright::fsdp {

modules::ModuleRegistry<torch::nn::Module, ShardedUnit>& sharded_modules() {
  // Never destroyed, because a unit in a global variable may be destroyed later than a static
  // registry.
  static auto* registry = new modules::ModuleRegistry<torch::nn::Module, ShardedUnit>;
  return *registry;
}

ShardedUnit::ShardedUnit(std::vector<const torch::nn::Module*> modules, ParamGroup params,
                         comms::BackendPtr replicas, Options options)
    : calls_(std::move(modules)),
      params_(std::move(params)),
      grads_(params_, std::move(replicas)),
      options_(std::move(options)),
      generation_(comms::generation_of(*params_.group())),
      backward_(*this) {}

ShardedUnit::~ShardedUnit() {
  try {  // the current stream may still use parameters that are freed now
    params_.order_gathers();
  } catch (const std::exception&) {  // the device has failed, and reports it elsewhere
  }
  for (const torch::nn::Module* module : calls_.modules()) sharded_modules().forget(module);
}

void ShardedUnit::begin(const std::vector<std::shared_ptr<ShardedUnit>>& nested,
                        const std::vector<at::Tensor>& replicated) {
  for (const std::shared_ptr<ShardedUnit>& unit : nested) nest(unit);
  adopt();
  share_gather_stream(*this);
  accumulators_.resize(params_.params().size());
  params_.set_unit_name(display_name());
  update_reduction();
  settle();
  for (const ShardedParam& param : params_.params())
    distribute(param.registered, param.sizes, param.dim);
  for (const at::Tensor& tensor : replicated) {
    if (!modules::is_distributed_over(tensor, "dp_replicate"))  // by another wrapper
      distribute(tensor, tensor.sizes().vec(), std::nullopt);
  }
}

std::string ShardedUnit::display_name() const {
  if (!name_.empty()) return "`" + name_ + "`";
  return is_root() ? "the root" : calls_.modules()[0]->name();
}

void ShardedUnit::add_prefix(const std::string& prefix) {
  for_each([&prefix](ShardedUnit& unit) {
    unit.name_ = modules::join_path(prefix, unit.name_);
    unit.params_.set_unit_name(unit.display_name());
  });
}

// Says how the ranks of the unit store a tensor of `sizes`: sharded along `dim`, or each the whole.
void ShardedUnit::distribute(const at::Tensor& tensor, std::vector<int64_t> sizes,
                             std::optional<int64_t> dim) {
  using layout::TensorPlacement;
  const layout::MeshLayout mesh(
      {{"dp_replicate", grads_.replicas()}, {"dp_shard", params_.ranks()}});
  const TensorPlacement shards =
      dim ? TensorPlacement::shard(static_cast<int>(*dim)) : TensorPlacement::replicate();
  const layout::Layout layout(mesh, {TensorPlacement::replicate(), shards}, std::move(sizes));
  const int rank = grads_.replica() * params_.ranks() + params_.group()->getRank();
  modules::distribute(tensor, {{layout, rank}, params_.group().get(), weak_from_this()});
}

void ShardedUnit::note(Event event) {
  const std::shared_ptr<ShardedUnit> outermost = root();
  if (const auto& log = outermost->event_log_) log->push_back({event, display_name()});
}

void ShardedUnit::update_reduction() {
  if (params_.params().empty()) return;
  grads_.set_reduction(modules::reduction_of(params_.reduce_options().dtype().toScalarType(),
                                             params_.ranks(), grads_.replicas(),
                                             settings_.divide_factor, settings_.force_sum));
}

// Setters.

void ShardedUnit::set_gradient_divide_factor(double factor) {
  if (!(factor > 0)) {
    throw std::invalid_argument(c10::str("fully_shard: gradient divide factor of ", display_name(),
                                         ": expected a positive number, got ", factor));
  }
  settings_.divide_factor = factor;
  update_reduction();
}

void ShardedUnit::set_force_sum_reduction_for_comms(bool force) {
  settings_.force_sum = force;
  update_reduction();
}

// Gathering.

// At the first use after World::reset(): drops what the failed step has left in all units of the
// model. Ranks failed at different places, and must go on with the same units gathered. After a
// step that an executor ran, abort() has done so.
void ShardedUnit::recover() {
  if (comms::generation_of(*params_.group()) == generation_) return;
  root()->for_each([](ShardedUnit& unit) {
    unit.generation_ = comms::generation_of(*unit.params_.group());
    if (unit.sync_.is_driven()) return;
    unit.forget();
    unit.params_.abandon();
  });
}

// Adopts what users did to the parameters since the last gather.
void ShardedUnit::settle() {
  if (params_.state() != ShardState::kSharded || params_.is_gathering()) return;
  if (params_.settle()) {
    grads_.lay_out();
    update_reduction();
  }
  for (size_t i = 0; i < accumulators_.size(); ++i) {
    const ShardedParam& param = params_.params()[i];
    if (!param.trainable) continue;
    if (!accumulators_[i])
      accumulators_[i] = autograd::listen(param.registered, weak_from_this(), i);
    params_.link(i, accumulators_[i]);
  }
}

bool ShardedUnit::is_trainable() const {
  return std::ranges::any_of(params_.params(), &ShardedParam::trainable);
}

// An executor's program decides how early gathers are posted, so they need no stream of their own,
// and the memory of one stage can be used by the next.
bool ShardedUnit::gather() {
  settle();
  if (!params_.begin_unshard(/*beside=*/!sync_.is_driven() && !settings_.unshard_async_op))
    return false;
  note(Event::kUnshard);
  return true;
}

void ShardedUnit::unshard_async() {
  recover();
  params_.order_gathers();
  gather();
}

void ShardedUnit::wait_unshard() {
  try {
    if (params_.wait_unshard()) note(Event::kWaitUnshard);
  } catch (const ContractError&) {
    throw;  // its message names the parameter
  } catch (const std::exception& error) {
    throw std::runtime_error(c10::str(
        "fully_shard: the all-gather of ", display_name(), " (`", params_.params()[0].name,
        "` and ", params_.params().size() - 1, " more parameters) failed: ", error.what()));
  }
}

void ShardedUnit::reshard(bool post_forward) {
  if (params_.is_gathering()) wait_unshard();
  const ShardState before = params_.state();
  params_.reshard(post_forward);
  if (params_.state() != before) note(Event::kReshard);
}

// Driven by an executor.

void ShardedUnit::set_driven(bool driven) {
  sync_.set_driven(driven);
  forget();
}

void ShardedUnit::abort() {
  forget();
  grads_.abort();
  params_.abort();
}

namespace {

// A W on a resharded stage computes gradients of trainable parameters from activations and
// gradients, but a frozen parameter may be one of the factors.
void expect_trainable_if_sharded(const ShardedUnit& unit) {
  if (unit.is_unsharded()) return;
  for (const ShardedParam& param : unit.params().params()) {
    if (param.registered.requires_grad()) continue;
    throw ContractError("fully_shard: a W on the resharded " + unit.display_name() +
                        " may read its frozen parameter `" + param.name +
                        "`: expected an UNSHARD before the W");
  }
}

}  // namespace

void ShardedStage::unshard() {
  // Gathers units in the order in which forward enters them.
  root().for_each_outer_first([](ShardedUnit& unit) { unit.unshard_async(); });
}

void ShardedStage::wait_unshard() {
  root().for_each_outer_first([](ShardedUnit& unit) { unit.wait_unshard(); });
}

void ShardedStage::reshard() {
  root().for_each([](ShardedUnit& unit) { unit.reshard(); });
}

void ShardedStage::before_backward(int microbatch, bool last) {
  root().for_each([](ShardedUnit& unit) { expect_trainable_if_sharded(unit); });
  // The reductions of an earlier REDUCE_GRAD: their buffers are freed before this backward
  // allocates others.
  root().backward().finish(0);
  DrivenStage::before_backward(microbatch, last);
  if (last) root().backward().open_for_all();
}

void ShardedStage::reduce_all() {
  BackwardOrder& order = root().backward();
  order.open_for_all();
  set_last_backward(true);
  root().for_each([](ShardedUnit& unit) { unit.set_done(0); });
  order.reduce_ready();
  order.reduce_rest();
  order.close();
  set_last_backward(false);
  root().for_each([](ShardedUnit& unit) { unit.begin_backward(); });
}

void ShardedStage::wait_reduce() { root().backward().complete(); }

}  // namespace pipewright::fsdp
