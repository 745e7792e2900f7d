// LibTorch looks up the default generator of the CPU inside of its kernels, in a static variable.
// But a kernel that gets a generator as an argument uses that. So each operator with such an
// argument has one more kernel, under a dispatch key that comes before all others and that a scope
// includes on its thread: it fills in the missing argument and calls the next kernel.
#include "pipewright/autograd/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "pipewright/autograd/node_pointer.h"
#include "pipewright/autograd/outside_writes.h"
#include "pipewright/ir/errors.h"

namespace pipewright::autograd {
namespace {

constexpr auto kDrawKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local at::Generator current;  // undefined outside of scopes
thread_local int64_t draws = 0;

bool takes_generator(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), [](const c10::Argument& argument) {
    return *argument.type() == *c10::OptionalType::create(c10::GeneratorType::get());
  });
}

bool is_elsewhere(const c10::IValue& value) {
  return (value.isTensor() && value.toTensor().defined() && !value.toTensor().is_cpu()) ||
         (value.isDevice() && !value.toDevice().is_cpu());
}

void fill_in_generator(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack) {
  const auto& arguments = operation.schema().arguments();
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(arguments.size());
  if (current.defined() && std::none_of(first, stack->end(), is_elsewhere)) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = first[static_cast<std::ptrdiff_t>(i)];
      if (value.isNone() &&
          *arguments[i].type() == *c10::OptionalType::create(c10::GeneratorType::get())) {
        value = current;
        ++draws;
      }
    }
  }
  operation.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kDrawKey),
                            stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, library) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto operation = c10::Dispatcher::singleton().findSchema(name);
    if (name.name.starts_with("aten::") && operation && takes_generator(operation->schema())) {
      const std::string full =
          name.name + (name.overload_name.empty() ? "" : ".") + name.overload_name;
      library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&fill_in_generator>());
    }
  }
}

}  // namespace

GeneratorScope::GeneratorScope(uint64_t seed)
    : GeneratorScope(at::detail::createCPUGenerator(seed)) {}

GeneratorScope::GeneratorScope(at::Generator generator)
    : outer_(std::exchange(current, std::move(generator))) {
  c10::impl::tls_set_dispatch_key_included(kDrawKey, true);
}

GeneratorScope::~GeneratorScope() {
  current = std::move(outer_);
  c10::impl::tls_set_dispatch_key_included(kDrawKey, current.defined());
}

at::Generator cpu_generator() {
  return current.defined() ? current : at::detail::getDefaultCPUGenerator();
}

int64_t draw_count() { return draws; }

// A checkpointed part is one node of the outer graph. Its forward runs without grad mode, so it
// stores nothing but its inputs, and the results that a policy keeps. When backward reaches the
// node, apply() detaches the inputs, runs the forward again with grad mode on, and runs an inner
// backward through the new graph: a full one, or the I half of a split one, whose W half goes to
// the WeightWork in the context.
//
// Invariant: apply() runs once, under a split backward in I (HidesWeights). Parts nest: the second
// forward of an outer part creates the nodes of the inner ones, which run theirs inside the outer
// part's backward.
//
// A checkpointed part costs one additional forward; with parts nested to depth d, the innermost
// costs d.

namespace {

using torch::autograd::variable_list;

thread_local std::shared_ptr<BackwardContext> current_context;
thread_local int64_t count_of_parts = 0;
thread_local bool in_first_forward = false, in_second_forward = false;

// Sets a flag of the thread while it lives.
class FlagScope {
 public:
  explicit FlagScope(bool* flag) : flag_(*flag), outer_(std::exchange(*flag, true)) {}
  ~FlagScope() { flag_ = outer_; }
  FlagScope(const FlagScope&) = delete;
  FlagScope& operator=(const FlagScope&) = delete;

 private:
  bool& flag_;
  const bool outer_;
};

// A snapshot of the random generators that a part may draw from.
class GeneratorStates {
 public:
  explicit GeneratorStates(const variable_list& inputs) {
    save(cpu_generator());
    for (const at::Tensor& input : inputs) {
      if (input.defined() && !input.is_cpu())
        save(at::globalContext().defaultGenerator(input.device()));
    }
  }

  const at::Generator& cpu() const { return states_.front().first; }

