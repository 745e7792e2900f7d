#ifndef PIPEWRIGHT_EXECUTOR_SLICE_CACHE_H_
#define PIPEWRIGHT_EXECUTOR_SLICE_CACHE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace pipewright::executor {

// Keeps the keys and values of earlier slices, to which later slices of a microbatch attend, and
// collects the gradients that these return for them (ir::Schedule::slices). A stage has one cache
// for all of its modules:
//
//   struct Attention : torch::nn::Module {
//     explicit Attention(std::shared_ptr<SliceCache> slices)
//         : cache(std::move(slices)), keys(cache->add()), values(cache->add()) {}
//     at::Tensor forward(at::Tensor q, at::Tensor k, at::Tensor v) {  // [batch, heads, slice, dim]
//       k = cache->extend(keys, k, 2);
//       v = cache->extend(values, v, 2);  // [batch, heads, all slices so far, dim]
//       return attention(q, k, v, causal_mask(q.size(2), k.size(2)));
//     }
//     std::shared_ptr<SliceCache> cache;
//     const size_t keys, values;
//   };
//   stage->set_slice_cache(cache);  // a ModuleStage
//
// Idea: extend() is one node of the autograd graph of its slice. Its backward returns the gradient
// of this slice's own part, with what later slices have left for it, and leaves the gradients of
// the earlier parts to the nodes of those. Backwards run from the last slice to the first.
//
// Memory: what is cached of a microbatch is in one buffer, from the F of its first slice to the B
// or I of that; a second one of the same size has the gradients, from the backward of the last
// slice on.
//
// With one slice, extend() returns its argument. For the thread of the stage.
class SliceCache {
 public:
  SliceCache();

  // Adds a result to cache and returns its number. To be called before the first step.
  size_t add();

  // In a forward of the stage: caches `slice`, the running slice's part of a result, and returns it
  // behind the parts of the earlier slices along dimension `dim`. Each forward extends each result
  // once, and all slices have the same shape. Returns `slice` itself if microbatches are not cut,
  // and outside of the executor. Throws ContractError for another shape and a second call.
  at::Tensor extend(size_t result, const at::Tensor& slice, int64_t dim);

  // The number of the running slice in its microbatch; 0 outside of the executor. A stage that adds
  // embeddings of positions begins with position index() * length of a slice.
  int64_t index() const;

 private:
  friend class ModuleStage;
  class ExtendNode;
  enum class Phase { kNone, kForward, kBackward };
  // A result of one microbatch.
  struct Kept {
    at::Tensor buffer;  // room for all slices
    at::Tensor grads;   // of the same size; undefined before the first gradient of an earlier slice
    int filled = 0;     // slices in the buffer
    int ended = 0;      // slices whose backward has ended: the last ones
    bool took_grads = false;  // the running backward has
  };
  struct State {
    int slices = 1;
    Phase phase = Phase::kNone;
    bool is_used = false;                           // index() was read in the running action
    int microbatch = 0, slice = 0;                  // of the running action
    std::vector<std::map<int, Kept>> results = {};  // by microbatch
  };

  // An F, or a B or I, of a slice begins and ends; `unit` counts the slices of all microbatches.
  // Throws ContractError if slices are not in the order that they need, or if a result was not
  // extended, or its gradients have not gone on.
  void begin(Phase phase, int unit);
  void end(bool keeps);
  void set_slices(int slices);
  void clear();

  // Shared with the nodes of graphs, which may outlive the cache.
  const std::shared_ptr<State> state_;
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_SLICE_CACHE_H_
