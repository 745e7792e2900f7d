// All modules of torch::nn as stages. The module itself, called directly, is the judge.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/enum.h>
#include <torch/nn/modules.h>
#include <torch/utils.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "pipewright/executor/module_stage.h"

namespace pipewright::executor {
namespace {

using at::Tensor;
namespace nn = torch::nn;

using Pair = std::tuple<Tensor, Tensor>;

Tensors flat(const Tensor& output) { return {output}; }
Tensors flat(const Pair& outputs) { return {std::get<0>(outputs), std::get<1>(outputs)}; }
Tensors flat(const std::tuple<Tensor, Pair>& outputs) {
  const auto& [hidden, cell] = std::get<1>(outputs);
  return {std::get<0>(outputs), hidden, cell};
}

struct Results {
  Tensors outputs, grads;
};

using Function = std::function<Tensors(const Tensors& inputs)>;

// Outputs and gradients of `function`; the same random numbers each time.
Results results_of(const Tensors& parameters, const Tensors& inputs, const Function& function) {
  Tensors leaves;
  for (const Tensor& input : inputs) {
    const bool differentiable = input.defined() && input.requires_grad();
    leaves.push_back(differentiable ? input.detach().clone().set_requires_grad(true) : input);
  }
  torch::manual_seed(7);
  Results results{function(leaves), {}};
  Tensor loss = at::zeros({}, at::kDouble);
  for (const Tensor& output : results.outputs) {
    if (!output.requires_grad()) continue;
    const Tensor weights = at::arange(1, 1 + output.numel(), output.options().requires_grad(false));
    loss = loss + (output.flatten() * weights).sum();
  }
  if (loss.requires_grad()) loss.backward();
  for (const Tensor& leaf : leaves) results.grads.push_back(leaf.defined() ? leaf.grad() : leaf);
  for (const Tensor& parameter : parameters) {
    results.grads.push_back(parameter.grad().defined() ? parameter.grad().clone() : Tensor());
    parameter.mutable_grad() = Tensor();
  }
  return results;
}

void expect_equal(const Tensors& got, const Tensors& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), expected[i].defined()) << what << " " << i;
    if (!got[i].defined()) continue;
    EXPECT_TRUE(at::equal(got[i], expected[i])) << what << " " << i;
  }
}

void compare(const std::string& name, nn::Module& module, Stage& stage, const Tensors& inputs,
             const Function& direct) {
  SCOPED_TRACE(name);
  module.to(at::kDouble);
  const Results expected = results_of(module.parameters(), inputs, direct);
  const Results got = results_of(module.parameters(), inputs,
                                 [&](const Tensors& in) { return stage.forward(0, in); });
  expect_equal(got.outputs, expected.outputs, "output");
  expect_equal(got.grads, expected.grads, "gradient");
}

// The inputs are the first N arguments.
template <size_t N, typename Holder>
void compare_first(const std::string& name, Holder module, const Tensors& inputs) {
  ASSERT_EQ(inputs.size(), N) << name;
  compare(name, *module, *make_stage(module), inputs, [&](const Tensors& in) {
    return [&]<size_t... I>(std::index_sequence<I...>) { return flat(module->forward(in[I]...)); }
    (std::make_index_sequence<N>());
  });
}

#define STAGE(NUM_INPUTS, MODULE, ...) \
  compare_first<NUM_INPUTS>(#MODULE, MODULE, Tensors{__VA_ARGS__})

Tensor values(at::IntArrayRef sizes) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return at::sin(at::arange(1, 1 + numel, at::kDouble)).view(sizes).requires_grad_();
}
Tensor integers(std::vector<int64_t> numbers) { return at::tensor(numbers, at::kLong); }

