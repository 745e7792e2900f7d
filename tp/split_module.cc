#include "pipewright/tp/split_module.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pipewright/comms/group_collectives.h"
#include "pipewright/layout/layout.h"
#include "pipewright/modules/part_guard.h"
#include "pipewright/tp/communication.h"
#include "pipewright/tp/overlap.h"
#include "pipewright/tp/sequence_parallel.h"

namespace pipewright::tp {

namespace {

std::string describe(size_t index, const at::Tensor& input) {
  const std::string name = "input " + std::to_string(index) + " of the parallelized module, ";
  if (!input.defined()) return name + "undefined";
  const at::Tensor values = input.detach().cpu().contiguous();
  const std::string_view bytes(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  return c10::str(name, input.scalar_type(), " ", input.sizes(), " with hash ",
                  std::hash<std::string_view>()(bytes));
}

class InputCheck final : public modules::ForwardHook {
 public:
  InputCheck(comms::BackendPtr group, comms::BackendPtr copies, std::string place)
      : group_(std::move(group)), copies_(std::move(copies)), place_(std::move(place)) {}

  modules::Tensors run(const torch::nn::Module* /*module*/, const Function& forward,
                       modules::Tensors inputs) override {
    std::vector<std::string> lines;
    at::Device device = at::kCPU;
    for (const at::Tensor& input : inputs) {
      if (input.defined()) device = input.device();
      lines.push_back(describe(lines.size(), input));
    }
    std::string wrong;
    try {
      comms::compare_lines(lines, *group_, device);
    } catch (const std::invalid_argument& error) {
      wrong = place_ + error.what();
    }
    if (copies_) wrong = comms::first_text(wrong, *copies_, device);
    if (!wrong.empty()) throw std::invalid_argument(wrong);
    return forward(inputs);
  }

 private:
  const comms::BackendPtr group_, copies_;
  const std::string place_;
};

}  // namespace

std::shared_ptr<modules::ForwardHook> input_check(comms::BackendPtr group, comms::BackendPtr copies,
                                                  std::string place) {
  return std::make_shared<InputCheck>(std::move(group), std::move(copies), std::move(place));
}

namespace {

using layout::TensorPlacement;

const TensorPlacement kCopy = TensorPlacement::replicate();
const TensorPlacement kFeatures = TensorPlacement::shard(-1);

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

void check_placement(const char* what, const TensorPlacement& got) {
  if (got.split_factor() != 1)
    refuse(c10::str(what, ": expected replicate or shard, got ", got.text()));
}

// Layouts of a style after defaults, which must be one of those that it can make.
TensorPlacement one_of(const char* what, const std::optional<TensorPlacement>& asked,
                       const std::vector<TensorPlacement>& supported, bool any_shard = false) {
  if (!asked) return supported[0];
  check_placement(what, *asked);
  if (any_shard && asked->dim()) return *asked;
  std::string list;
  for (const TensorPlacement& each : supported) {
    if (each == *asked) return *asked;
    list += (list.empty() ? "" : " or ") + each.text();
  }
  refuse(c10::str(what, ": expected ", list, any_shard ? " or another shard" : "", ", got ",
                  asked->text()));
}

void expect_whole(const at::Tensor& weight, int64_t rows, int64_t columns) {
  if (weight.sizes() == at::IntArrayRef({rows, columns})) return;
  refuse(c10::str("a weight of sizes ", weight.sizes(), ": expected [", rows, ", ", columns,
                  "], a weight that nothing has split"));
}

// The forward of a module whose weights are parts.
modules::Tensors with_parts(const modules::ForwardHook::Function& forward,
                            const modules::Tensors& inputs) {
  const modules::MayReadParts may_read;
  return forward(inputs);
}

// `bias / ranks`, whose gradient is that of `bias`: every rank adds its share to a partial sum, and
// the gradient of the sum is complete on every rank.
at::Tensor share_of(const at::Tensor& bias, int ranks) {
  return bias + (bias / ranks - bias).detach();
}

// The dimension of `x` that `placement` shards. `what` is "colwise_parallel of `up`: input ".
int64_t sharded_dim(const at::Tensor& x, const TensorPlacement& placement,
                    const std::string& what) {
  const int64_t dim = placement.dim().value();
  if (-x.dim() <= dim && dim < x.dim()) return dim;
  refuse(c10::str(what, placement.text(), ": expected a tensor with dimension ", dim,
                  ", got sizes ", x.sizes()));
}

// An input that is a copy or this rank's chunk along a dimension.
class Input {
 public:
  Input(const TensorPlacement& placement, const std::optional<int64_t>& length)
      : placement_(placement), length_(length) {
    if (length_ && !placement_.dim())
      refuse("input_length: expected an input that is a shard, got " + placement_.text());
  }
  // `x` as a copy whose gradients are partial sums.
  at::Tensor gathered(const at::Tensor& x, const std::string& name,
                      const comms::BackendPtr& group) const {
    if (!placement_.dim()) return copy_to(x, group);
    const int64_t dim = sharded_dim(x, placement_, name + ": input ");
    return gather_partial(x, dim, length_.value_or(x.size(dim) * group->getSize()), group);
  }
  bool is_copy() const { return !placement_.dim(); }

