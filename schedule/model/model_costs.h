#ifndef PIPEWRIGHT_SCHEDULE_MODEL_MODEL_COSTS_H_
#define PIPEWRIGHT_SCHEDULE_MODEL_MODEL_COSTS_H_

#include <cstdint>
#include <string>

#include "pipewright/schedule/model/machine.h"
#include "pipewright/schedule/problem/costs.h"

// The costs of a transformer's layers, predicted from its shape and a machine. docs/costs.md has
// the formulas, their sources, how near they are to published measurements, and what they leave
// out.
//
//   const ModelShape model = parse_config(text);    // config_json.h
//   const Costs costs = model_costs(model, {.sequence = 8192, .tp = 8, .dp = 4},
//   *find_gpu("h100")); costs.layers   the embedding, the blocks in runs, the head; times in ms
//
// Plain values and pure functions; any thread.

namespace pipewright::schedule {

struct ModelShape {
  std::string architecture = {};  // model_type of a config.json
  int layers = 0;                 // blocks
  int64_t hidden = 0, heads = 0, kv_heads = 0, head_size = 0;
  int64_t ffn = 0;       // inner size of a dense feed-forward
  bool is_gated = true;  // it has three matrices rather than two
  bool has_dropout = false;
  int64_t vocabulary = 0;
  bool has_tied_embeddings = false;
  int64_t positions = 0;  // learned ones; 0 for rotary

  // Mixture of experts: of each block from dense_layers on; 0 for none.
  int64_t experts = 0, experts_per_token = 0, expert_ffn = 0, shared_ffn = 0;
  int dense_layers = 0;

  // Low-rank attention (DeepSeek); 0 for none. head_size is then that of q and k, and value_size
  // that of v.
  int64_t q_rank = 0, kv_rank = 0, rope_size = 0, value_size = 0;

  // Of one block, without embeddings: all parameters, and those that a token meets.
  int64_t block_parameters(int layer) const;
  int64_t active_parameters(int layer) const;
  // Of the whole model.
  int64_t parameters() const;
};

enum class Shard { kNone, kOptimizer, kAll };  // over data-parallel ranks: DDP, ZeRO-1, FSDP
// Whether the scores of attention are ever in memory, and kept there for the backward. kSelective
// computes them again (Korthikanti et al.).
enum class Attention { kFlash, kSelective, kMaterialized };

struct TrainingShape {
  int64_t sequence = 0, microbatch_size = 1;  // tokens, sequences
  int tp = 1, dp = 1, ep = 1;                 // ranks; ep divides the experts and is part of dp
  bool sequence_parallel = true;              // with tp > 1
  Attention attention = Attention::kFlash;
  Shard shard = Shard::kOptimizer;
  bool recomputes = false;      // every block keeps its input only
  int slices = 1;               // that each sequence is cut into: Costs::slice_scale
  double value_bytes = 2;       // of parameters and activations
  double gradient_bytes = 4;    // per parameter
  double optimizer_bytes = 12;  // per parameter: master weights and two moments
};

// How often a saved activation is moved between memory and chip in a forward or a backward of the
// inputs. docs/costs.md says where the number is from.
inline constexpr double kActivationMoves = 4.9;

// Costs with layers, in ms: the embedding, runs of equal blocks, the head (with the final norm and
// the loss). Transfers between stages cross the network unless all GPUs fit in a node.
Costs model_costs(const ModelShape& model, const TrainingShape& training, const Machine& machine,
                  bool stages_share_nodes = false);

// The FLOPs of one step per sequence by the usual count: 2 per multiply-add, a backward of two
// forwards, scores in full, no recomputation.
double model_flops(const ModelShape& model, int64_t sequence);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_MODEL_MODEL_COSTS_H_