TEST(TorchModules, Layers) {
  const Tensor x = values({2, 3});
  STAGE(1, nn::Identity(), x);
  STAGE(1, nn::Linear(3, 4), x);
  STAGE(1, nn::Flatten(), values({2, 3, 4}));
  STAGE(1, nn::Unflatten(nn::UnflattenOptions(1, {1, 3})), x);
  STAGE(2, nn::Bilinear(3, 2, 4), x, values({2, 2}));
  STAGE(1, nn::Functional(at::sigmoid), x);
  STAGE(1, nn::Sequential(nn::Linear(3, 4), nn::Tanh()), x);
  STAGE(2, nn::Sequential(nn::Bilinear(3, 3, 4), nn::Tanh()), x, values({2, 3}));
  STAGE(1, nn::Embedding(5, 3), integers({4, 0, 4}));
  STAGE(1, nn::EmbeddingBag(5, 3), integers({4, 0, 4, 1}).view({2, 2}));
  STAGE(2, nn::EmbeddingBag(5, 3), integers({4, 0, 4, 1}), integers({0, 3}));
  const nn::EmbeddingBagOptions sum = nn::EmbeddingBagOptions(5, 3).mode(torch::kSum);
  STAGE(3, nn::EmbeddingBag(sum), integers({4, 0, 4, 1}), integers({0, 3}), values({4}));
  STAGE(2, nn::CosineSimilarity(), x, values({2, 3}) + 1);
  STAGE(2, nn::PairwiseDistance(), x, values({2, 3}) + 1);
  STAGE(1, nn::Fold(nn::FoldOptions({4, 4}, {2, 2})), values({2, 8, 9}));
  STAGE(1, nn::Unfold(nn::UnfoldOptions({2, 2})), values({2, 3, 4, 4}));
  STAGE(1, nn::PixelShuffle(2), values({2, 8, 3, 3}));
  STAGE(1, nn::PixelUnshuffle(2), values({2, 2, 4, 4}));
  STAGE(1, nn::Upsample(nn::UpsampleOptions().scale_factor(std::vector<double>{2})),
        values({2, 3, 4}));
}

TEST(TorchModules, Convolutions) {
  const Tensor line = values({2, 3, 8}), plane = values({2, 3, 8, 8}),
               space = values({2, 3, 4, 4, 4});
  STAGE(1, nn::Conv1d(3, 2, 3), line);
  STAGE(1, nn::Conv2d(3, 2, 3), plane);
  STAGE(1, nn::Conv3d(3, 2, 3), space);
  STAGE(1, nn::ConvTranspose1d(3, 2, 3), line);
  STAGE(1, nn::ConvTranspose2d(3, 2, 3), plane);
  STAGE(1, nn::ConvTranspose3d(3, 2, 3), space);
}

TEST(TorchModules, Activations) {
  const Tensor x = values({4, 6}), image = values({2, 3, 4, 4});
  STAGE(1, nn::ELU(), x);
  STAGE(1, nn::SELU(), x);
  STAGE(1, nn::Hardshrink(), x);
  STAGE(1, nn::Hardtanh(), x);
  STAGE(1, nn::LeakyReLU(), x);
  STAGE(1, nn::LogSigmoid(), x);
  STAGE(1, nn::Softmax(1), x);
  STAGE(1, nn::Softmin(1), x);
  STAGE(1, nn::LogSoftmax(1), x);
  STAGE(1, nn::Softmax2d(), image);
  STAGE(1, nn::PReLU(), x);
  STAGE(1, nn::ReLU(), x);
  STAGE(1, nn::ReLU6(), x);
  STAGE(1, nn::RReLU(), x);
  STAGE(1, nn::CELU(), x);
  STAGE(1, nn::GLU(), x);
  STAGE(1, nn::GELU(), x);
  STAGE(1, nn::SiLU(), x);
  STAGE(1, nn::Mish(), x);
  STAGE(1, nn::Sigmoid(), x);
  STAGE(1, nn::Softplus(), x);
  STAGE(1, nn::Softshrink(), x);
  STAGE(1, nn::Softsign(), x);
  STAGE(1, nn::Tanh(), x);
  STAGE(1, nn::Tanhshrink(), x);
  STAGE(1, nn::Threshold(0.1, 20), x);
  STAGE(1, nn::Dropout(), x);
  STAGE(1, nn::Dropout2d(), image);
  STAGE(1, nn::Dropout3d(), values({2, 3, 2, 2, 2}));
  STAGE(1, nn::AlphaDropout(), x);
  STAGE(1, nn::FeatureAlphaDropout(), image);
}

TEST(TorchModules, Normalization) {
  const Tensor line = values({2, 4, 6}), plane = values({2, 4, 6, 6}),
               space = values({2, 4, 2, 2, 2});
  STAGE(1, nn::BatchNorm1d(4), line);
  STAGE(1, nn::BatchNorm2d(4), plane);
  STAGE(1, nn::BatchNorm3d(4), space);
  STAGE(1, nn::InstanceNorm1d(4), line);
  STAGE(1, nn::InstanceNorm2d(4), plane);
  STAGE(1, nn::InstanceNorm3d(4), space);
  STAGE(1, nn::LayerNorm(nn::LayerNormOptions({6})), line);
  STAGE(1, nn::GroupNorm(2, 4), line);
  STAGE(1, nn::LocalResponseNorm(2), plane);
  STAGE(1, nn::CrossMapLRN2d(3), plane);
}

