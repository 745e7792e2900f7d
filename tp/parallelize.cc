// Finds what to split, compares it between the ranks, and only then changes parameters: so an error
// is the same on all ranks and leaves the model as it was.
#include "pipewright/tp/parallelize.h"

#include <ATen/Functions.h>
#include <c10/util/StringUtil.h>
#include <fnmatch.h>
#include <torch/utils.h>

#include <algorithm>
#include <stdexcept>

#include "pipewright/autograd/grad_hooks.h"
#include "pipewright/comms/agreement.h"
#include "pipewright/comms/chunk.h"
#include "pipewright/modules/names.h"
#include "pipewright/tp/communication.h"
#include "pipewright/tp/split_module.h"

namespace pipewright::tp {
namespace {

using comms::TensorPlacement;

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

at::Tensor own_chunk(const at::Tensor& whole, const TensorPlacement& placement,
                     c10d::Backend& group) {
  if (!placement.dim()) return whole;
  const comms::Chunk chunk =
      comms::chunk_of(whole.size(*placement.dim()), group.getSize(), group.getRank());
  return whole.narrow(*placement.dim(), chunk.begin, chunk.length);
}

struct Parameter {
  at::Tensor tensor;
  TensorPlacement placement;  // along the mesh dimension
};

class ParallelizedModule final : public Parallelized {
 public:
  ParallelizedModule(torch::nn::Module& module, const Plan& plan, comms::Mesh& mesh,
                     const std::string& dim)
      : group_(mesh.group({dim})) {
    std::string refusal;
    try {
      find(module, plan);
    } catch (const std::invalid_argument& error) {
      refusal = "parallelize: " + std::string(error.what());
    }
    compare(refusal);
    if (!refusal.empty()) throw std::invalid_argument(refusal);
    split(mesh.layout(), dim);
  }

  const std::map<std::string, comms::Layout>& layouts() const override { return layouts_; }

  at::Tensor full_tensor(const std::string& name) override {
    const auto& [parameter, layout] = at_name(name);
    const torch::NoGradGuard no_grad;
    const at::Tensor part = parameter.tensor.detach();
    if (!parameter.placement.dim() || group_->getSize() == 1) return part.clone();
    const int64_t along = *parameter.placement.dim();
    return gather_from(part, along, layout.shape()[static_cast<size_t>(along)], group_);
  }

  void set_full_tensor(const std::string& name, const at::Tensor& whole) override {
    const auto& [parameter, layout] = at_name(name);
    if (!std::ranges::equal(whole.sizes(), layout.shape())) {
      throw std::invalid_argument(c10::str(
          "set_full_tensor of `", name, "`: expected sizes ",
          at::IntArrayRef(layout.shape().data(), layout.shape().size()), ", got ", whole.sizes()));
    }
    const at::Tensor part = own_chunk(whole, parameter.placement, *group_);
    if (part.sizes() != parameter.tensor.sizes()) {
      throw std::invalid_argument(
          c10::str("set_full_tensor of `", name, "`: expected a parameter of sizes ", part.sizes(),
                   ", got ", parameter.tensor.sizes(), ": a wrapper has sharded it"));
    }
    const torch::NoGradGuard no_grad;
    parameter.tensor.copy_(part);
  }

 private:
  // Fills hooks_ and parameters_.
  void find(torch::nn::Module& module, const Plan& plan) {
    std::map<std::string, const Style*> styles;  // by path
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
  }

  void add(torch::nn::Module& module, const std::string& path, const Style& style,
           std::map<const at::TensorImpl*, std::string>& names) {
    const auto refuse = [&](const std::string& what) {
      throw std::invalid_argument(style.name() + " of " +
                                  (path.empty() ? "the module" : "`" + path + "`") + ": " + what);
    };
    std::shared_ptr<SplitModule> hook;
    try {
      hook = split_module(module, style, group_);
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
        parameters_.emplace(name, Parameter{weight.tensor, weight.placement});
      } else if (parameters_.at(known->second).placement != weight.placement) {
        refuse("`" + weight.name + "` is tied to `" + known->second + "`, which is " +
               parameters_.at(known->second).placement.text() + ": expected the same, got " +
               weight.placement.text());
      }
    }
    hooks_.emplace_back(&module, std::move(hook));
  }

  void compare(const std::string& refusal) {
    std::vector<std::string> lines;
    if (!refusal.empty()) lines.push_back(refusal);
    at::Device device = at::kCPU;
    for (const auto& [name, parameter] : parameters_) {
      device = parameter.tensor.device();
      lines.push_back(c10::str("`", name, "`, ", parameter.tensor.scalar_type(), " ",
                               parameter.tensor.sizes(), ", ", parameter.placement.text()));
    }
    comms::compare_lines(lines, *group_, device);
  }

  void split(const comms::MeshLayout& mesh, const std::string& dim) {
    const torch::NoGradGuard no_grad;
    std::vector<at::Tensor> values;
    for (const auto& [name, parameter] : parameters_) values.push_back(parameter.tensor.detach());
    comms::broadcast_values(values, *group_);
    for (auto& [name, parameter] : parameters_) {
      std::vector<TensorPlacement> placements;
      for (const comms::MeshDim& each : mesh.dims())
        placements.push_back(each.name == dim ? parameter.placement : TensorPlacement::replicate());
      layouts_.emplace(name, comms::Layout(mesh, placements, parameter.tensor.sizes().vec()));
      if (parameter.placement.dim()) {
        // A copy, because a chunk would keep the whole weight alive.
        parameter.tensor.set_data(own_chunk(parameter.tensor.detach(), parameter.placement, *group_)
                                      .clone(at::MemoryFormat::Contiguous));
      }
    }
    for (const auto& [module, hook] : hooks_) modules::register_forward_hook(*module, hook);
  }

  std::pair<const Parameter&, const comms::Layout&> at_name(const std::string& name) const {
    const auto found = parameters_.find(name);
    if (found == parameters_.end())
      throw std::invalid_argument("`" + name +
                                  "`: expected a parameter that parallelize has split or copied");
    return {found->second, layouts_.at(name)};
  }

  const comms::BackendPtr group_;
  std::vector<std::pair<torch::nn::Module*, std::shared_ptr<SplitModule>>> hooks_;
  std::map<std::string, Parameter> parameters_;
  std::map<std::string, comms::Layout> layouts_;
};

}  // namespace

std::string Style::name() const {
  return kind_ == Kind::kColwise ? "colwise_parallel" : "rowwise_parallel";
}

Style colwise_parallel(const Style::Layouts& layouts) { return {Style::Kind::kColwise, layouts}; }
Style rowwise_parallel(const Style::Layouts& layouts) { return {Style::Kind::kRowwise, layouts}; }

std::shared_ptr<Parallelized> parallelize(torch::nn::Module& module, const Plan& plan,
                                          comms::Mesh& mesh, const std::string& dim) {
  return std::make_shared<ParallelizedModule>(module, plan, mesh, dim);
}

}  // namespace pipewright::tp
