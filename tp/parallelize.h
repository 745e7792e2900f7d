#ifndef PIPEWRIGHT_TP_PARALLELIZE_H_
#define PIPEWRIGHT_TP_PARALLELIZE_H_

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/comms/mesh.h"
#include "pipewright/layout/layout.h"
#include "pipewright/modules/forward.h"

// Tensor parallelism for LibTorch: Linear and Embedding modules of a model whose weights are split
// over the ranks of one mesh dimension, and modules between them that see a part of the sequence,
// with the names and semantics of PyTorch's parallelize_module. A column-parallel layer followed by
// a row-parallel one communicates once in forward and once in backward (Shoeybi et al.,
// "Megatron-LM", 2019):
//
//   const auto tp = tp::parallelize(*model, {{"block*.up", tp::colwise_parallel()},
//                                            {"block*.down", tp::rowwise_parallel()}}, mesh, "tp");
//   const auto units = fsdp::fully_shard(*model, mesh, {"dp"});  // after parallelize()
//   modules::forward(model, x).sum().backward();
//
// The model must call these modules through modules::forward(): `modules::forward(up, x)`. A call
// of up->forward(x) would compute with this rank's part of the weight and not communicate; it
// throws ContractError, as does any other function of a part (modules/part_guard.h says what is
// noticed, and how a function of your own may read parts). Activations between a column-parallel
// and a row-parallel layer hold this rank's part of the features, so whatever stands between them
// must not depend on their number: an attention layer has heads / size of "tp" heads.
//
// Inputs must be equal on all ranks of the dimension, as must random numbers where tensors are
// copies: seed by the coordinates along other dimensions. For dropout of what is split,
// rank_generator.h makes them differ. Other values of an input give wrong results silently, another
// shape makes collectives differ, which fails the world over Gloo (comms/group.h), but is not
// noticed by NCCL. Options::check_inputs makes an error of both.

namespace pipewright::tp {

// How one module is split, and what its input is and its output becomes. PyTorch's ParallelStyle.
class Style {
 public:
  enum class Kind { kColwise, kRowwise, kSequence, kPrepareInput };
  // What differs from the style's default. TensorPlacement::replicate(): a copy on every rank.
  // shard(d): this rank's chunk along dimension d.
  struct Layouts {
    std::optional<layout::TensorPlacement> input = std::nullopt;
    std::optional<layout::TensorPlacement> output = std::nullopt;
    // The length of the whole input along the dimension of shard(d). Unset, all chunks are taken
    // to be as long as this rank's.
    std::optional<int64_t> input_length = std::nullopt;
    bool input_is_prepared = false;  // by prepare_input() of a module around this one
  };

  Style(Kind kind, const Layouts& layouts) : kind_(kind), layouts_(layouts) {}
  Kind kind() const { return kind_; }
  const Layouts& layouts() const { return layouts_; }
  std::string name() const;  // "colwise_parallel"