  at::Tensor cpu_state() const { return state_of(cpu()); }

  // Sets the generators to this snapshot, and returns one of what they were.
  GeneratorStates exchange() const {
    GeneratorStates before;
    for (auto [generator, state] : states_) {
      before.save(generator);
      const std::lock_guard lock(generator.mutex());
      generator.set_state(state);
    }
    return before;
  }

 private:
  GeneratorStates() = default;

  void save(at::Generator generator) {
    for (const auto& [known, state] : states_) {
      if (known == generator) return;
    }
    states_.emplace_back(generator, state_of(generator));
  }

  static at::Tensor state_of(at::Generator generator) {
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  }

  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

// The autocast state of this thread on the devices of a part.
class AutocastStates {
 public:
  explicit AutocastStates(const variable_list& inputs) {
    save(at::kCPU);
    for (const at::Tensor& input : inputs) {
      if (input.defined() && !input.is_cpu()) save(input.device().type());
    }
  }

  // Sets this thread's state to this snapshot, and returns one of what it was.
  AutocastStates exchange() const {
    AutocastStates before;
    for (const State& state : states_) {
      before.save(state.device);
      at::autocast::set_autocast_enabled(state.device, state.enabled);
      at::autocast::set_autocast_dtype(state.device, state.dtype);
    }
    at::autocast::set_autocast_cache_enabled(cache_);
    return before;
  }

 private:
  struct State {
    at::DeviceType device;
    bool enabled;
    at::ScalarType dtype;
  };
  AutocastStates() = default;

  void save(at::DeviceType device) {
    for (const State& known : states_) {
      if (known.device == device) return;
    }
    states_.push_back({device, at::autocast::is_autocast_enabled(device),
                       at::autocast::get_autocast_dtype(device)});
  }

  std::vector<State> states_;
  bool cache_ = at::autocast::is_autocast_cache_enabled();
};

// Sets a state to a snapshot, and restores it when it goes out of scope.
template <typename States>
class Replayed {
 public:
  explicit Replayed(const States& states) : before_(states.exchange()) {}
  ~Replayed() { before_.exchange(); }
  Replayed(const Replayed&) = delete;
  Replayed& operator=(const Replayed&) = delete;

 private:
  const States before_;
};

// A scope of autocast's cache of cast weights, which the outermost scope clears.
struct AutocastScope {
  AutocastScope() { at::autocast::increment_nesting(); }
  ~AutocastScope() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;
};

class CheckpointNode final : public HidesWeights {
 public:
  CheckpointNode(Forward forward, const variable_list& inputs, const KeepPolicy& policy)
      : forward_(std::move(forward)),
        kept_(policy),
        generators_(inputs),
        autocast_(inputs),
        context_(current_context ? current_context : std::make_shared<BackwardContext>()) {
    for (const at::Tensor& input : inputs) inputs_.emplace_back(input, /*is_output=*/false);
  }

  std::string name() const override { return "Checkpoint"; }

  // With another copy of the function, whose state the second forward must not see.
  variable_list first_forward(const Forward& forward, const variable_list& inputs) {
    const FlagScope scope(&in_first_forward);
    const c10::AutoGradMode disabled(false);
    const GeneratorScope generator_scope(generators_.cpu());
    const int64_t drawn = draw_count();
    variable_list outputs =
        writes_.record([&] { return kept_.keep([&] { return forward(inputs); }); });
    if (draw_count() != drawn) drawn_until_ = generators_.cpu_state();
    return outputs;
  }

  // Indices of the differentiable outputs.
  std::vector<size_t> differentiable;

  // The second forward; apply() runs it if it has not run.
  void recompute() {
    if (second_) return;
    variable_list inputs;
    for (const torch::autograd::SavedVariable& saved : inputs_) {
      const at::Tensor input = saved.unpack();
      inputs.push_back(input.defined() ? input.detach().set_requires_grad(input.requires_grad())
                                       : input);
    }
    // The first forward has updated running statistics and the like already.
    SecondForward second{.inputs = std::move(inputs), .values = writes_.values()};
    {
      const FlagScope in_second(&in_second_forward);
      const c10::AutoGradMode enabled(true);
      // This may be another thread than that of the forward.
      const GeneratorScope generator_scope(generators_.cpu());
      const Replayed generators(generators_);
      const AutocastScope autocast_scope;
      const Replayed autocast(autocast_);
      const BackwardScope scope(context_);  // for parts nested in this one
      const variable_list outputs = kept_.reuse([&] { return forward_(second.inputs); });
      expect_same_draws();
      for (const size_t output : differentiable)
        second.roots.push_back(root_of(outputs.at(output)));
    }
    second.nodes.end();
    second_ = std::move(second);
  }

