#ifndef PIPEWRIGHT_MODULES_GRADIENT_SYNC_H_
#define PIPEWRIGHT_MODULES_GRADIENT_SYNC_H_

namespace pipewright::modules {

// Tells whether the current backward reduces the gradients of a unit or only accumulates them. A
// trainer decides with set_requires_gradient_sync and no_sync scopes; while an executor drives the
// unit, the program decides, and the trainer's settings are ignored.
class GradientSync {
 public:
  // By the trainer.
  void set_required(bool required) { required_ = required; }
  // 1 when a no_sync scope opens, -1 when it closes.
  void hold(int change) { held_ += change; }
  bool is_required() const { return required_ && held_ == 0; }

  // By the executor: `last` is true from the last backward before a REDUCE_GRAD until it has run.
  void set_driven(bool driven) {
    driven_ = driven;
    last_ = false;
  }
  void set_last_backward(bool last) { last_ = last; }
  bool is_driven() const { return driven_; }

  bool reduces() const { return driven_ ? last_ : is_required(); }

 private:
  bool required_ = true;
  int held_ = 0;
  bool driven_ = false;
  bool last_ = false;
};

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_GRADIENT_SYNC_H_
