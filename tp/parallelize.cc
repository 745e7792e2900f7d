// Finds what to split, compares it between the ranks, and only then changes parameters: so an error
// is the same on all ranks and leaves the model as it was.
#include "pipewright/tp/parallelize.h"

#include <ATen/Functions.h>
#include <c10/util/StringUtil.h>
#include <fnmatch.h>
#include <torch/utils.h>

#include <algorithm>
#include <stdexcept>

#include "pipewright/autograd/hooks.h"
#include "pipewright/comms/group_collectives.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/modules/part_guard.h"
#include "pipewright/modules/unit_tree.h"
#include "pipewright/tp/part_use.h"
#include "pipewright/tp/sequence_parallel.h"
#include "pipewright/tp/split_module.h"

namespace pipewright::tp {
namespace {

using layout::TensorPlacement;

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = path.find('.', begin)) != std::string::npos; begin = end + 1)
    parts.push_back(path.substr(begin, end - begin));
  parts.push_back(path.substr(begin));
  return parts;
}

bool matches(const std::string& pattern, const std::string& path) {
  const auto wanted = parts_of(pattern), got = parts_of(path);
  return std::equal(wanted.begin(), wanted.end(), got.begin(), got.end(),
                    [](const std::string& of, const std::string& part) {
                      return fnmatch(of.c_str(), part.c_str(), 0) == 0;
                    });
}

// The device of its first parameter; modules that the plan names may have none.
at::Device device_of(const torch::nn::Module& module) {
  const std::vector<at::Tensor> parameters = module.parameters();
  return parameters.empty() ? at::Device(at::kCPU) : parameters[0].device();
}

using Styles = std::map<std::string, const Style*>;  // by path

// Whether a module around `path` has the style prepare_input.
bool is_prepared(std::string path, const Styles& styles) {
  while (!path.empty()) {
    path.resize(path.find('.') == std::string::npos ? 0 : path.rfind('.'));
    const auto around = styles.find(path);
    if (around != styles.end() && around->second->kind() == Style::Kind::kPrepareInput) return true;
  }
  return false;
}

std::string describe(const std::string& path) {
  return path.empty() ? "the module" : "`" + path + "`";
}

std::string describe(const Style& style) {
  const auto& [input, output, length, is_prepared] = style.layouts();
  return style.name() + (input ? " with input " + input->text() : "") +
         (length ? " of length " + std::to_string(*length) : "") +
         (output ? " with output " + output->text() : "") +
         (is_prepared ? " with a prepared input" : "");
}

struct Parameter {
  at::Tensor tensor;
  TensorPlacement placement;  // along the mesh dimension
  bool has_partial_grad;
};

