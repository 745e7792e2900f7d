#ifndef PIPEWRIGHT_EXAMPLES_GPT_H_
#define PIPEWRIGHT_EXAMPLES_GPT_H_

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

// A small GPT over bytes, cut into stages.

namespace pipewright::examples {

inline constexpr int64_t kVocabulary = 256;

struct GptConfig {
  int64_t layers = 4;
  int64_t dim = 64;      // a multiple of kHeadDim
  int64_t context = 64;  // bytes
  uint64_t seed = 0;
};
inline constexpr int64_t kHeadDim = 16;

// One stage: the first has the embeddings, the last the output layer, and the blocks are spread
// evenly. Tokens [batch, context] go in at the first; [batch, context, dim] between stages; logits
// [batch, context, kVocabulary] come out of the last. The weights of a layer depend on the seed and
// the layer alone, however the model is cut.
class GptStage : public torch::nn::Module {
 public:
  virtual at::Tensor forward(at::Tensor input) = 0;
  // To be sharded apart, before the stage; forward calls them so that they can be.
  virtual std::vector<std::shared_ptr<torch::nn::Module>> blocks() const = 0;
};
std::shared_ptr<GptStage> make_gpt_stage(const GptConfig& config, int stage, int num_stages);

// Mean cross entropy, in nats a byte.
at::Tensor gpt_loss(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_GPT_H_