 private:
  const TensorPlacement placement_;
  const std::optional<int64_t> length_;
};

// The sum of the ranks' `partial`, as a copy or as this rank's chunk along a dimension.
at::Tensor sum_of(const at::Tensor& partial, const TensorPlacement& placement,
                  const std::string& name, const comms::BackendPtr& group) {
  if (!placement.dim()) return reduce_from(partial, group);
  return reduce_scatter(partial, sharded_dim(partial, placement, name + ": output "), group);
}

class SplitLinear final : public SplitModule {
 public:
  SplitLinear(torch::nn::LinearImpl& linear, const Style& style, std::string name,
              comms::BackendPtr group)
      : linear_(linear),
        is_colwise_(style.kind() == Style::Kind::kColwise),
        is_prepared_(style.layouts().input_is_prepared),
        input_(is_colwise_
                   ? one_of("input of colwise_parallel", style.layouts().input, {kCopy},
                            /*any_shard=*/true)
                   : one_of("input of rowwise_parallel", style.layouts().input, {kFeatures, kCopy}),
               style.layouts().input_length),
        output_(is_colwise_ ? one_of("output of colwise_parallel", style.layouts().output,
                                     {kFeatures, kCopy})
                            : one_of("output of rowwise_parallel", style.layouts().output, {kCopy},
                                     /*any_shard=*/true)),
        name_(std::move(name)),
        group_(std::move(group)) {
    if (!is_colwise_ && style.layouts().input_length)
      refuse("input_length: expected colwise_parallel or prepare_input");
    if (is_prepared_ && (!is_colwise_ || style.layouts().input))
      refuse("a prepared input: expected colwise_parallel without another layout of its input");
    expect_whole(linear.weight, linear.options.out_features(), linear.options.in_features());
  }

  std::vector<SplitWeight> weights() const override {
    std::vector<SplitWeight> weights = {
        {"weight", linear_.weight, TensorPlacement::shard(is_colwise_ ? 0 : 1)}};
    if (linear_.bias.defined())
      weights.push_back({"bias", linear_.bias, is_colwise_ ? TensorPlacement::shard(0) : kCopy});
    return weights;
  }

  bool takes_parts() const override { return is_prepared_ || !input_.is_copy(); }

  modules::Tensors run(const torch::nn::Module* /*module*/, const Function& forward,
                       modules::Tensors inputs) override {
    return is_colwise_ ? colwise(forward, std::move(inputs)) : rowwise(forward, std::move(inputs));
  }

 private:
  modules::Tensors colwise(const Function& forward, modules::Tensors inputs) const {
    at::Tensor& x = inputs.at(0);
    if (!is_prepared_) x = input_.gathered(x, name_, group_);
    modules::Tensors outputs = with_parts(forward, inputs);
    if (!is_prepared_) overlap_backward(outputs[0], x);
    if (!output_.dim())
      outputs[0] = gather_from(outputs[0], -1, linear_.options.out_features(), group_);
    return outputs;
  }

  // The layer adds no bias to its partial sum: it is added once.
  modules::Tensors rowwise(const Function& forward, modules::Tensors inputs) {
    if (input_.is_copy()) inputs.at(0) = scatter_to(inputs.at(0), -1, group_);
    modules::Tensors outputs;
    {
      const WithoutBias without(linear_);
      outputs = with_parts(forward, inputs);
    }
    const at::Tensor& bias = linear_.bias;
    at::Tensor& y = outputs[0];
    if (output_.dim() && bias.defined()) y = y + share_of(bias, group_->getSize());
    y = sum_of(y, output_, name_, group_);
    if (!output_.dim() && bias.defined()) y = y + bias;
    return outputs;
  }

  class WithoutBias {
   public:
    explicit WithoutBias(torch::nn::LinearImpl& linear) : linear_(linear) {
      std::swap(linear_.bias, bias_);
    }
    ~WithoutBias() { std::swap(linear_.bias, bias_); }
    WithoutBias(const WithoutBias&) = delete;
    WithoutBias& operator=(const WithoutBias&) = delete;

   private:
    torch::nn::LinearImpl& linear_;
    at::Tensor bias_;
  };

