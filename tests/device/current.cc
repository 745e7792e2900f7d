#include "tests/device/current.h"

#include <array>
#include <utility>

namespace pipewright::testdevice {
namespace {

thread_local int device_now = 0;
thread_local bool is_device_set = false;
thread_local std::array<int64_t, kNumDevices> stream_ids_now = {};

}  // namespace

int current_device() { return device_now; }

int exchange_current_device(int device) {
  is_device_set = true;
  return std::exchange(device_now, device);
}

bool has_set_device() { return is_device_set; }

c10::Stream current_stream(int device) {
  return c10::Stream(c10::Stream::UNSAFE,
                     c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(device)),
                     stream_ids_now.at(static_cast<size_t>(device)));
}

c10::Stream exchange_current_stream(const c10::Stream& stream) {
  const c10::Stream before = current_stream(stream.device_index());
  stream_ids_now.at(static_cast<size_t>(stream.device_index())) = stream.id();
  return before;
}

}  // namespace pipewright::testdevice