TEST(TorchModules, PoolingAndPadding) {
  const Tensor line = values({2, 3, 8}), plane = values({2, 3, 8, 8}),
               space = values({2, 3, 4, 4, 4});
  STAGE(1, nn::AvgPool1d(2), line);
  STAGE(1, nn::AvgPool2d(2), plane);
  STAGE(1, nn::AvgPool3d(2), space);
  STAGE(1, nn::MaxPool1d(2), line);
  STAGE(1, nn::MaxPool2d(2), plane);
  STAGE(1, nn::MaxPool3d(2), space);
  STAGE(1, nn::AdaptiveAvgPool1d(3), line);
  STAGE(1, nn::AdaptiveAvgPool2d(3), plane);
  STAGE(1, nn::AdaptiveAvgPool3d(3), space);
  STAGE(1, nn::AdaptiveMaxPool1d(3), line);
  STAGE(1, nn::AdaptiveMaxPool2d(3), plane);
  STAGE(1, nn::AdaptiveMaxPool3d(3), space);
  STAGE(1, nn::LPPool1d(2, 2), line + 2);
  STAGE(1, nn::LPPool2d(2, 2), plane + 2);
  STAGE(1, nn::LPPool3d(2, 2), space + 2);
  STAGE(1, nn::FractionalMaxPool2d(nn::FractionalMaxPool2dOptions(2).output_size(3)), plane);
  STAGE(1, nn::FractionalMaxPool3d(nn::FractionalMaxPool3dOptions(2).output_size(2)), space);
  STAGE(2, nn::MaxUnpool1d(2), values({1, 1, 2}), integers({1, 2}).view({1, 1, 2}));
  STAGE(2, nn::MaxUnpool2d(2), values({1, 1, 1, 2}), integers({1, 6}).view({1, 1, 1, 2}));
  STAGE(2, nn::MaxUnpool3d(2), values({1, 1, 1, 1, 2}), integers({1, 6}).view({1, 1, 1, 1, 2}));
  STAGE(1, nn::ReflectionPad1d(1), line);
  STAGE(1, nn::ReflectionPad2d(1), plane);
  STAGE(1, nn::ReflectionPad3d(1), space);
  STAGE(1, nn::ReplicationPad1d(1), line);
  STAGE(1, nn::ReplicationPad2d(1), plane);
  STAGE(1, nn::ReplicationPad3d(1), space);
  STAGE(1, nn::ZeroPad1d(1), line);
  STAGE(1, nn::ZeroPad2d(1), plane);
  STAGE(1, nn::ZeroPad3d(1), space);
  STAGE(1, nn::ConstantPad1d(1, 2), line);
  STAGE(1, nn::ConstantPad2d(1, 2), plane);
  STAGE(1, nn::ConstantPad3d(1, 2), space);
}

TEST(TorchModules, Recurrent) {
  const Tensor x = values({4, 2, 3}), state = values({1, 2, 5}), one = values({2, 3}),
               one_state = values({2, 5});
  STAGE(1, nn::RNN(3, 5), x);
  STAGE(2, nn::RNN(3, 5), x, state);
  STAGE(1, nn::GRU(3, 5), x);
  STAGE(2, nn::GRU(3, 5), x, state);
  STAGE(1, nn::LSTM(3, 5), x);
  STAGE(1, nn::RNNCell(3, 5), one);
  STAGE(2, nn::RNNCell(3, 5), one, one_state);
  STAGE(1, nn::GRUCell(3, 5), one);
  STAGE(2, nn::GRUCell(3, 5), one, one_state);
  STAGE(1, nn::LSTMCell(3, 5), one);
  const auto with_state = [](auto& module) {
    return
        [&module](const Tensors& in) { return flat(module->forward(in[0], Pair(in[1], in[2]))); };
  };
  nn::LSTM lstm(3, 5);
  compare("LSTM with a state", *lstm, *make_stage(lstm), {x, state, state + 1}, with_state(lstm));
  nn::LSTMCell cell(3, 5);
  compare("LSTMCell with a state", *cell, *make_stage(cell), {one, one_state, one_state + 1},
          with_state(cell));
  // An optional argument of undefined tensors is absent.
  compare("LSTM", *lstm, *make_stage(lstm), {x, {}, {}},
          [&](const Tensors& in) { return flat(lstm->forward(in[0])); });
}

