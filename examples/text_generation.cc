#include "examples/text_generation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "examples/batch.h"
#include "examples/gpt.h"
#include "pipewright/comms/store_rounds.h"

namespace pipewright::examples {
namespace {

// The most likely byte among those whose logits this rank has, a part of the vocabulary with
// tensor parallelism, as "logit byte".
std::string best_byte(const at::Tensor& logits, const comms::Mesh& mesh) {
  const int64_t tp = mesh.size("tp"), part = (kVocabulary + tp - 1) / tp;
  const auto [logit, byte] = logits.to(at::kFloat).max(0);
  std::ostringstream text;
  text.precision(9);
  text << logit.item<float>() << ' ' << byte.item<int64_t>() + part * mesh.coordinate("tp");
  return text.str();
}

// The best of those of all ranks; texts of ranks without logits are empty. Of equal ones the
// smallest byte.
char best_of(const std::vector<std::string>& ranks) {
  float most = -std::numeric_limits<float>::infinity();
  int64_t best = 0;
  for (const std::string& rank : ranks) {
    std::istringstream words(rank);
    float logit = 0;
    int64_t byte = 0;
    if (!(words >> logit >> byte)) continue;
    if (logit > most || (logit == most && byte < best)) {
      most = logit;
      best = byte;
    }
  }
  return static_cast<char>(best);
}

}  // namespace

std::string generate_text(const Options& options, executor::Executor& executor,
                          const comms::Mesh& mesh, comms::World& world, const std::string& prompt,
                          int64_t bytes) {
  comms::StoreExchange exchange(world, "generate");
  const auto context = static_cast<size_t>(options.model.context);
  executor.forget_shapes();
  std::string text = prompt;
  for (int64_t i = 0; i < bytes; ++i) {
    const size_t begin = text.size() - std::min(text.size(), context);
    std::vector<int64_t> window(text.begin() + static_cast<int64_t>(begin), text.end());
    for (int64_t& byte : window) byte &= 0xff;
    const auto last = static_cast<int64_t>(window.size()) - 1;
    window.resize(context, 0);  // attention is causal: what follows does not count
    // All microbatches are alike.
    const at::Tensor input = at::tensor(window).expand({options.microbatches, -1}).contiguous();
    const executor::StepResult result = executor.eval({.inputs = {input}});
    const bool has_logits = in_first_copy(mesh) && !result.outputs.empty();
    text += best_of(exchange(has_logits ? best_byte(result.outputs[0][0][last], mesh) : ""));
  }
  executor.forget_shapes();
  return text.substr(prompt.size());
}

}  // namespace pipewright::examples
