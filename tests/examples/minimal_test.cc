// examples/minimal.cc, the trainer that docs/training.md explains: it learns, the same on any
// number of ranks, and what it saves is whole.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/shell/shell.h"

namespace pipewright::examples {
namespace {

using tests::Output;
using tests::run_shell;

TEST(Minimal, TrainsAndSaves) {
  double first = 0;
  for (const std::string ranks : {"2", "4", "6"}) {
    const Output output = run_shell(
        "root=$PWD; d=$(mktemp -d); cd $d; $root/cli/pipewright launch -n " + ranks +
        " -- $root/examples/minimal 2>&1 && $root/cli/pipewright checkpoint verify minimal_ckpt && "
        "$root/cli/pipewright checkpoint ls minimal_ckpt/step-000030; s=$?; rm -r $d; exit $s");
    ASSERT_EQ(output.status, 0) << output.text;
    const size_t at = output.text.find("loss ");
    ASSERT_NE(at, std::string::npos) << output.text;
    const double loss = std::stod(output.text.substr(at + 5));
    if (first == 0) first = loss;
    EXPECT_NEAR(loss, first, 1e-5) << ranks;
    EXPECT_LT(loss, 0.5);  // zeros have about 1
    EXPECT_NE(output.text.find("whole: "), std::string::npos) << output.text;
    EXPECT_NE(output.text.find("optim.state.layer3.weight.exp_avg"), std::string::npos)
        << output.text;
  }
}

TEST(Minimal, EndsWithAnError) {
  const Output output = run_shell("cli/pipewright launch -n 3 -- examples/minimal 2>&1");
  EXPECT_EQ(output.status, 1) << output.text;
  EXPECT_NE(output.text.find("error: "), std::string::npos) << output.text;
  EXPECT_EQ(output.text.find("terminate called"), std::string::npos) << output.text;
}

}  // namespace
}  // namespace pipewright::examples
