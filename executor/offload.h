#ifndef PIPEWRIGHT_EXECUTOR_OFFLOAD_H_
#define PIPEWRIGHT_EXECUTOR_OFFLOAD_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "pipewright/comms/side_stream.h"

namespace pipewright::executor {

// Makes LibTorch ask for the hooks of SavedActivations when an operator saves a tensor for its
// backward. Without effect once it has been called. Throws ContractError in a process whose
// autograd engine is another library's, as in Python. Not during a backward of any thread.
void install_offload();

// What one forward saves for its backward, and where it is: on the device, on the host, or on the
// way. Memory is copied as a whole, once, however many operators saved a tensor in it.
//
//   SavedActivations saved(least_bytes);
//   {
//     const SavedActivations::Recording recording(saved, inputs_and_weights);
//     outputs = forward(inputs);
//   }
//   saved.copy_to_host(stream);  // starts; nothing is freed yet
//   ...
//   saved.free_on_device();      // the current stream waits for the copies
//   ...
//   saved.copy_back(stream);     // starts
//   ...
//   saved.await();               // the current stream waits for the copies
//   backward();                  // frees each memory with the last operator that saved it
//
// What stays on the device: tensors of less than least_bytes, weights and views of them, and what
// shares the memory of the given tensors. A tensor must not be written in place after it was saved:
// its backward throws ContractError, as it would without this class.
//
// To be destroyed before the graph. The methods are for one thread; a backward may run on another
// one, while this one waits for it. Never blocks the host.
class SavedActivations {
 public:
  explicit SavedActivations(int64_t least_bytes);
  ~SavedActivations();

  // While it lives, what the calling thread's operators save belongs to `saved`. They do not nest.
  class Recording {
   public:
    Recording(SavedActivations& saved, const std::vector<at::Tensor>& stay);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
  };

  // What is on the device and can be copied, in bytes.
  int64_t bytes() const;

  // Each call is without effect if the memory is already where it would be.
  void copy_to_host(comms::SideStream& stream);
  void free_on_device();
  void copy_back(comms::SideStream& stream);
  void await();

 private:
  friend class OffloadEngine;
  class Memory;
  class Hook;
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_OFFLOAD_H_
