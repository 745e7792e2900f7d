#ifndef PIPEWRIGHT_COMMS_TORCH_GAPS_FORWARDING_BACKEND_H_
#define PIPEWRIGHT_COMMS_TORCH_GAPS_FORWARDING_BACKEND_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

namespace pipewright::comms {

// A backend around another one, to which it passes every call that is no operation. A subclass
// issues the operations (collectives.def, and SENDs, RECVs, barriers).
class ForwardingBackend : public c10d::Backend {
 public:
  using c10d::Backend::Backend;

  using Tensor = at::Tensor;
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using Sizes = std::vector<int64_t>;
  using Inner = c10::intrusive_ptr<c10d::Backend>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using OptionsPtr = c10::intrusive_ptr<c10d::Backend::Options>;

  void startCoalescing() override { inner()->startCoalescing(); }
  Inner split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
              const OptionsPtr& options) override {
    return inner()->split(store, ranks, options);
  }
  Inner merge(const c10::intrusive_ptr<c10d::Store>& store, const OptionsPtr& options,
              const int& rank, const int& size) override {
    return inner()->merge(store, options, rank, size);
  }
  Inner shrink(const Sizes& without, int flags, const OptionsPtr& options) override {
    return inner()->shrink(without, flags, options);
  }
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override {
    inner()->registerOnCompletionHook(std::move(hook));
  }
  const std::string getBackendName() const override { return inner()->getBackendName(); }
  OptionsPtr getBackendOptions() override { return inner()->getBackendOptions(); }
  bool supportsSplitting() const override { return inner()->supportsSplitting(); }
  bool supportsCoalescing() const override { return inner()->supportsCoalescing(); }
  bool supportsTimeEstimation() const override { return inner()->supportsTimeEstimation(); }
  bool supportsShrinking() const override { return inner()->supportsShrinking(); }
  bool supportsTensorAlloc(c10::DeviceIndex device) override {
    return inner()->supportsTensorAlloc(device);
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool all) override {
    inner()->monitoredBarrier(options, all);
  }
  void setTimeout(std::chrono::milliseconds timeout) override { inner()->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { inner()->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner()->getSequenceNumberForGroup(); }
  void waitForPendingWorks() override { inner()->waitForPendingWorks(); }
  void enableCollectivesTiming() override { inner()->enableCollectivesTiming(); }
  void eagerConnectSingleDevice(at::Device device) override {
    inner()->eagerConnectSingleDevice(device);
  }
  c10d::ErrorType getError() override { return inner()->getError(); }
  std::shared_ptr<c10::Allocator> getMemAllocator() override { return inner()->getMemAllocator(); }
  Tensor allocateTensor(long size, at::TensorOptions options) override {
    return inner()->allocateTensor(size, options);
  }

 protected:
  virtual Inner inner() const = 0;
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_TORCH_GAPS_FORWARDING_BACKEND_H_
