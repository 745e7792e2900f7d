// The model of train_gpt with tensor parallelism, against the whole one: initial weights bit for
// bit, logits, loss and gradients; how much each block communicates.
#include "examples/gpt.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <map>
#include <string>
#include <vector>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/layout/layout.h"
#include "pipewright/modules/forward.h"
#include "pipewright/tp/parallelize.h"
#include "tests/support/meter/calls.h"
#include "tests/support/meter/meter.h"
#include "tests/support/recording/recording_backend.h"
#include "tests/support/training/on_ranks.h"

namespace pipewright::examples {
namespace {

using tests::on_ranks;
using tests::Rank;

constexpr int64_t kBatch = 3;

GptConfig config_of(int64_t layers) {
  return {.layers = layers, .dim = 2 * kHeadDim, .context = 6, .seed = 5};
}

at::Tensor tokens() { return at::arange(kBatch * 6).mul(31).remainder(kVocabulary).view({3, 6}); }

// This rank's part of `whole`, if a local tensor has the sizes of `local`.
at::Tensor part_of(at::Tensor whole, const at::Tensor& local, const Rank& self) {
  for (int64_t d = 0; d < whole.dim(); ++d) {
    const layout::Chunk mine = layout::chunk_of(whole.size(d), self.world->size(), self.rank);
    if (local.size(d) != whole.size(d)) whole = whole.narrow(d, mine.begin, mine.length);
  }
  return whole;
}

struct Variant {
  bool sequence_parallel = false;
  bool modern = false;  // RMSNorm, rotary positions, recomputed blocks
};
class SplitGpt : public testing::TestWithParam<Variant> {};

TEST_P(SplitGpt, IsTheWholeModel) {
  on_ranks(2, [](Rank& self) {
    const auto [sequence_parallel, modern] = GetParam();
    comms::Mesh mesh(*self.world, {{"tp", 2}});
    GptConfig config = config_of(2);
    if (modern) config.norm = NormKind::kRms;
    config.rope = modern;
    const auto whole = make_gpt_stage(config, 0, 1);
    if (modern) config.activation_checkpointing = Checkpointing::kSelective;
    const auto part = make_gpt_stage(config, 0, 1);
    const auto split = tp::parallelize(*part, part->plan(sequence_parallel), mesh, "tp");
    auto parameters = part->named_parameters();
    int64_t whole_elements = 0, elements = 0, copies = 0;
    for (const auto& named : whole->named_parameters()) {
      const at::Tensor& mine = parameters[named.key()];
      EXPECT_TRUE(at::equal(part_of(named.value(), mine, self), mine)) << named.key();
      whole_elements += named.value().numel();
      elements += mine.numel();
      if (mine.sizes() == named.value().sizes()) copies += mine.numel();
    }
    // Half of the model, but for five norms, four biases of row-parallel layers, and the position
    // embeddings if they are not split.
    const int64_t dim = 2 * kHeadDim;
    EXPECT_EQ(copies,
              5 * (modern ? 1 : 2) * dim + 4 * dim + (sequence_parallel || modern ? 0 : 6 * dim));
    EXPECT_EQ(2 * elements, whole_elements + copies);
    const at::Tensor expected = modules::forward(whole, tokens());
    const at::Tensor got = modules::forward(part, tokens());
    EXPECT_TRUE(at::allclose(part_of(expected, got, self), got, 1e-5, 1e-5));
    const at::Tensor targets = tokens().add(1).remainder(kVocabulary);
    const at::Tensor loss = gpt_loss(expected, targets);
    EXPECT_NEAR(loss.item<double>(), gpt_loss(got, targets, self.group).item<double>(), 1e-6);
    loss.backward();
    gpt_loss(got, targets, self.group).backward();
    for (const auto& named : whole->named_parameters()) {
      const at::Tensor& mine = parameters[named.key()].grad();
      ASSERT_TRUE(mine.defined()) << named.key();
      EXPECT_TRUE(at::allclose(part_of(named.value().grad(), mine, self), mine, 1e-4, 1e-6))
          << named.key();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(SplitGpt, SplitGpt,
                         testing::Values(Variant{false, false}, Variant{true, false},
                                         Variant{false, true}, Variant{true, true}),
                         [](const auto& of) {
                           return std::string(of.param.sequence_parallel ? "Sequence" : "Whole") +
                                  (of.param.modern ? "Modern" : "");
                         });

// x / sqrt(mean(x^2)) * weight, and no bias.
TEST(Gpt, RmsNorm) {
  Norm norm(NormKind::kRms, 6);
  EXPECT_EQ(norm.named_parameters().keys(), std::vector<std::string>{"weight"});
  norm.weight.detach().copy_(at::arange(6));
  const at::Tensor x = at::arange(18).view({3, 6}).sin().mul(4);
  const at::Tensor root = x.pow(2).mean(-1, /*keepdim=*/true).add(1e-5).sqrt();
  EXPECT_TRUE(at::allclose(norm.forward(x), x / root * at::arange(6)));
}

// Pairs of elements as complex numbers, times a power of a unit number per pair.
TEST(Gpt, RotatesPairsByTheirPosition) {
  constexpr int64_t kContext = 7, kHalf = kHeadDim / 2;
  const at::Tensor x = at::arange(2 * 3 * kContext * kHeadDim, at::kDouble)
                           .view({2, 3, kContext, kHeadDim})
                           .mul(0.37)
                           .sin();
  RotaryEmbedding rotary;
  const at::Tensor y = rotary.rotated(x);
  for (int64_t position = 0; position < kContext; ++position) {
    for (int64_t pair = 0; pair < kHalf; ++pair) {
      const double angle =
          static_cast<double>(position) / std::pow(10000, static_cast<double>(pair) / kHalf);
      const auto number = [&](const at::Tensor& of) {
        const at::Tensor at = of[1][2][position];
        return std::complex<double>(at[pair].item<double>(), at[kHalf + pair].item<double>());
      };
      const std::complex<double> expected = number(x) * std::polar(1.0, angle);
      EXPECT_LT(std::abs(number(y) - expected), 1e-6) << position << " " << pair;
    }
  }
}

// An evaluation may come first, in inference mode.
TEST(Gpt, RotatesByTablesThatAreComputedOnce) {
  RotaryEmbedding rotary;
  at::Tensor x = at::ones({1, 1, 7, kHeadDim});
  const auto cosines = [&](const at::Tensor& of) {
    return tests::calls_of([&] { rotary.rotated(of); })["aten::cos"];
  };
  {
    const c10::InferenceMode inference;
    EXPECT_EQ(cosines(x), 1);
  }
  EXPECT_EQ(cosines(x), 0);
  x.requires_grad_();
  rotary.rotated(x).sum().backward();
  EXPECT_TRUE(x.grad().defined());
  // Another context, another dtype.
  EXPECT_EQ(rotary.rotated(x.detach().narrow(2, 0, 3)).sizes(),
            (at::IntArrayRef{1, 1, 3, kHeadDim}));
  EXPECT_EQ(rotary.rotated(x.detach().to(at::kHalf)).scalar_type(), at::kHalf);
}

TEST(Gpt, CheckpointingChangesNoBit) {
  const auto grads_of = [&](Checkpointing checkpointing) {
    GptConfig config = config_of(2);
    config.activation_checkpointing = checkpointing;
    const auto part = make_gpt_stage(config, 0, 1);
    for (const at::Tensor& parameter : part->parameters())
      parameter.data().add_(0.01);  // biases are 0 before
    const at::Tensor logits = modules::forward(part, tokens()).flatten(0, 1);
    at::cross_entropy_loss(logits, tokens().flatten()).backward();
    std::map<std::string, at::Tensor> grads;
    for (const auto& named : part->named_parameters()) grads[named.key()] = named.value().grad();
    return grads;
  };
  const auto plain = grads_of(Checkpointing::kNone);
  for (const Checkpointing how : {Checkpointing::kFull, Checkpointing::kSelective}) {
    for (const auto& [name, grad] : grads_of(how))
      EXPECT_TRUE(at::equal(grad, plain.at(name))) << name;
  }
}

// What one more block holds from its forward to its backward.
int64_t bytes_per_block(Checkpointing checkpointing) {
  int64_t bytes = 0;
  for (const int64_t layers : {1, 2}) {
    GptConfig config = config_of(layers);
    config.activation_checkpointing = checkpointing;
    const auto part = make_gpt_stage(config, 0, 1);
    const tests::Meter meter;
    const at::Tensor logits = modules::forward(part, tokens());
    bytes = meter.bytes() - bytes;
  }
  return bytes;
}

TEST(Gpt, ABlockKeepsWhatItDoesNotComputeAgain) {
  constexpr int64_t kRows = kBatch * 6, kDim = 2 * kHeadDim;
  const int64_t none = bytes_per_block(Checkpointing::kNone),
                full = bytes_per_block(Checkpointing::kFull),
                selective = bytes_per_block(Checkpointing::kSelective);
  // Queries, keys and values; attention, with a number per token and head; the layer that mixes
  // heads; the MLP's two.
  EXPECT_EQ(selective - full, kRows * (3 * kDim + kDim + 2 + kDim + 4 * kDim + kDim) * 4);
  // Without parts, not the outputs of two of these layers, but those of norms, with two numbers per
  // token, of GELU and of the first sum; and not the state of a generator.
  const auto generator = static_cast<int64_t>(autograd::cpu_generator().get_state().nbytes());
  EXPECT_EQ(none + generator - selective,
            kRows * (2 * (kDim + 2) + 4 * kDim + kDim - 2 * kDim) * 4);
  EXPECT_EQ(full, kRows * kDim * 4 + generator);
}

// Calls by name and their bytes.
using Calls = std::map<std::string, std::pair<int64_t, int64_t>>;

// What one more block adds to forward and backward.
std::pair<Calls, Calls> calls_per_block(bool sequence_parallel) {
  std::pair<Calls, Calls> result;
  on_ranks(2, [&](Rank& self) {
    comms::World recorded = self.world->wrapped(
        [&](comms::BackendPtr backend) { return comms::record(backend, self.log); });
    comms::Mesh mesh(recorded, {{"tp", 2}});
    std::pair<Calls, Calls> counted;
    for (const int64_t layers : {1, 2}) {
      const auto add_calls = [&](Calls& to) {
        for (const comms::CallRecord& call : self.log->calls()) {
          to[call.op].first += layers == 2 ? 1 : -1;
          to[call.op].second += layers == 2 ? call.bytes : -call.bytes;
        }
        self.log->clear();
      };
      const auto part = make_gpt_stage(config_of(layers), 0, 1);
      const auto split = tp::parallelize(*part, part->plan(sequence_parallel), mesh, "tp");
      self.log->clear();
      const at::Tensor logits = modules::forward(part, tokens());
      add_calls(counted.first);
      logits.sum().backward();
      add_calls(counted.second);
    }
    if (self.rank == 0) result = counted;
  });
  return result;
}

TEST(SplitGpt, CommunicatesTwiceInEachDirection) {
  const int64_t activations = kBatch * 6 * 2 * kHeadDim * 4;  // bytes of [batch, context, dim]
  const auto [forward, backward] = calls_per_block(false);
  const Calls expected = {{"allreduce", {2, 2 * activations}}};
  EXPECT_EQ(forward, expected);
  EXPECT_EQ(backward, expected);
}

// An all-reduce becomes a reduce-scatter and an all-gather of as many bytes together. Backward also
// sums the gradients of two norms, each of a weight and a bias.
TEST(SplitGpt, SequenceParallelismCommunicatesFourTimesInEachDirection) {
  const int64_t activations = kBatch * 6 * 2 * kHeadDim * 4;
  const auto [forward, backward] = calls_per_block(true);
  Calls expected = {{"_allgather_base", {2, 2 * activations}},
                    {"_reduce_scatter_base", {2, activations}}};  // its output: half of it
  EXPECT_EQ(forward, expected);
  expected["allreduce"] = {4, 4 * 2 * kHeadDim * 4};
  EXPECT_EQ(backward, expected);
}

}  // namespace
}  // namespace pipewright::examples