class ParallelizedModule final : public Parallelized,
                                 public modules::Distributor,
                                 public std::enable_shared_from_this<ParallelizedModule> {
 public:
  ParallelizedModule(comms::Mesh& mesh, const std::string& dim)
      : group_(mesh.group({dim})), dim_(dim) {}

  // Completes the construction, once shared_from_this() works. Collective.
  void begin(comms::Mesh& mesh, torch::nn::Module& module, const Plan& plan,
             const Options& options) {
    std::string refusal, place;
    try {
      for (const std::string& copy : options.copies)
        place += copy + " " + std::to_string(mesh.coordinate(copy)) + ": ";
      find(module, plan);
    } catch (const std::invalid_argument& error) {
      refusal = "parallelize: " + std::string(error.what());
    }
    compare(refusal, options, device_of(module));
    if (!refusal.empty()) throw std::invalid_argument(refusal);
    split(module);
    if (group_->getSize() > 1) check_uses(module);
    if (!options.check_inputs) return;
    input_check_ =
        input_check(group_, options.copies.empty() ? nullptr : mesh.group(options.copies), place);
    modules::register_forward_hook(module, input_check_);
  }

 private:
  // Watches for parameters that a style should name.
  void check_uses(torch::nn::Module& module) {
    const auto uses = std::make_shared<ParameterUses>();
    for (const auto& named : module.named_parameters()) {
      if (named.value().defined()) {
        uses->parameters.emplace(
            named.value().unsafeGetTensorImpl(),
            ParameterUses::Parameter{ParameterUses::Use::kUnnamed, named.key()});
      }
    }
    for (const auto& [name, parameter] : parameters_) {
      const bool meets_parts = parameter.placement.dim() || parameter.has_partial_grad;
      uses->parameters.at(parameter.tensor.unsafeGetTensorImpl()).use =
          meets_parts ? ParameterUses::Use::kPart : ParameterUses::Use::kCopy;
    }
    std::map<const torch::nn::Module*, bool> take_parts;
    for (const auto& [part, hook] : hooks_) take_parts[part] = hook->takes_parts();
    const auto check = [&](const std::string& path, const torch::nn::Module& part) {
      use_checks_.push_back(part_use_check(uses, path, take_parts[&part]));
      modules::register_forward_hook(part, use_checks_.back());
    };
    check("", module);
    for (const auto& named : module.named_modules("", /*include_self=*/false))
      check(named.key(), *named.value());
  }

  // Fills hooks_ and parameters_.
  void find(torch::nn::Module& module, const Plan& plan) {
    Styles styles;
    std::map<const at::TensorImpl*, std::string> names;
    std::vector<std::pair<std::string, torch::nn::Module*>> all = {{"", &module}};
    for (const auto& named : module.named_modules("", /*include_self=*/false))
      all.emplace_back(named.key(), named.value().get());
    for (const auto& [pattern, style] : plan) {
      bool found = false;
      for (const auto& [path, part] : all) {
        if (!matches(pattern, path)) continue;
        found = true;
        if (!styles.emplace(path, &style).second) {
          throw std::invalid_argument("module `" + path + "` is named twice, the second time by `" +
                                      pattern + "`");
        }
        add(*part, path, style, names);
      }
      if (!found)
        throw std::invalid_argument("`" + pattern + "` in the plan: expected the path of a module");
    }
    for (const auto& [path, style] : styles) {
      if (!style->layouts().input_is_prepared || is_prepared(path, styles)) continue;
      throw std::invalid_argument(style->name() + " of `" + path +
                                  "`: expected a module around it with prepare_input, which "
                                  "prepares its input");
    }
    // A module outside of the plan would compute with a part of a weight.
    for (const auto& [path, part] : all) {
      if (styles.contains(path)) continue;
      for (const auto& named : part->named_parameters(/*recurse=*/false)) {
        const auto known = names.find(named.value().unsafeGetTensorImpl());
        if (known == names.end() || !parameters_.at(known->second).placement.dim()) continue;
        throw std::invalid_argument("`" + modules::join_path(path, named.key()) + "` is tied to `" +
                                    known->second +
                                    "`, which is split: expected both modules in the plan");
      }
    }
  }

  void add(torch::nn::Module& module, const std::string& path, const Style& style,
           std::map<const at::TensorImpl*, std::string>& names) {
    const std::string of = style.name() + " of " + describe(path);
    const auto refuse = [&](const std::string& what) {
      throw std::invalid_argument(of + ": " + what);
    };
    std::shared_ptr<SplitModule> hook;
    try {
      hook = split_module(module, style, of, group_);
    } catch (const std::invalid_argument& error) {
      refuse(error.what());
    }
    for (const SplitWeight& weight : hook->weights()) {
      const std::string name = modules::join_path(path, weight.name);
      if (weight.tensor.grad().defined())
        refuse("`" + weight.name + "` has a gradient: expected none before the weight is split");
      if (autograd::listener_of(weight.tensor)) {
        refuse("`" + weight.name +
               "` is wrapped by replicate or fully_shard: expected those after " + "parallelize");
      }
      const auto [known, is_new] = names.emplace(weight.tensor.unsafeGetTensorImpl(), name);
      if (is_new) {
        parameters_.emplace(name,
                            Parameter{weight.tensor, weight.placement, weight.has_partial_grad});
      } else if (parameters_.at(known->second).placement != weight.placement) {
        refuse("`" + weight.name + "` is tied to `" + known->second + "`, which is " +
               parameters_.at(known->second).placement.text() + ": expected the same, got " +
               weight.placement.text());
      }
    }
    hooks_.emplace_back(&module, std::move(hook));
    styles_.push_back(describe(style) + " of " + describe(path));
  }

  // Ranks whose plans differ would call different collectives. Takes the options apart, so that one
  // more does not compile before it is compared here.
  void compare(const std::string& refusal, const Options& options, at::Device device) {
    const auto& [check_inputs, copies] = options;
    std::vector<std::string> lines;
    if (!refusal.empty()) lines.push_back(refusal);
    lines.insert(lines.end(), styles_.begin(), styles_.end());
    lines.emplace_back(check_inputs ? "checked inputs" : "unchecked inputs");
    for (const std::string& copy : copies) lines.push_back("copies along " + copy);
    for (const auto& [name, parameter] : parameters_) {
      lines.push_back(c10::str("`", name, "`, ", parameter.tensor.scalar_type(), " ",
                               parameter.tensor.sizes(), ", ", parameter.placement.text()));
    }
    comms::compare_lines(lines, *group_, device);
  }

  void split(torch::nn::Module& module) {
    const torch::NoGradGuard no_grad;
    std::vector<at::Tensor> values;
    for (const auto& [name, parameter] : parameters_) values.push_back(parameter.tensor.detach());
    comms::broadcast_values(values, *group_);
    for (const auto& [name, parameter] : parameters_) {
      const std::optional<int> along = parameter.placement.dim();
      distribute(parameter.tensor, parameter.placement);
      if (!along) continue;
      // A copy, because a chunk would keep the whole weight alive.
      const at::Tensor part = comms::chunk_of(parameter.tensor.detach(), *along, *group_)
                                  .clone(at::MemoryFormat::Contiguous);
      parameter.tensor.set_data(
          group_->getSize() == 1
              ? part
              : modules::guarded(part, modules::PartKind::kSplit, "`" + name + "`"));
    }
    for (const auto& [name, parameter] : parameters_) {
      if (parameter.has_partial_grad)
        sums_.push_back(std::make_unique<GradientSum>(parameter.tensor, group_));
    }
    const auto distribute_others = [&](const auto& tensors) {
      for (const auto& named : tensors) {
        if (named.value().defined() && !modules::is_distributed_over(named.value(), dim_))
          distribute(named.value(), TensorPlacement::replicate());
      }
    };
    distribute_others(module.named_parameters());
    distribute_others(module.named_buffers());
    for (const auto& [part, hook] : hooks_) modules::register_forward_hook(*part, hook);
  }

  // Distributes a tensor that is still whole.
  void distribute(const at::Tensor& tensor, const TensorPlacement& placement) {
    const layout::Layout layout(layout::MeshLayout({{dim_, group_->getSize()}}), {placement},
                                tensor.sizes().vec());
    modules::distribute(tensor, {{layout, group_->getRank()}, group_.get(), weak_from_this()});
  }

  const comms::BackendPtr group_;
  const std::string dim_;
  std::vector<std::pair<torch::nn::Module*, std::shared_ptr<SplitModule>>> hooks_;
  std::vector<std::string> styles_;  // of hooks_, for messages
  std::map<std::string, Parameter> parameters_;
  std::vector<std::unique_ptr<GradientSum>> sums_;
  std::vector<std::shared_ptr<modules::ForwardHook>> use_checks_;
  std::shared_ptr<modules::ForwardHook> input_check_;  // null if not asked for
};

}  // namespace

std::string Style::name() const {
  switch (kind_) {
    case Kind::kColwise:
      return "colwise_parallel";
    case Kind::kRowwise:
      return "rowwise_parallel";
    case Kind::kSequence:
      return "sequence_parallel";
    case Kind::kPrepareInput:
      return "prepare_input";
  }
  return {};
}

Style colwise_parallel(const Style::Layouts& layouts) { return {Style::Kind::kColwise, layouts}; }
Style rowwise_parallel(const Style::Layouts& layouts) { return {Style::Kind::kRowwise, layouts}; }
Style sequence_parallel() { return {Style::Kind::kSequence, {}}; }
Style prepare_input(const Style::Layouts& layouts) { return {Style::Kind::kPrepareInput, layouts}; }

std::shared_ptr<Parallelized> parallelize(torch::nn::Module& module, const Plan& plan,
                                          comms::Mesh& mesh, const std::string& dim,
                                          const Options& options) {
  const auto result = std::make_shared<ParallelizedModule>(mesh, dim);
  result->begin(mesh, module, plan, options);
  return result;
}

}  // namespace pipewright::tp
