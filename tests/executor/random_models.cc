#include "tests/executor/random_models.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <memory>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/schedules/registry.h"
#include "tests/executor/models.h"
#include "tests/support/catalogue/catalogue.h"
#include "tests/support/fuzz/fuzz.h"

namespace pipewright::executor {
namespace {

using tests::Chance;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kRows = 4, kWidth = 4;
constexpr int kWeights = 3, kSharedPerStage = 2, kMicrobatches = 4;

// x w^T, with a backward that also adds the gradient of w to a buffer, and one for each call if
// `counts`.
struct Fused : torch::autograd::Function<Fused> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            const at::Tensor& buffer, bool counts) {
    // A checkpointed part passes on missing gradients, which would otherwise become zeros.
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({x, w});
    ctx->saved_data["counts"] = counts;
    ctx->saved_data["buffer"] = buffer;
    return x.mm(w.t());
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return variable_list(4);
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor of_weight = grads[0].t().mm(saved[0]);
    ctx->saved_data["buffer"].toTensor().add_(of_weight).add_(
        ctx->saved_data["counts"].toBool() ? 1 : 0);
    return {grads[0].mm(saved[1]), of_weight, {}, {}};
  }
};

enum class Kind {
  kProduct,
  kBias,
  kAdd,
  kMultiply,
  kShared,
  kFused,
  kViews,
  kWriteToView,
  kWrite,
  kScale,
  kDetach,
  kWeight,
  kNumKinds,
};

struct Op {
  Kind kind;
  size_t a, b;  // values
  size_t w;     // a weight, or a shared expression
};

// What a stage computes: each operation appends a value to those of the inputs.
struct StagePlan {
  std::vector<Op> ops;
  size_t checkpointed_from = 0, checkpointed_to = 0;  // these operations are a checkpointed part
  bool writes_to_input = false;  // its first input: what another stage has returned
  std::vector<size_t> outputs;
  bool outputs_are_views = false;  // of what is computed for them
};

struct ModelPlan {
  std::vector<StagePlan> stages;
  std::vector<std::vector<bool>> frozen;  // by stage and weight
  bool loss_uses_value = false;           // of the last stage, besides its outputs
  bool loss_writes = false;
  bool inputs_require_grad = false;
  // Whether each backward runs once per microbatch, and not for the loss and again for the rest.
  bool counts = false;

  bool checkpoints() const {
    return std::ranges::any_of(stages, [](const StagePlan& stage) {
      return stage.checkpointed_to > stage.checkpointed_from;
    });
  }
};

ModelPlan draw_model(Chance& chance, int num_stages) {
  ModelPlan plan;
  size_t num_inputs = 1 + static_cast<size_t>(chance.below(2));
  for (int stage = 0; stage < num_stages; ++stage) {
    const bool follows_views = stage > 0 && plan.stages.back().outputs_are_views;
    StagePlan& of_stage = plan.stages.emplace_back();
    of_stage.writes_to_input = follows_views && chance.one_in(2);
    size_t values = num_inputs;
    const auto any = [&] { return static_cast<size_t>(chance.below(values)); };
    const size_t num_ops = 2 + static_cast<size_t>(chance.below(6));
    for (size_t i = 0; i < num_ops; ++i, ++values) {
      // Most operations continue the last value, so that much depends on much.
      const size_t a = chance.one_in(3) ? any() : values - 1;
      of_stage.ops.push_back({static_cast<Kind>(chance.below(static_cast<size_t>(Kind::kNumKinds))),
                              a, any(), static_cast<size_t>(chance.below(kWeights))});
    }
    if (chance.one_in(3)) {
      of_stage.checkpointed_from = static_cast<size_t>(chance.below(num_ops));
      of_stage.checkpointed_to =
          num_ops - static_cast<size_t>(chance.below(num_ops - of_stage.checkpointed_from));
    }
    num_inputs = stage == num_stages - 1 ? 1 : 1 + static_cast<size_t>(chance.below(2));
    of_stage.outputs = {values - 1};
    while (of_stage.outputs.size() < num_inputs) of_stage.outputs.push_back(any());
    of_stage.outputs_are_views = chance.one_in(3);
    std::vector<bool>& frozen = plan.frozen.emplace_back();
    for (int w = 0; w < kWeights; ++w) frozen.push_back(chance.one_in(5));
  }
  plan.loss_uses_value = chance.one_in(3);
  plan.loss_writes = chance.one_in(3);
  plan.inputs_require_grad = chance.one_in(3);
  plan.counts = !plan.loss_uses_value && !plan.checkpoints();
  return plan;
}

