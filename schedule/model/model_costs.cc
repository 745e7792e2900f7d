// A block is a list of matrix products and what is saved between them (Block). Its times are those
// of the products, at the achieved part of the machine's peak, plus those to move what is saved,
// plus the collectives of tensor parallelism.
#include "pipewright/schedule/model/model_costs.h"

#include <algorithm>

namespace pipewright::schedule {
namespace {

constexpr double kMilliseconds = 1e3;

int64_t attention_parameters(const ModelShape& model) {
  const int64_t hidden = model.hidden, q = model.heads * model.head_size;
  if (model.kv_rank == 0)
    return hidden * q + 2 * hidden * model.kv_heads * model.head_size + q * hidden;
  const int64_t values = model.heads * model.value_size;
  const int64_t plain = model.heads * (model.head_size - model.rope_size);
  const int64_t query = model.q_rank > 0 ? hidden * model.q_rank + model.q_rank * q : hidden * q;
  return query + hidden * (model.kv_rank + model.rope_size) + model.kv_rank * (plain + values) +
         values * hidden;
}

int64_t ffn_parameters(const ModelShape& model, int64_t inner) {
  return (model.is_gated ? 3 : 2) * model.hidden * inner;
}

bool is_sparse(const ModelShape& model, int layer) {
  return model.experts > 0 && layer >= model.dense_layers;
}

int64_t router_parameters(const ModelShape& model) { return model.hidden * model.experts; }

// The size of v, per token.
double values_of(const ModelShape& model) {
  return static_cast<double>(model.kv_rank > 0 ? model.heads * model.value_size
                                               : model.kv_heads * model.head_size);
}

// One block with so many tokens of one microbatch, on one of tp ranks.
struct Block {
  double products = 0;          // FLOPs of products with parameters, of F, of I and of W alike
  double scores = 0;            // FLOPs of attention without parameters, of F; I has twice as many
  double saved = 0;             // bytes
  double score_bytes = 0;       // of the scores of attention, if they are ever in memory
  double inputs = 0;            // bytes of them that W needs
  double output_gradients = 0;  // bytes that W needs beside them
};

Block block_of(const ModelShape& model, const TrainingShape& training, int layer) {
  const auto tokens = static_cast<double>(training.sequence * training.microbatch_size);
  const double tp = training.tp, hidden = tokens * static_cast<double>(model.hidden);
  // What every tensor-parallel rank has in full unless the sequence is split too.
  const double whole = training.sequence_parallel ? hidden / tp : hidden;
  const double q = tokens * static_cast<double>(model.heads * model.head_size) / tp;
  const double k = tokens *
                   static_cast<double>(model.kv_rank > 0 ? model.heads * model.head_size
                                                         : model.kv_heads * model.head_size) /
                   tp;
  const double v = tokens * values_of(model) / tp;
  const double out =
      tokens *
      static_cast<double>(model.heads * (model.kv_rank > 0 ? model.value_size : model.head_size)) /
      tp;
  const bool sparse = is_sparse(model, layer);
  const double inner =
      tokens *
      static_cast<double>(sparse ? model.experts_per_token * model.expert_ffn + model.shared_ffn
                                 : model.ffn) /
      tp;
  const double copies = sparse ? static_cast<double>(model.experts_per_token) : 1;
  Block block;
  block.products = 2 * tokens * static_cast<double>(model.active_parameters(layer)) / tp;
  block.scores = 2 * static_cast<double>(training.sequence) * (q + out);
  const double bytes = training.value_bytes;
  // Inputs of products: of q, k, v; of the output; of the feed-forward; of its last product.
  block.inputs = bytes * (whole + out + copies * whole + inner);
  // Inputs of both norms, q, k, v, and what the feed-forward has before its last product.
  block.saved = block.inputs + bytes * (2 * whole + q + k + v + (model.is_gated ? 2 : 1) * inner) +
                (model.has_dropout ? 2 * whole : 0);
  if (training.attention != Attention::kFlash)
    block.score_bytes = (2 * bytes + 1) * static_cast<double>(model.heads) / tp * tokens *
                        static_cast<double>(training.sequence);
  if (training.attention == Attention::kMaterialized) block.saved += block.score_bytes;
  block.output_gradients =
      bytes * (q + k + v + whole + (model.is_gated ? 2 : 1) * inner + copies * whole);
  return block;
}

class Prediction {
 public:
  Prediction(const ModelShape& model, const TrainingShape& training, const Machine& machine)
      : model_(model), training_(training), machine_(machine) {}

