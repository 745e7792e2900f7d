#include <gtest/gtest.h>
#include <sys/utsname.h>

#include "pipewright/comms/process/environment.h"

namespace pipewright::comms {
namespace {

TEST(HostName, IsThatOfUname) {
  utsname system{};
  ASSERT_EQ(uname(&system), 0);
  EXPECT_EQ(host_name(), system.nodename);
}

}  // namespace
}  // namespace pipewright::comms
