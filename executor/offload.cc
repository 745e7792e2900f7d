// Autograd asks its engine for hooks whenever an operator saves a tensor. LibTorch's own engine has
// none to give, so the process gets an engine that does; everything else of it is LibTorch's.
//
// A hook keeps a tensor's shape and a share of its memory, which may be on the device or not. The
// memory goes with its last hook, which the graph owns.
#include "pipewright/executor/offload.h"

#include <ATen/Functions.h>
#include <c10/core/Storage.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <set>
#include <typeinfo>
#include <utility>

#include "pipewright/comms/device_event.h"
#include "pipewright/ir/errors.h"

namespace pipewright::executor {

// The memory of one storage.
class SavedActivations::Memory {
 public:
  explicit Memory(c10::Storage storage) : device_(storage.device()), storage_(std::move(storage)) {}

  at::Device device() const { return device_; }
  int64_t bytes() const { return storage_ ? static_cast<int64_t>(storage_.nbytes()) : 0; }

  // A saved tensor, which shares its version with all that is written to.
  void add(const at::Tensor& tensor) { saved_.emplace_back(tensor.detach(), tensor._version()); }

  void copy_to_host() {
    was_written_ = was_written();
    saved_.clear();
    const at::Tensor from = bytes_in(storage_);
    host_ = at::empty(from.sizes(), at::TensorOptions(at::kByte).pinned_memory(true));
    host_.copy_(from, /*non_blocking=*/true);
  }
  void free_on_device() { storage_ = {}; }

  // Of the current stream.
  void allocate() {
    storage_ = at::empty(host_.sizes(), at::TensorOptions(at::kByte).device(device_)).storage();
  }
  void copy_back() { bytes_in(storage_).copy_(host_, /*non_blocking=*/true); }
  void free_on_host() { host_.reset(); }

  // For a backward.
  const c10::Storage& storage() const {
    if (was_written())
      throw ContractError(
          "offload: a tensor that a forward saved for its backward was written in place: expected "
          "no such write between the two");
    return storage_;
  }

 private:
  bool was_written() const {
    return was_written_ || std::ranges::any_of(saved_, [](const auto& one) {
             return one.first._version() != one.second;
           });
  }
  static at::Tensor bytes_in(const c10::Storage& storage) {
    return at::empty({0}, at::TensorOptions(at::kByte).device(storage.device()))
        .set_(storage, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
  }

  const at::Device device_;
  c10::Storage storage_;  // null while the memory is on the host only
  at::Tensor host_;
  std::vector<std::pair<at::Tensor, uint32_t>> saved_;  // until they are copied
  bool was_written_ = false;
};

struct SavedActivations::State {
  enum class Place { kDevice, kLeaving, kHost, kReturning };

  const int64_t least_bytes;
  std::set<const c10::StorageImpl*> stay = {};                               // while it records
  std::map<const c10::StorageImpl*, std::weak_ptr<Memory>> by_storage = {};  // likewise
  std::vector<std::weak_ptr<Memory>> all = {};
  Place place = Place::kDevice;
  std::optional<c10::Event> copied = {};  // of the copies that were started last

  // Those that the graph still needs.
  std::vector<std::shared_ptr<Memory>> needed() const {
    std::vector<std::shared_ptr<Memory>> memories;
    for (const std::weak_ptr<Memory>& one : all) {
      if (auto memory = one.lock()) memories.push_back(std::move(memory));
    }
    return memories;
  }

  template <typename Function>
  void copy(comms::SideStream& stream, const std::vector<std::shared_ptr<Memory>>& memories,
            const Function& function) {
    if (memories.empty()) return;
    const at::Device device = memories.front()->device();
    stream.wait_for_current();
    const comms::SideStream::Scope scope(stream, device);
    for (const auto& memory : memories) function(*memory);
    copied.emplace(device.type());
    copied->record(comms::current_stream(device));
  }
  // The current stream does, for the copies that were started last.
  void wait() {
    if (!copied) return;
    copied->block(comms::current_stream(copied->device()));
    copied.reset();
  }
};

namespace {

thread_local SavedActivations* current_recording = nullptr;

// A weight, or a view of one.
bool is_of_weight(const at::Tensor& tensor) {
  const at::TensorBase& whole = tensor.is_view() ? tensor._base() : tensor;
  return whole.is_leaf() && whole.requires_grad();
}

}  // namespace

// A tensor that one operator saved.
class SavedActivations::Hook final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hook(State& state) : state_(state) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    if (stays(tensor)) {
      // A weight itself, not what it holds now: a wrapper may give it other memory.
      kept_ = tensor.is_leaf() ? tensor : tensor.detach();
      return;
    }
    std::weak_ptr<Memory>& known = state_.by_storage[tensor.storage().unsafeGetStorageImpl()];
    memory_ = known.lock();
    if (!memory_) {
      memory_ = std::make_shared<Memory>(tensor.storage());
      known = memory_;
      state_.all.push_back(memory_);
    }
    memory_->add(tensor);
    shape_ = at::empty_strided({0}, {1}, tensor.options().device(at::kMeta));
    sizes_ = tensor.sizes().vec();
    strides_ = tensor.strides().vec();
    offset_ = tensor.storage_offset();
  }

