#ifndef PIPEWRIGHT_AUTOGRAD_OUTSIDE_WRITES_H_
#define PIPEWRIGHT_AUTOGRAD_OUTSIDE_WRITES_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <vector>

namespace pipewright::autograd {

// The tensors that a function writes in place and that outlive it: running statistics and counters
// of norms, and whatever else a module updates in its forward. Activation checkpointing calls a
// function twice and undoes what the second call writes:
//
//   OutsideWrites writes;
//   outputs = writes.record([&] { return forward(inputs); });
//   ...
//   const OutsideWrites::Values values = writes.values();
//   outputs = forward(inputs);  // updates the running statistics again
//   values.restore();
//
// Operators say in their schema which arguments they write; batch norms, which do not, are known.
// Not noticed: writes through data_ptr(), and a member that is assigned another tensor. For one
// thread.
class OutsideWrites {
 public:
  using Function = std::function<std::vector<at::Tensor>()>;
  // Calls `function`. Replaces what an earlier call recorded. The outputs, and what is in their
  // memory, are not outside.
  std::vector<at::Tensor> record(const Function& function);

  // Copies of tensors in memory that still exists.
  class Values {
   public:
    // Autograd notices it as a write to those tensors that were written meanwhile.
    void restore() const;

   private:
    friend class OutsideWrites;
    struct Value {
      at::Tensor bytes, copy;  // of a whole storage
      at::Tensor tensor;       // undefined if it no longer exists
      uint32_t version = 0;    // of the tensor
    };
    std::vector<Value> values_;
  };
  Values values() const;

 private:
  friend class WriteRecording;
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Written {
    WeakStorage storage;
    WeakTensor tensor;  // the first one that was written in it
  };
  void note(const at::Tensor& tensor);

  std::map<const c10::StorageImpl*, Written> written_;
};

// While it lives, what this thread writes is or is not recorded. For wrappers of modules, which
// write into tensors of their own around the forward of a module.
class RecordsWrites {
 public:
  explicit RecordsWrites(bool records);
  ~RecordsWrites();
  RecordsWrites(const RecordsWrites&) = delete;
  RecordsWrites& operator=(const RecordsWrites&) = delete;

 private:
  const bool outer_;
};

}  // namespace pipewright::autograd

#endif  // PIPEWRIGHT_AUTOGRAD_OUTSIDE_WRITES_H_
