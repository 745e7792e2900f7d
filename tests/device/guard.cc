// What c10, ATen and autograd ask of a device: the guard (devices, streams, events), the hooks
// (generators, pinned memory), and its name. Without a name PrivateUse1 is not an accelerator to
// at::getAccelerator(), and autograd would not run its nodes on streams.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <thread>

#include "tests/device/current.h"
#include "tests/device/device.h"
#include "tests/device/memory.h"
#include "tests/device/races.h"
#include "tests/device/scheduler.h"

namespace pipewright::testdevice {
namespace {

using c10::DeviceIndex;

Event* event_of(void* event) { return static_cast<Event*>(event); }

int index_of(c10::Device device) { return device.has_index() ? device.index() : current_device(); }

const std::thread::id main_thread = std::this_thread::get_id();  // which has ranks as threads

// An error of the run where CUDA would make a context on device 0.
void check_device(const std::string& what, const Event& event) {
  if (has_set_device() || std::this_thread::get_id() == main_thread || !event.stream ||
      event.stream->device == current_device())
    return;
  machine().errors.push_back("an event of device " + std::to_string(event.stream->device) +
                             " was " + what + " on a thread that has set no device");
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDeviceType; }
  DeviceIndex deviceCount() const noexcept override { return kNumDevices; }
  c10::Device getDevice() const override { return device(current_device()); }
  void setDevice(c10::Device to) const override {
    TORCH_CHECK(to.index() < kNumDevices, "test device: expected a device below ", kNumDevices,
                ", got ", to);
    uncheckedSetDevice(to);
  }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    if (to.has_index()) exchange_current_device(to.index());
  }
  c10::Device exchangeDevice(c10::Device to) const override {
    const c10::Device before = getDevice();
    setDevice(to);
    return before;
  }

  c10::Stream getStream(c10::Device on) const override { return current_stream(index_of(on)); }
  c10::Stream getDefaultStream(c10::Device on) const override {
    return c10::Stream(c10::Stream::UNSAFE, device(index_of(on)), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device on, bool) const override {
    return new_stream(index_of(on));
  }
  c10::Stream getNewStream(c10::Device on, int) const override { return new_stream(index_of(on)); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return exchange_current_stream(stream);
  }

  void record(void** event, const c10::Stream& stream, DeviceIndex, c10::EventFlag) const override {
    const Lock lock(machine().mutex);
    if (!*event) *event = new Event;
    *event_of(*event) = record_event(stream_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    const Lock lock(machine().mutex);
    wait_event(stream_of(stream), *event_of(event));
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    if (!event) return;
    const Lock lock(machine().mutex);
    check_device("destroyed", *event_of(event));
    delete event_of(event);
  }
  bool queryEvent(void* event) const override {
    const Lock lock(machine().mutex);
    check_device("queried", *event_of(event));
    const bool reached = has_reached(*event_of(event)->stream, event_of(event)->position);
    throw_sticky_error();
    return reached;
  }
  bool queryStream(const c10::Stream& stream) const override {
    const Lock lock(machine().mutex);
    Stream& queried = stream_of(stream);
    return has_reached(queried, queried.issued);
  }
  void synchronizeEvent(void* event) const override {
    Lock lock(machine().mutex);
    synchronize_host(lock, "synchronizeEvent", *event_of(event));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Lock lock(machine().mutex);
    synchronize_host(lock, "synchronizeStream", record_event(stream_of(stream)));
  }
  void synchronizeDevice(DeviceIndex index) const override { synchronize(index); }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_allocator().recordStream(data, stream);
  }
  // In milliseconds. Events have the times at which their streams really reached them.
  double elapsedTime(void* from, void* to, DeviceIndex) const override {
    const Lock lock(machine().mutex);
    return 1e3 * (*event_of(to)->seconds - *event_of(from)->seconds);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// Generators of the host, so that equal seeds give equal numbers on the host and the device.
struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kNumDevices; }
  DeviceIndex getCurrentDevice() const override {
    return static_cast<DeviceIndex>(current_device());
  }
  void setCurrentDevice(DeviceIndex to) const override { exchange_current_device(to); }
  DeviceIndex exchangeDevice(DeviceIndex to) const override {
    return static_cast<DeviceIndex>(exchange_current_device(to));
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex to) const override { return exchangeDevice(to); }
  const at::Generator& getDefaultGenerator(DeviceIndex of) const override {
    static const auto* const generators = [] {
      auto* created = new std::vector<at::Generator>;
      for (int i = 0; i < kNumDevices; ++i) created->push_back(at::detail::createCPUGenerator());
      return created;
    }();
    return generators->at(static_cast<size_t>(of < 0 ? current_device() : of));
  }
  at::Generator getNewGenerator(DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  at::Device getDeviceFromPtr(void* data) const override {
    const Lock lock(machine().mutex);
    const Block* block = block_of(data);
    TORCH_CHECK(block, "test device: expected a pointer to its memory");
    return device(block->stream->device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

const bool registered = [] {
  c10::register_privateuse1_backend("late");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  c10::SetAllocator(kDeviceType, &device_allocator());
  return true;
}();

}  // namespace
}  // namespace pipewright::testdevice