// For messages.
std::string describe(const ModelPlan& plan) {
  constexpr const char* kNames[] = {"product", "bias",  "add",    "multiply",
                                    "shared",  "fused", "views",  "write to view",
                                    "write",   "scale", "detach", "weight"};
  static_assert(std::size(kNames) == static_cast<size_t>(Kind::kNumKinds));
  std::string text;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlan& stage = plan.stages[s];
    text += "stage " + std::to_string(s) + ":" + (stage.writes_to_input ? " write to input," : "");
    for (size_t i = 0; i < stage.ops.size(); ++i) {
      const Op& op = stage.ops[i];
      const bool in_part = stage.checkpointed_from <= i && i < stage.checkpointed_to;
      text += std::string(in_part ? " [" : " ") + kNames[static_cast<size_t>(op.kind)] + " " +
              std::to_string(op.a) + " " + std::to_string(op.b) + " w" + std::to_string(op.w) +
              (in_part ? "]" : "") + ",";
    }
    text += std::string(stage.outputs_are_views ? " views as" : "") + " outputs";
    for (const size_t output : stage.outputs) text += " " + std::to_string(output);
    for (size_t w = 0; w < plan.frozen[s].size(); ++w)
      text += plan.frozen[s][w] ? ", frozen w" + std::to_string(w) : "";
    text += "\n";
  }
  return text + (plan.loss_uses_value ? "the loss uses a value\n" : "") +
         (plan.loss_writes ? "the loss writes\n" : "") +
         (plan.inputs_require_grad ? "inputs require a gradient\n" : "");
}

// The tensors of one copy of the model.
struct Parts {
  std::vector<Tensors> weights;  // by stage
  std::vector<Tensors> shared;   // likewise, by all microbatches; empty: they share nothing
  Tensors buffers;               // likewise
  at::Tensor value;              // for the loss
  bool counts = false;
  bool checkpoints = false;
};

// An expression of the weights of a stage.
at::Tensor expression(const Tensors& weights, size_t index) {
  return index % kSharedPerStage == 0 ? (weights[0] + weights[1]) * 0.5
                                      : weights[1].mm(weights[2]).tanh();
}

at::Tensor compute(const Op& op, const Tensors& values, const Parts& parts, size_t stage) {
  const at::Tensor &a = values[op.a], &b = values[op.b], &w = parts.weights[stage][op.w];
  switch (op.kind) {
    case Kind::kProduct:
      return a.mm(w).tanh();
    case Kind::kBias:
      return a + w.sum(0);
    case Kind::kAdd:
      return (a + b).tanh();
    case Kind::kMultiply:
      return a * b;
    case Kind::kShared:
      return a
          .mm(parts.shared.empty() ? expression(parts.weights[stage], op.w)
                                   : parts.shared[stage][op.w % kSharedPerStage])
          .tanh();
    case Kind::kFused:
      return Fused::apply(a, w, parts.buffers[stage], parts.counts).tanh();
    case Kind::kViews:
      return at::cat({a.narrow(1, 2, 2), b.narrow(1, 0, 2)}, 1).t().contiguous().t();
    case Kind::kWriteToView: {
      at::Tensor result = a * 1;
      result.narrow(1, 1, 2).mul_(w.narrow(0, 0, 1).narrow(1, 0, 2)).add_(b.narrow(1, 0, 2));
      return result.tanh();
    }
    case Kind::kWrite: {
      at::Tensor result = a + 0.1;
      result.add_(b).clamp_(-1, 1);
      return result;
    }
    case Kind::kScale:
      return a * (w * w).mean();
    case Kind::kDetach:
      return a + b.detach();
    case Kind::kWeight:
      return w;
    case Kind::kNumKinds:
      break;
  }
  return {};
}

