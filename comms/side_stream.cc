#include "pipewright/comms/side_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace pipewright::comms {

using c10::impl::VirtualGuardImpl;

void SideStream::wait_for_current() {
  if (!stream_) return;
  if (!event_) event_.emplace(stream_->device_type());
  event_->record(VirtualGuardImpl(stream_->device_type()).getStream(stream_->device()));
  event_->block(*stream_);
}

void SideStream::join_current() {
  if (!stream_) return;
  event_->record(*stream_);
  event_->block(VirtualGuardImpl(stream_->device_type()).getStream(stream_->device()));
}

void SideStream::wait_for(const c10::Event& event) {
  if (stream_) event.block(*stream_);
}

SideStream::Scope::Scope(SideStream& side, c10::Device device) {
  if (device.is_cpu()) return;
  if (!side.stream_ || side.stream_->device() != device) {
    side.stream_ =
        VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, side.is_high_priority_);
    side.event_.reset();
    side.wait_for_current();
  }
  guard_.reset_stream(*side.stream_);
}

}  // namespace pipewright::comms