  Costs costs(bool stages_share_nodes) const {
    Costs costs;
    costs.unit = "ms";
    costs.microbatch_size = static_cast<int>(training_.microbatch_size);
    costs.link.latency =
        kMilliseconds * (stages_share_nodes ? machine_.nvlink_latency : machine_.network_latency);
    costs.link.bandwidth =
        (stages_share_nodes ? machine_.nvlink_bandwidth : machine_.network_bandwidth) /
        kMilliseconds;
    costs.layers.push_back(embedding());
    for (int layer = 0; layer < model_.layers; ++layer) {
      LayerRun one = block(layer);
      if (layer > 0 && one.values == costs.layers.back().values) {
        ++costs.layers.back().count;
      } else {
        costs.layers.push_back(one);
      }
    }
    costs.layers.push_back(head());
    if (training_.slices > 1) costs.slice_scale = slice_scale();
    return costs;
  }

 private:
  // Slice k attends to itself by half and to k slices before it, so 2k+1 of K^2 parts of the scores
  // are its own.
  std::vector<double> slice_scale() const {
    double products = 0, scores = 0;
    for (int layer = 0; layer < model_.layers; ++layer) {
      const Block block = block_of(model_, training_, layer);
      products += block.products;
      scores += block.scores;
    }
    const double share = scores / (products + scores);
    std::vector<double> scale;
    for (int k = 0; k < training_.slices; ++k)
      scale.push_back(1 - share + share * (2 * k + 1) / training_.slices);
    return scale;
  }
  double tokens() const {
    return static_cast<double>(training_.sequence * training_.microbatch_size);
  }
  double products(double flops) const {
    return kMilliseconds * flops / (machine_.peak * machine_.achieved);
  }
  double moves(double saved) const {
    return kMilliseconds * kActivationMoves * saved / machine_.memory_bandwidth;
  }
  // The tokens' vectors, on one rank, between stages.
  double vectors() const {
    return training_.value_bytes * tokens() * static_cast<double>(model_.hidden) /
           (training_.sequence_parallel ? training_.tp : 1);
  }
  // An all-reduce of all vectors, or a reduce-scatter and an all-gather: in rings, each rank sends
  // (tp - 1) / tp of them twice.
  double all_reduce() const {
    if (training_.tp == 1) return 0;
    const double tp = training_.tp;
    const double bytes = training_.value_bytes * tokens() * static_cast<double>(model_.hidden);
    return kMilliseconds * 2 *
           (bytes * (tp - 1) / tp / machine_.nvlink_bandwidth + machine_.nvlink_latency);
  }
  // All-gather or reduce-scatter over data-parallel ranks.
  double collective(double bytes) const {
    if (training_.dp == 1) return 0;
    const double dp = training_.dp;
    const bool in_node = training_.dp * training_.tp <= machine_.gpus_per_node;
    return kMilliseconds * (bytes * (dp - 1) / dp /
                                (in_node ? machine_.nvlink_bandwidth : machine_.network_bandwidth) +
                            (in_node ? machine_.nvlink_latency : machine_.network_latency));
  }

  void set_parameters(double parameters, LayerRun* layer) const {
    const double count = parameters / training_.tp;
    const double whole = count * training_.value_bytes,
                 gradients = count * training_.gradient_bytes;
    LayerRun& one = *layer;
    one[&Costs::parameter_bytes] = whole;
    one[&Costs::gradient_bytes] = gradients;
    one[&Costs::optimizer_bytes] =
        count * training_.optimizer_bytes / (training_.shard == Shard::kNone ? 1 : training_.dp);
    one[&Costs::reduce_grad] = collective(gradients);
    if (training_.shard != Shard::kAll) return;
    one[&Costs::shard_bytes] = (whole + gradients) / training_.dp;
    one[&Costs::unshard] = collective(whole);
  }

  LayerRun embedding() const {
    LayerRun layer;
    layer[&Costs::forward] = layer[&Costs::backward_input] = layer[&Costs::backward_weight] = 0;
    layer[&Costs::output_bytes] = vectors();
    // Token ids.
    layer[&Costs::activation_bytes] = layer[&Costs::checkpoint_bytes] =
        layer[&Costs::weight_input_bytes] = 8 * tokens();
    set_parameters(static_cast<double>((model_.vocabulary + model_.positions) * model_.hidden),
                   &layer);
    return layer;
  }

