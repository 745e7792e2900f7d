#pragma once

// See ../context.h.
namespace gloo::transport {

class Device;

}  // namespace gloo::transport