  torch::nn::LinearImpl& linear_;
  const bool is_colwise_, is_prepared_;
  const Input input_;
  const TensorPlacement output_;
  const std::string name_;
  const comms::BackendPtr group_;
};

class SplitEmbedding final : public SplitModule {
 public:
  SplitEmbedding(torch::nn::EmbeddingImpl& embedding, const Style& style, std::string name,
                 comms::BackendPtr group)
      : embedding_(embedding),
        is_colwise_(style.kind() == Style::Kind::kColwise),
        output_(is_colwise_ ? one_of("output of colwise_parallel", style.layouts().output,
                                     {kFeatures, kCopy})
                            : one_of("output of rowwise_parallel", style.layouts().output, {kCopy},
                                     /*any_shard=*/true)),
        name_(std::move(name)),
        group_(std::move(group)) {
    Input(one_of("input of an Embedding", style.layouts().input, {kCopy}),
          style.layouts().input_length);
    if (style.layouts().input_is_prepared)
      refuse("a prepared input: expected a Linear, got an Embedding");
    const auto& options = embedding.options;
    if (options.max_norm())
      refuse("an Embedding with max_norm: expected one without, because no rank knows whole rows");
    if (!is_colwise_ && options.padding_idx())
      refuse("rowwise_parallel of an Embedding with padding_idx: expected one without");
    expect_whole(embedding.weight, options.num_embeddings(), options.embedding_dim());
  }

  std::vector<SplitWeight> weights() const override {
    return {{"weight", embedding_.weight, TensorPlacement::shard(is_colwise_ ? 1 : 0)}};
  }

  bool takes_parts() const override { return false; }

  modules::Tensors run(const torch::nn::Module* /*module*/, const Function& forward,
                       modules::Tensors inputs) override {
    if (is_colwise_) {
      modules::Tensors outputs = with_parts(forward, inputs);
      if (!output_.dim())
        outputs[0] = gather_from(outputs[0], -1, embedding_.options.embedding_dim(), group_);
      return outputs;
    }
    return {sum_of(rows_of_mine(forward, inputs.at(0)), output_, name_, group_)};
  }

 private:
  // The rows of this rank's part of the vocabulary, and zeros for all other indices.
  at::Tensor rows_of_mine(const Function& forward, const at::Tensor& indices) const {
    const layout::Chunk mine =
        layout::chunk_of(embedding_.options.num_embeddings(), group_->getSize(), group_->getRank());
    if (mine.length == 0) {  // no index is valid; the sum of no weights keeps the gradient defined
      std::vector<int64_t> sizes = indices.sizes().vec();
      sizes.push_back(embedding_.options.embedding_dim());
      return at::zeros(sizes, embedding_.weight.options()) + embedding_.weight.sum();
    }
    const at::Tensor local = indices - mine.begin;
    const at::Tensor others = local.lt(0).logical_or(local.ge(mine.length));
    const at::Tensor rows = with_parts(forward, {local.masked_fill(others, 0)}).at(0);
    return rows.masked_fill(others.unsqueeze(-1), 0);
  }

  torch::nn::EmbeddingImpl& embedding_;
  const bool is_colwise_;
  const TensorPlacement output_;
  const std::string name_;
  const comms::BackendPtr group_;
};

// A module of any type whose first input becomes a copy.
class PreparedInput final : public SplitModule {
 public:
  PreparedInput(const Style::Layouts& layouts, std::string name, comms::BackendPtr group)
      : input_(one_of("input of prepare_input", layouts.input, {kCopy}, /*any_shard=*/true),
               layouts.input_length),
        name_(std::move(name)),
        group_(std::move(group)) {
    if (layouts.output || layouts.input_is_prepared)
      refuse("expected a layout of the input and nothing else");
  }
  std::vector<SplitWeight> weights() const override { return {}; }
  bool takes_parts() const override { return !input_.is_copy(); }
  modules::Tensors run(const torch::nn::Module* /*module*/, const Function& forward,
                       modules::Tensors inputs) override {
    inputs.at(0) = input_.gathered(inputs.at(0), name_, group_);
    return forward(inputs);
  }

 private:
  const Input input_;
  const std::string name_;
  const comms::BackendPtr group_;
};

}  // namespace

std::shared_ptr<SplitModule> split_module(torch::nn::Module& module, const Style& style,
                                          const std::string& name, const comms::BackendPtr& group) {
  if (style.kind() == Style::Kind::kPrepareInput)
    return std::make_shared<PreparedInput>(style.layouts(), name, group);
  if (style.kind() == Style::Kind::kSequence) return sequence_parallel_module(module, group);
  if (auto* linear = dynamic_cast<torch::nn::LinearImpl*>(&module))
    return std::make_shared<SplitLinear>(*linear, style, name, group);
  if (auto* embedding = dynamic_cast<torch::nn::EmbeddingImpl*>(&module))
    return std::make_shared<SplitEmbedding>(*embedding, style, name, group);
  refuse(c10::str("expected a Linear or an Embedding, got ", module.name()));
}

}  // namespace pipewright::tp