  LayerRun block(int layer) const {
    const Block block = block_of(model_, training_, layer);
    LayerRun one;
    const bool selective = training_.attention == Attention::kSelective;
    const double moved = moves(block.saved + (selective ? block.score_bytes : 0));
    one[&Costs::forward] = products(block.products + block.scores) + moved + 2 * all_reduce();
    one[&Costs::backward_input] =
        products(block.products + 2 * block.scores) + moved + 2 * all_reduce();
    if (selective) one[&Costs::backward_input] += products(block.scores) + moves(block.score_bytes);
    // The inputs of products are gathered once more.
    one[&Costs::backward_weight] =
        products(block.products) + (training_.sequence_parallel ? all_reduce() : 0);
    one[&Costs::output_bytes] = one[&Costs::input_gradient_bytes] = vectors();
    one[&Costs::activation_bytes] = block.saved;
    one[&Costs::checkpoint_bytes] = vectors();
    one[&Costs::weight_input_bytes] = block.inputs + block.output_gradients;
    if (training_.recomputes) {
      // Always: the costs of a schedule whose stages all do, which need not say so.
      one[&Costs::backward_input] += one[&Costs::forward];
      one[&Costs::activation_bytes] = vectors();
    }
    one[&Costs::offload_bytes] = one[&Costs::activation_bytes];
    one[&Costs::offload] = one[&Costs::reload] =
        kMilliseconds * one[&Costs::offload_bytes] / machine_.host_bandwidth;
    const double all = static_cast<double>(model_.block_parameters(layer));
    const double experts =
        is_sparse(model_, layer)
            ? static_cast<double>(model_.experts * ffn_parameters(model_, model_.expert_ffn))
            : 0;
    set_parameters(all - experts + experts / training_.ep, &one);
    return one;
  }

  LayerRun head() const {
    const double logits = tokens() * static_cast<double>(model_.vocabulary) / training_.tp;
    const double time = products(2 * logits * static_cast<double>(model_.hidden));
    LayerRun layer;
    layer[&Costs::forward] = time + moves(4 * logits);
    layer[&Costs::backward_input] = time + moves(4 * logits);
    layer[&Costs::backward_weight] = time;
    layer[&Costs::input_gradient_bytes] = vectors();
    // Inputs of the norm and of the product, and logits in 32 bits.
    layer[&Costs::activation_bytes] = layer[&Costs::checkpoint_bytes] = 2 * vectors() + 4 * logits;
    layer[&Costs::weight_input_bytes] = vectors() + training_.value_bytes * logits;
    set_parameters(static_cast<double>(model_.vocabulary * model_.hidden), &layer);
    return layer;
  }

  const ModelShape& model_;
  const TrainingShape& training_;
  const Machine& machine_;
};

}  // namespace

int64_t ModelShape::block_parameters(int layer) const {
  const int64_t norms = 2 * hidden;
  if (!is_sparse(*this, layer))
    return attention_parameters(*this) + ffn_parameters(*this, ffn) + norms;
  return attention_parameters(*this) + experts * ffn_parameters(*this, expert_ffn) +
         ffn_parameters(*this, shared_ffn) + router_parameters(*this) + norms;
}

int64_t ModelShape::active_parameters(int layer) const {
  if (!is_sparse(*this, layer)) return attention_parameters(*this) + ffn_parameters(*this, ffn);
  return attention_parameters(*this) + experts_per_token * ffn_parameters(*this, expert_ffn) +
         ffn_parameters(*this, shared_ffn) + router_parameters(*this);
}

int64_t ModelShape::parameters() const {
  int64_t sum = (vocabulary + positions) * hidden + hidden;
  if (!has_tied_embeddings) sum += vocabulary * hidden;
  for (int layer = 0; layer < layers; ++layer) sum += block_parameters(layer);
  return sum;
}

Costs model_costs(const ModelShape& model, const TrainingShape& training, const Machine& machine,
                  bool stages_share_nodes) {
  return Prediction(model, training, machine).costs(stages_share_nodes);
}

double model_flops(const ModelShape& model, int64_t sequence) {
  const TrainingShape one = {.sequence = sequence};
  double forward = 2 * static_cast<double>(sequence * model.vocabulary * model.hidden);
  for (int layer = 0; layer < model.layers; ++layer) {
    const Block block = block_of(model, one, layer);
    forward += block.products + block.scores;
  }
  return 3 * forward;
}

}  // namespace pipewright::schedule