  variable_list apply(variable_list&& grads) override {
    TORCH_CHECK(forward_, "checkpoint: backward through a part a second time");
    const std::shared_ptr<BackwardContext> context = context_;
    recompute();
    SecondForward second = *std::exchange(second_, std::nullopt);
    variable_list input_grads;
    if (context->weight_work) {
      input_grads =
          backward_input(second.roots, grads, second.inputs, second.nodes, *context->weight_work);
    } else {
      full_backward(second.roots, grads, second.nodes);
      input_grads = take_grads(second.inputs);
    }
    // Not earlier: backward may read what the second forward has written.
    second.values.restore();
    return input_grads;
  }

  void release_variables() override {
    inputs_.clear();
    kept_.clear();
    forward_ = nullptr;
    second_.reset();
  }

 private:
  // The graph of the second forward, until backward has gone through it.
  struct SecondForward {
    variable_list inputs;
    OutsideWrites::Values values;  // from before it
    NodeRange nodes = {};
    torch::autograd::edge_list roots = {};
  };

  void expect_same_draws() const {
    if (!drawn_until_.defined() || at::equal(drawn_until_, generators_.cpu_state())) return;
    throw ContractError(
        "checkpoint: expected a part to draw the same random numbers on the CPU in both forwards, "
        "got others: another thread draws from the generator of the process too, or the part does "
        "not repeat what it does. Threads that draw random numbers each need a GeneratorScope "
        "(autograd/checkpoint.h)");
  }

  Forward forward_;
  KeptResults kept_;
  std::vector<torch::autograd::SavedVariable> inputs_;
  const GeneratorStates generators_;
  at::Tensor drawn_until_;  // the state after the first forward; undefined if it drew nothing
  OutsideWrites writes_;
  const AutocastStates autocast_;
  const std::shared_ptr<BackwardContext> context_;
  std::optional<SecondForward> second_;
};

}  // namespace

std::vector<at::Tensor> checkpoint_function(Forward forward, const std::vector<at::Tensor>& inputs,
                                            const KeepPolicy& policy) {
  // The second forward of a part around this one will find a part here.
  if (!c10::GradMode::is_enabled()) return KeptResults({}).keep([&] { return forward(inputs); });
  ++count_of_parts;
  const auto node = make_node<CheckpointNode>(forward, inputs, policy);
  variable_list outputs = node->first_forward(forward, inputs);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !(outputs[i].is_floating_point() || outputs[i].is_complex()))
      continue;
    // An input that needs no gradient needs none as an output.
    const auto passes_through = [&](const at::Tensor& input) {
      return input.defined() && !input.requires_grad() && input.is_alias_of(outputs[i]);
    };
    if (std::ranges::any_of(inputs, passes_through)) continue;
    // An output may be the same tensor as an input or a weight.
    outputs[i] = outputs[i].detach();
    torch::autograd::create_gradient_edge(outputs[i], node);
    node->differentiable.push_back(i);
  }
  return outputs;
}

int64_t checkpoint_count() { return count_of_parts; }

bool is_in_first_forward() { return in_first_forward; }

bool may_be_second_forward() {
  return in_second_forward || torch::autograd::get_current_graph_task_id() != -1;
}

void recompute(const torch::autograd::edge_list& roots) {
  for (const torch::autograd::Edge& root : roots) {
    if (auto* const part = dynamic_cast<CheckpointNode*>(root.function.get())) part->recompute();
  }
}

BackwardScope::BackwardScope(std::shared_ptr<BackwardContext> context)
    : outer_(std::exchange(current_context, std::move(context))) {}

BackwardScope::~BackwardScope() { current_context = std::move(outer_); }

}  // namespace pipewright::autograd
