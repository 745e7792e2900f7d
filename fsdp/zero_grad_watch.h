#ifndef PIPEWRIGHT_FSDP_ZERO_GRAD_WATCH_H_
#define PIPEWRIGHT_FSDP_ZERO_GRAD_WATCH_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace pipewright::fsdp {

// Tells what a user has done to the .grad of a parameter that has more gradients elsewhere, which
// are not reduced yet. zero_grad() means these too, but only .grad is there for it to clear. So
// between two backwards such a parameter has a .grad: a mark of zeros if it had none.
class ZeroGradWatch {
 public:
  enum class Found {
    kUntouched,
    kCleared,  // zero_grad() has been called, or .grad replaced
    kWritten   // other values have been written to it
  };

  // Begins to watch. `mark` becomes the .grad if there is none; see make_mark().
  void begin(const at::Tensor& registered, const at::Tensor& mark);
  // Ends the watch, and takes the mark away if it is untouched. kUntouched if there was no watch.
  Found end(const at::Tensor& registered);

  // Zeros, negative ones: equal to others, but zero_grad(false) writes positive ones, whereas those
  // that are multiplied, as in clipping, stay negative.
  static at::Tensor make_mark(int64_t numel, const at::TensorOptions& options);

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  std::optional<WeakStorage> storage_;  // of .grad; nullopt: no watch
  int64_t version_ = 0;                 // of .grad
  bool is_mark_ = false;                // .grad is the mark
};

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_ZERO_GRAD_WATCH_H_