TEST(TorchModules, Transformers) {
  const Tensor x = values({5, 2, 4}), memory = values({3, 2, 4}) + 1,
               mask = at::triu(at::full({5, 5}, -1e9, at::kDouble), 1),
               padding = at::zeros({2, 5}, at::kBool);
  STAGE(3, nn::MultiheadAttention(4, 2), x, x, x + 1);
  STAGE(4, nn::MultiheadAttention(4, 2), x, x, x + 1, padding);
  STAGE(1, nn::TransformerEncoderLayer(4, 2), x);
  STAGE(2, nn::TransformerEncoderLayer(4, 2), x, mask);
  STAGE(3, nn::TransformerEncoderLayer(4, 2), x, mask, padding);
  STAGE(2, nn::TransformerDecoderLayer(4, 2), x, memory);
  STAGE(3, nn::TransformerDecoderLayer(4, 2), x, memory, mask);
  const nn::TransformerEncoderLayer encoder(nn::TransformerEncoderLayerOptions(4, 2));
  STAGE(1, nn::TransformerEncoder(encoder, 2), x);
  STAGE(2, nn::TransformerEncoder(encoder, 2), x, mask);
  const nn::TransformerDecoderLayer decoder(nn::TransformerDecoderLayerOptions(4, 2));
  STAGE(2, nn::TransformerDecoder(decoder, 2), x, memory);
  const nn::TransformerOptions options =
      nn::TransformerOptions(4, 2, 1, 1).dim_feedforward(8).dropout(0.1);
  STAGE(2, nn::Transformer(options), memory, x);
  STAGE(4, nn::Transformer(options), memory, x, {}, mask);
}

TEST(TorchModules, Losses) {
  const Tensor x = values({2, 3}), y = x.detach() + 1, probabilities = at::sigmoid(x.detach()),
               sign = at::tensor({1.0, -1.0}, at::kDouble), classes = integers({2, 0});
  STAGE(2, nn::L1Loss(), x, y);
  STAGE(2, nn::MSELoss(), x, y);
  STAGE(2, nn::SmoothL1Loss(), x, y);
  STAGE(2, nn::HuberLoss(), x, y);
  STAGE(2, nn::SoftMarginLoss(), x, y);
  STAGE(2, nn::KLDivLoss(), at::log_sigmoid(x), probabilities);
  STAGE(2, nn::BCELoss(), at::sigmoid(x), probabilities);
  STAGE(2, nn::BCEWithLogitsLoss(), x, probabilities);
  STAGE(2, nn::PoissonNLLLoss(), x, y);
  STAGE(2, nn::HingeEmbeddingLoss(), x, at::sign(y - 1));
  STAGE(2, nn::MultiMarginLoss(), x, classes);
  STAGE(2, nn::MultiLabelMarginLoss(), x, integers({2, 0, -1, 1, -1, -1}).view({2, 3}));
  STAGE(2, nn::MultiLabelSoftMarginLoss(), x, probabilities);
  STAGE(2, nn::NLLLoss(), at::log_softmax(x, 1), classes);
  STAGE(2, nn::CrossEntropyLoss(), x, classes);
  STAGE(3, nn::CosineEmbeddingLoss(), x, y, sign);
  STAGE(3, nn::MarginRankingLoss(), x.select(1, 0), y.select(1, 0), sign);
  STAGE(3, nn::TripletMarginLoss(), x, y, x + 2);
  STAGE(3, nn::TripletMarginWithDistanceLoss(), x, y, x + 2);
  STAGE(4, nn::CTCLoss(), at::log_softmax(values({4, 2, 3}), 2),
        integers({1, 2, 1, 2}).view({2, 2}), integers({4, 4}), integers({2, 2}));
}

// These have no forward, and that of AdaptiveLogSoftmaxWithLoss returns a loss as a double.
static_assert(!modules::TakesTensors<nn::ModuleList>);
static_assert(!modules::TakesTensors<nn::ModuleDict>);
static_assert(!modules::TakesTensors<nn::ParameterList>);
static_assert(!modules::TakesTensors<nn::ParameterDict>);
static_assert(!modules::TakesTensors<std::shared_ptr<nn::Module>>);
static_assert(!modules::TakesTensors<nn::AdaptiveLogSoftmaxWithLoss>);
// Not a pointer to a module.
static_assert(!modules::TakesTensors<nn::LinearImpl>);

template <typename Module>
std::string error_of(Module module, size_t num_inputs) {
  try {
    make_stage(module)->forward(0, Tensors(num_inputs, at::ones({1})));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(TorchModules, WrongNumberOfTensors) {
  EXPECT_EQ(error_of(nn::Linear(1, 1), 2),
            "forward of torch::nn::LinearImpl: expected 1 tensor, got 2");
  EXPECT_EQ(error_of(nn::LSTM(1, 1), 2),
            "forward of torch::nn::LSTMImpl: expected 1 or 3 tensors, got 2");
  EXPECT_EQ(error_of(nn::EmbeddingBag(1, 1), 4),
            "forward of torch::nn::EmbeddingBagImpl: expected 1, 2 or 3 tensors, got 4");
}

}  // namespace
}  // namespace pipewright::executor
