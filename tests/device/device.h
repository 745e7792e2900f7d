#ifndef PIPEWRIGHT_TESTS_DEVICE_DEVICE_H_
#define PIPEWRIGHT_TESTS_DEVICE_DEVICE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/device/machine.h"

// A device that exists on every machine: c10's PrivateUse1 on host memory, with CUDA's rules for
// streams, events, memory and host synchronisation. Programs written for a GPU run on it unchanged
// and compute the host's bits (see round_otherwise()), but kernels are queued and run late, in an
// order that a seed chooses. So a missing wait, a tensor that is freed too early and a hidden host
// synchronisation are found without a GPU:
//
//   testdevice::seed(7);
//   at::Tensor x = at::ones({4}, testdevice::device(0));  // queued
//   ...
//   testdevice::drain();                                  // runs all that is left
//   EXPECT_EQ(testdevice::races(), std::vector<std::string>());
//
// machine.h has the state; scheduler.h runs operations, races.h detects races, memory.h allocates,
// fallback.h turns operators into kernels, communicator.h and backend.h communicate like NCCL.
//
// It differs from a GPU in this: kernels take no time, so a RECV that waits, which occupies compute
// units on a GPU, costs nothing; memory never runs out; convolutions are the host's. It cannot be
// linked together with CUDA, because a process has one accelerator.

namespace pipewright::testdevice {

inline c10::Device device(int index) { return {kDeviceType, static_cast<c10::DeviceIndex>(index)}; }

// Starts a run: drains the devices, sets the seed (scheduler.h) and the generators of all devices,
// and forgets races, errors and counts. No rank may be running.
void seed(uint64_t seed);

c10::Stream new_stream(int device);
// Makes `second` wait for what has been queued on `first`.
void order(const c10::Stream& first, const c10::Stream& second);

// For the time that a thread is a rank. All ranks create theirs before the first one starts;
// scheduler.h says what for.
class RankScope {
 public:
  explicit RankScope(int rank);
  ~RankScope();
  // The calling thread is the rank, until it ends.
  static void enter();
  static bool is_entered();
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

 private:
  const int rank_;  // its device too
};

// Host synchronisations of this run, by the name of what caused them.
std::map<std::string, int64_t> host_syncs();
// While forbidden, each one throws std::runtime_error.
void forbid_host_syncs(bool forbid);
// Waits for all streams of a device. Counts as a host synchronisation.
void synchronize(int device);
// Runs everything on all devices, for the end of a test; does not count. Throws std::runtime_error
// on a deadlock.
void drain();

// The races of this run: pairs of accesses that nothing orders, whether or not they went wrong.
std::vector<std::string> races();
// What kernels threw in this run. The next host synchronisation throws the first of them.
std::vector<std::string> errors();
// The number of kernels issued in this run, by name.
std::map<std::string, int64_t> kernels();

// The most bytes that one device has needed at a time since restart_peak(): those of tensors, and
// of freed ones that recordStream() keeps from being allocated again.
int64_t peak_bytes(int device);
void restart_peak(int device);

// The names of the communication of one device and of its kernels from launch(), in the order in
// which they ran.
std::vector<std::string> execution_order(int device);

// Faults to inject until the next seed(): events order nothing; recordStream does nothing.
void ignore_event_waits(bool ignore);
void ignore_record_stream(bool ignore);

// Until the next seed(): the streams of a device share so many hardware queues (with CUDA, at most
// CUDA_DEVICE_MAX_CONNECTIONS, 8 by default). A queue begins operations in the order in which they
// were issued: one that waits for its stream or for an event holds up those of other streams. To be
// called while the devices are idle.
void limit_hardware_queues(int queues);

// Until the next seed(): products and tanh round otherwise than on the host, as on a GPU. So a test
// that passes on a GPU too compares no bits with what the host has computed.
void round_otherwise(bool otherwise);
bool rounds_otherwise();

// Queues a kernel on the current stream of the current device. `reads` and `writes` are what it
// accesses, through on_host().
void launch(const std::string& name, const std::vector<at::Tensor>& reads,
            const std::vector<at::Tensor>& writes, std::function<void()> kernel);
// A host tensor on the memory of a device tensor, which it does not own.
at::Tensor on_host(const at::Tensor& tensor);

}  // namespace pipewright::testdevice

#endif  // PIPEWRIGHT_TESTS_DEVICE_DEVICE_H_