  at::Tensor call_unpack_hook() override {
    if (!memory_) return kept_;
    const c10::Storage& storage = memory_->storage();
    return at::empty({0}, shape_.options().device(storage.device()))
        .set_(storage, offset_, sizes_, strides_);
  }

 private:
  bool stays(const at::Tensor& tensor) const {
    if (!tensor.defined() || !tensor.has_storage() || tensor.layout() != at::kStrided) return true;
    return tensor.is_cpu() || is_of_weight(tensor) ||
           static_cast<int64_t>(tensor.storage().nbytes()) < state_.least_bytes ||
           state_.stay.contains(tensor.storage().unsafeGetStorageImpl());
  }

  State& state_;
  at::Tensor kept_;
  std::shared_ptr<Memory> memory_;  // null if the tensor stays
  at::Tensor shape_;                // of its type
  std::vector<int64_t> sizes_, strides_;
  int64_t offset_ = 0;
};

// Backwards run on LibTorch's own engine: a process starts the threads of one engine, of that which
// runs the first backward, which may have been before this one was set.
class OffloadEngine final : public torch::autograd::Engine {
 public:
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return get_base_engine().execute(roots, inputs, keep_graph, create_graph, accumulate_grad,
                                     outputs);
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (current_recording == nullptr) return nullptr;
    return std::make_unique<SavedActivations::Hook>(*current_recording->state_);
  }
};

void install_offload() {
  static const bool once = [] {
    const torch::autograd::Engine& present = torch::autograd::Engine::get_default_engine();
    if (typeid(present) != typeid(torch::autograd::Engine))
      throw ContractError(
          "offload: expected LibTorch's own autograd engine, got that of another library, such as "
          "Python's");
    // Never destroyed: its threads wait for backwards until the process ends.
    torch::autograd::set_default_engine_stub([]() -> torch::autograd::Engine& {
      static auto* engine = new OffloadEngine;
      return *engine;
    });
    return true;
  }();
  static_cast<void>(once);
}

SavedActivations::SavedActivations(int64_t least_bytes)
    : state_(new State{.least_bytes = least_bytes}) {}
// After a failed step, copies may be on their way from memory that the graph is about to free.
SavedActivations::~SavedActivations() { state_->wait(); }

SavedActivations::Recording::Recording(SavedActivations& saved,
                                       const std::vector<at::Tensor>& stay) {
  for (const at::Tensor& tensor : stay) {
    if (tensor.defined() && tensor.has_storage())
      saved.state_->stay.insert(tensor.storage().unsafeGetStorageImpl());
  }
  current_recording = &saved;
}

SavedActivations::Recording::~Recording() {
  State& state = *std::exchange(current_recording, nullptr)->state_;
  state.stay.clear();
  state.by_storage.clear();
}

int64_t SavedActivations::bytes() const {
  int64_t sum = 0;
  for (const auto& memory : state_->needed()) sum += memory->bytes();
  return sum;
}

void SavedActivations::copy_to_host(comms::SideStream& stream) {
  if (state_->place != State::Place::kDevice) return;
  state_->place = State::Place::kLeaving;
  const auto memories = state_->needed();
  state_->copy(stream, memories, [](Memory& memory) { memory.copy_to_host(); });
}

void SavedActivations::free_on_device() {
  if (state_->place != State::Place::kLeaving) return;
  state_->place = State::Place::kHost;
  state_->wait();
  for (const auto& memory : state_->needed()) memory->free_on_device();
}

void SavedActivations::copy_back(comms::SideStream& stream) {
  // What has not been freed is there. await() waits for its way to the host.
  if (state_->place == State::Place::kLeaving) state_->place = State::Place::kReturning;
  if (state_->place != State::Place::kHost) return;
  state_->place = State::Place::kReturning;
  const auto memories = state_->needed();
  for (const auto& memory : memories) memory->allocate();
  state_->copy(stream, memories, [](Memory& memory) { memory.copy_back(); });
}

void SavedActivations::await() {
  if (state_->place != State::Place::kReturning) return;
  state_->place = State::Place::kDevice;
  state_->wait();
  for (const auto& memory : state_->needed()) memory->free_on_host();
}

}  // namespace pipewright::executor
