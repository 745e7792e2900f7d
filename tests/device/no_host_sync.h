#ifndef PIPEWRIGHT_TESTS_DEVICE_NO_HOST_SYNC_H_
#define PIPEWRIGHT_TESTS_DEVICE_NO_HOST_SYNC_H_

#include <gtest/gtest.h>

#include <barrier>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "tests/device/device.h"

namespace pipewright::tests {

// Expects that `step`, which all ranks run at the same time, never makes a host wait for a device.
inline void expect_no_host_sync(std::barrier<>& all, const std::function<void()>& step) {
  all.arrive_and_wait();
  const std::map<std::string, int64_t> before = testdevice::host_syncs();
  all.arrive_and_wait();
  step();
  all.arrive_and_wait();
  EXPECT_EQ(testdevice::host_syncs(), before);
  all.arrive_and_wait();
}

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_DEVICE_NO_HOST_SYNC_H_
