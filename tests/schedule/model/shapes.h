#ifndef PIPEWRIGHT_TESTS_SCHEDULE_MODEL_SHAPES_H_
#define PIPEWRIGHT_TESTS_SCHEDULE_MODEL_SHAPES_H_

#include <cstdint>

#include "pipewright/schedule/model/model_costs.h"

namespace pipewright::schedule::tests {

// A GPT as Megatron-LM trains it.
inline ModelShape gpt(int layers, int64_t hidden, int64_t heads) {
  return {.architecture = "gpt",
          .layers = layers,
          .hidden = hidden,
          .heads = heads,
          .kv_heads = heads,
          .head_size = hidden / heads,
          .ffn = 4 * hidden,
          .is_gated = false,
          .has_dropout = true,
          .vocabulary = 51200,
          .positions = 2048};
}

}  // namespace pipewright::schedule::tests

#endif  // PIPEWRIGHT_TESTS_SCHEDULE_MODEL_SHAPES_H_
