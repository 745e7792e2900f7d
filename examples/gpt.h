#ifndef PIPEWRIGHT_EXAMPLES_GPT_H_
#define PIPEWRIGHT_EXAMPLES_GPT_H_

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "examples/gpt_block.h"
#include "pipewright/comms/world.h"
#include "pipewright/schedule/problem/layers.h"
#include "pipewright/tp/parallelize.h"

// A small GPT over bytes, as pipeline stages.

namespace pipewright::examples {

using schedule::PartCosts;

inline constexpr int64_t kVocabulary = 256;

// What a block computes again in backward: everything, or what is not a matrix product or
// attention.
enum class Checkpointing { kNone, kFull, kSelective };

struct GptConfig {
  int64_t layers = 4;
  int64_t dim = 64;      // a multiple of kHeadDim
  int64_t context = 64;  // in bytes
  uint64_t seed = 0;
  NormKind norm = NormKind::kLayer;
  bool rope = false;  // positions: rotates queries and keys instead of adding embeddings
  bool tie = false;   // the output layer has the weights of the token embedding, and no bias
  Checkpointing activation_checkpointing = Checkpointing::kNone;  // of each block
  PartCosts costs = {};  // by which blocks are distributed over stages; by default as many each
  schedule::Cut blocks = {};  // of each stage; empty: by `costs`
};

// One stage of the model. The first has the embeddings, the last the output layer, and blocks are
// distributed as blocks_of_stages() says. The first stage takes tokens [batch, context], the last
// returns logits [batch, context, kVocabulary], and [batch, context, dim] is passed between stages.
// The weights of a layer depend only on the seed and the layer's index, not on the number of
// stages.
class GptStage : public torch::nn::Module {
 public:
  virtual at::Tensor forward(at::Tensor input) = 0;
  // The transformer blocks, for fully_shard() one by one before the stage; forward() calls them
  // through their wrappers.
  virtual std::vector<std::shared_ptr<torch::nn::Module>> blocks() const = 0;
  // What tp::parallelize() splits: attention heads, MLPs and the vocabulary, so the last stage
  // returns this rank's part of the logits. With sequence parallelism, [batch, own context, dim] is
  // passed between blocks and stages; the context must then divide evenly.
  virtual tp::Plan plan(bool sequence_parallel) const = 0;
  // With `tie`, this stage's copies of the token embedding: kTokenWeights in the first stage, and
  // kTiedOutput in the last one. The caller ties them (modules/tied_parameters.h).
  virtual std::vector<at::Tensor> token_weights() const = 0;
};
inline constexpr const char* kTokenWeights = "tokens.weight";
inline constexpr const char* kTiedOutput = "output.weight";
// The number of blocks in each stage (schedule/problem/layers.h).
schedule::Cut blocks_of_stages(const GptConfig& config, int num_stages);
// `dim` must be a multiple of kHeadDim. If the context is cut into slices, `slices` is the cache of
// the stage.
std::shared_ptr<GptStage> make_gpt_stage(const GptConfig& config, int stage, int num_stages,
                                         std::shared_ptr<executor::SliceCache> slices = nullptr);

// Mean cross entropy in nats per byte, computed in fp32. `tp` has the ranks over which the
// vocabulary is split; null if it is not.
at::Tensor gpt_loss(const at::Tensor& logits, const at::Tensor& targets,
                    const comms::BackendPtr& tp = nullptr);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_GPT_H_
