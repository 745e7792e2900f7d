// The state of a generator goes through text and back.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pipewright/checkpoint/torch/optimizer_state.h"

namespace pipewright::checkpoint {
namespace {

TEST(GeneratorState, GoesOn) {
  const at::Generator one = at::detail::createCPUGenerator(1),
                      two = at::detail::createCPUGenerator(2);
  at::randn({5}, one);
  set_generator_state(two, generator_state(one));
  EXPECT_TRUE(at::randn({5}, one).equal(at::randn({5}, two)));
  const std::string state = generator_state(one);
  EXPECT_THROW(set_generator_state(two, state.substr(2)), std::invalid_argument);
  EXPECT_THROW(set_generator_state(two, "x" + state.substr(1)), std::invalid_argument);
}

}  // namespace
}  // namespace pipewright::checkpoint
