#include "tests/device/machine.h"

#include "tests/device/scheduler.h"

namespace pipewright::testdevice {

// Never destroyed: tensors in static and thread-local variables are freed after main().
Machine& machine() {
  static Machine* const created = new Machine;
  return *created;
}

Stream& stream_of(const c10::Stream& stream) {
  Machine& m = machine();
  auto& slot = m.streams[{stream.device_index(), stream.id()}];
  if (!slot) {
    slot = std::make_unique<Stream>();
    slot->device = stream.device_index();
    slot->id = stream.id();
    slot->index = m.streams.size() - 1;
    slot->run = m.run;
    slot->eagerness = draw_eagerness(slot->device);
  }
  return *slot;
}

c10::Stream c10_stream(const Stream& stream) {
  return c10::Stream(c10::Stream::UNSAFE,
                     c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(stream.device)),
                     stream.id);
}

}  // namespace pipewright::testdevice