Tensors run_stage(const StagePlan& plan, const Tensors& inputs, Parts& parts, size_t stage) {
  Tensors values = inputs;
  const auto run_ops = [&](size_t from, size_t to, Tensors& on) {
    for (size_t i = from; i < to; ++i) on.push_back(compute(plan.ops[i], on, parts, stage));
  };
  const size_t from = plan.checkpointed_from, to = plan.checkpointed_to;
  run_ops(0, from, values);
  if (from < to) {
    // The part takes one value as its input; it captures the others.
    const size_t input = plan.ops[from].a;
    const autograd::Forward part = [&plan, &parts, values, input, from, to,
                                    stage](const Tensors& in) {
      Tensors inner = values;
      inner[input] = in[0];
      for (size_t i = from; i < to; ++i) inner.push_back(compute(plan.ops[i], inner, parts, stage));
      return Tensors(inner.begin() + static_cast<std::ptrdiff_t>(values.size()), inner.end());
    };
    for (const at::Tensor& result :
         parts.checkpoints ? autograd::checkpoint(part, {values[input]}) : part({values[input]}))
      values.push_back(result);
  }
  run_ops(std::max(from, to), plan.ops.size(), values);
  // Not a weight itself, which a loss may not use.
  parts.value = values[values.size() / 2] * 1;
  Tensors outputs;
  for (const size_t output : plan.outputs) {
    const at::Tensor& value = values[output];
    outputs.push_back(plan.outputs_are_views ? (value * 1).flatten().view(value.sizes()) : value);
  }
  return outputs;
}

PlainModel make_model(const ModelPlan& plan, uint64_t seed, bool shares, bool checkpoints) {
  Numbers numbers(seed);
  PlainModel model;
  const auto parts = std::make_shared<Parts>();
  const auto count = static_cast<int>(plan.stages.size());
  for (int stage = 0; stage < count; ++stage) {
    Tensors& weights = model.weights.emplace_back();
    for (int w = 0; w < kWeights; ++w) {
      weights.push_back(numbers.draw({kWidth, kWidth}).mul_(0.5));
      weights.back().requires_grad_(
          !plan.frozen[static_cast<size_t>(stage)][static_cast<size_t>(w)]);
    }
    parts->buffers.push_back(at::zeros({kWidth, kWidth}, at::kDouble));
  }
  parts->weights = model.weights;
  parts->counts = plan.counts;
  parts->checkpoints = checkpoints;
  // A function on a checkpointed part without weights has a backward that it has not in the part.
  if (!plan.checkpoints()) model.buffers = parts->buffers;
  model.batch.targets = {numbers.draw({kRows * kMicrobatches, kWidth})};
  for (int i = 0; i < 2; ++i) {
    model.batch.inputs.push_back(numbers.draw({kRows * kMicrobatches, kWidth}));
    model.batch.inputs.back().requires_grad_(plan.inputs_require_grad);
  }
  // Computed once per step, and used by all microbatches.
  if (shares) {
    model.before_step = [parts](int) {
      parts->shared.clear();
      for (const Tensors& w : parts->weights)
        parts->shared.push_back({expression(w, 0), expression(w, 1)});
    };
  }
  model.forward = [parts, plan](int stage, const Tensors& inputs) {
    const auto s = static_cast<size_t>(stage);
    return run_stage(plan.stages[s], inputs, *parts, s);
  };
  model.before_stage = [plan](int stage, const Tensors& inputs) {
    if (plan.stages[static_cast<size_t>(stage)].writes_to_input)
      at::Tensor(inputs[0]).add_(0.1).mul_(2);
  };
  model.loss = [parts, plan](const Tensors& outputs, const Tensors& targets) {
    at::Tensor output = outputs[0];
    if (plan.loss_uses_value) output = output + parts->value;
    if (plan.loss_writes && plan.loss_uses_value) output.mul_(0.5);
    return (output - targets[0]).square().mean();
  };
  model.retains_graph = shares;
  return model;
}

ir::Program draw_program(Chance& chance) {
  const auto schedules = tests::schedules_of_one_replica();
  while (true) {
    const schedules::ScheduleSpec& spec =
        *schedules[static_cast<size_t>(chance.below(schedules.size()))];
    const schedules::Shape shape{2, schedules::default_stages(spec, 2), kMicrobatches};
    if (!schedules::shape_error(spec, shape)) return make_program(spec, shape);
  }
}

}  // namespace

RandomCase draw_case(uint64_t seed, const Allowed& allowed) {
  Chance chance(seed);
  RandomCase drawn{.program = draw_program(chance)};
  ModelPlan plan = draw_model(chance, drawn.program.placement.num_stages());
  plan.loss_uses_value = plan.loss_uses_value && allowed.side_values;
  drawn.make = [plan, seed, shares = allowed.shares](bool checkpoints) {
    return make_model(plan, seed, shares, checkpoints);
  };
  drawn.checkpoints = plan.checkpoints();
  drawn.description = drawn.program.name + "\n" + describe(plan);
  return drawn;
}

}  // namespace pipewright::executor