 private:
  Kind kind_;
  Layouts layouts_;
};

// Splits the output features: Linear's weight and bias along dimension 0, Embedding's weight along
// dimension 1. The input is a copy, the output this rank's features, shard(-1), unless `layouts`
// says otherwise. An input shard(d) is gathered: parts of equal size on all ranks, or of
// torch.chunk's sizes if the layouts have `input_length`, for 5 positions on 2 ranks 3 and 2.
Style colwise_parallel(const Style::Layouts& layouts = {});
// Splits the input features: Linear's weight along dimension 1, with a bias that every rank has and
// one rank's worth of which is added; Embedding's weight along dimension 0, the vocabulary.
// Linear's input is this rank's features, shard(-1), Embedding's a copy; the output is summed into
// a copy, unless `layouts` says otherwise: shard(d) makes it this rank's chunk.
Style rowwise_parallel(const Style::Layouts& layouts = {});
// Splits nothing: every rank has the whole weights of a norm, an adapter or a dropout, or of any
// module that treats the positions of a sequence alike, and calls it on its part of the sequence,
// or of the heads, as a norm of queries and keys. Gradients of the weights are summed over the
// ranks, and each rank draws its own random numbers
// (rank_generator.h), as dropout needs it. The row-parallel layer before makes the parts, the
// column-parallel one after gathers them, along the sequence, which is dimension 1 here:
//
//   {{"tokens", rowwise_parallel({.output = shard(1)})},   {"norm", sequence_parallel()},
//    {"up", colwise_parallel({.input = shard(1)})},
//    {"down", rowwise_parallel({.output = shard(1)})}}
//
// (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022.)
Style sequence_parallel();
// Splits nothing: makes the first input of a module of any type a copy, once for all
// column-parallel Linears in it that take it, as PyTorch's PrepareModuleInput does. A shard(d) is
// gathered, as by colwise_parallel. Queries, keys and values then communicate once in forward and
// once in backward instead of three times:
//
//   {{"*.attention", prepare_input({.input = shard(1)})},
//    {"*.attention.w[qkv]", colwise_parallel({.input_is_prepared = true})},
//    {"*.attention.wo", rowwise_parallel({.output = shard(1)})}}
//
// Gradients of the copy are partial sums. So nothing but these Linears may use it, and nothing with
// weights of its own may be in between; the first forward throws if something does.
Style prepare_input(const Style::Layouts& layouts = {});

// Paths of modules below the parallelized one, and their styles. A part of a path may have the
// wildcards of the shell: "layers.*.up". The empty path is the module itself.
using Plan = std::vector<std::pair<std::string, Style>>;

struct Options {
  // Compares the inputs of the parallelized module in each forward: they must be the same on all
  // ranks of the dimension. If not, all ranks throw one std::invalid_argument that names the input.
  // To find out why ranks diverge: the host waits for the inputs, and two small all-gathers are
  // added. Not for a module whose style takes a chunk as its input.
  bool check_inputs = false;
  // Dimensions along which copies of the module run the same forwards, such as {"dp"}. With
  // check_inputs, all their ranks throw what is wrong with the inputs of one copy; otherwise they
  // would wait for its ranks in their next collective.
  std::vector<std::string> copies = {};
};

// What one call of parallelize() returns. The modules communicate as long as it exists. For one
// thread at a time, besides autograd's threads during backward.
class Parallelized {
 public:
  virtual ~Parallelized() = default;
};

// Splits the weights of the modules that the plan names along mesh dimension `dim`, in place: each
// parameter stays the same tensor, and holds rank 0's values along `dim` (of all ranks, with equal
// seeds). Apply it before fully_shard and replicate, and before the first backward. Tied weights
// stay tied if both modules split them alike. Parameters and buffers that no style splits are
// copies. modules::layout_of() and full_tensor() (modules/distribution.h) know all of them.
//
// Collective over `dim`. Throws std::invalid_argument on every rank, before anything has changed,
// for an entry of the plan that names no module, a module that is neither Linear nor Embedding or
// that has options that its style does not support, a module or weight that is split twice in
// different ways, a weight that is tied to one of a module that the plan does not name, a weight
// that has a gradient, and a layout that is not replicate or shard.
//
// A parameter that no style names and that meets this rank's part of an activation, as that of an
// adapter between two layers of sequence parallelism, would get the gradient of that part alone.
// The first forward that records a graph throws std::invalid_argument on every rank then, which
// names the parameter; give its module the style sequence_parallel(). Parameters of modules that
// all ranks call with the same inputs need no style. Noticed at calls through modules::forward(),
// of modules that the plan names and of those around them or after them.
[[nodiscard]] std::shared_ptr<Parallelized> parallelize(torch::nn::Module& module, const Plan& plan,
                                                        comms::Mesh& mesh, const std::string& dim,
                                                        const Options& options = {});

}  // namespace pipewright::tp

#endif  // PIPEWRIGHT_TP_PARALLELIZE_H_
