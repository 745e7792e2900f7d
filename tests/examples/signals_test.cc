// train_gpt and signals: SIGUSR2 asks where it is, and SIGUSR1 or SIGTERM makes it save and stop.
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "tests/support/shell/shell.h"

namespace pipewright::examples {
namespace {

using tests::Output;
using tests::run_shell;

// Two ranks, each a process, with stdout and stderr in the folder $d. `script` gets signals to
// $rank0 and $rank1 once they train. Prints exit codes, files and output of both, and what a run
// that is resumed prints. `options` are those of the first run.
std::string signalled(const std::string& script, const std::string& options = "") {
  return run_shell(
             "d=$(mktemp -d); await() { for i in $(seq 1200); do grep -q \"$1\" $2 && return; "
             "sleep "
             "0.05; done; echo \"no $1 in $2\"; }; "
             "port=$(python3 -c 'import socket; s = socket.socket(); s.bind((\"127.0.0.1\", 0)); "
             "print(s.getsockname()[1])'); "
             "train='examples/train_gpt --data docs/command_line.md --layers 2 --dim 32 --context "
             "16 --batch 8 --pp 2 --json'; "
             "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port OMP_NUM_THREADS=1 "
             "TORCH_FR_DUMP_TEMP_FILE=$d/dump_; "
             "for r in 0 1; do RANK=$r LOCAL_RANK=$r TORCHELASTIC_ERROR_FILE=$d/err_file$r timeout "
             "-s KILL 120 $train --steps 1000000 " +
             options +
             " --save $d/saved > $d/out$r 2> $d/err$r & eval \"shell$r=$!\"; done; "
             "await loss $d/out1; rank0=$(pgrep -P $shell0); rank1=$(pgrep -P $shell1); " +
             script +
             "; wait $shell0; echo exit 0: $?; wait $shell1; echo exit 1: $?; ls $d; cat $d/err*; "
             "last=$(tail -n 1 $d/out1 | sed 's/.*\"step\": *\\([0-9]*\\).*/\\1/'); echo last "
             "$last; "
             "unset WORLD_SIZE; $train --steps $((last + 3)) --save $d/saved --resume latest 2>&1; "
             "echo exit resumed: $?; rm -r $d")
      .text;
}

void expect_saved_and_stopped(const std::string& text) {
  EXPECT_NE(text.find("exit 0: 4\nexit 1: 4\n"), std::string::npos) << text;
  EXPECT_NE(text.find("saved and stopped by a signal"), std::string::npos) << text;
  EXPECT_NE(text.find("exit resumed: 0\n"), std::string::npos) << text;
  std::smatch last;
  ASSERT_TRUE(std::regex_search(text, last, std::regex("\nlast ([0-9]+)\n"))) << text;
  // It goes on after the last step that was trained.
  const std::regex next("\"step\": *" + std::to_string(std::stoi(last[1]) + 1) + "[,}]");
  EXPECT_TRUE(std::regex_search(text, next)) << text;
  EXPECT_FALSE(std::regex_search(text, std::regex("\"step\": *" + last[1].str() + "[,}]"))) << text;
}

// One rank gets the signal, and all stop after the same step.
TEST(Signals, OneRankIsToldToStopAndAllSaveAndStop) {
  expect_saved_and_stopped(signalled("kill -USR1 $rank1"));
  expect_saved_and_stopped(signalled("kill -TERM $rank0"));
}

TEST(Signals, ARankThatIsAskedSaysWhereItIsAndGoesOn) {
  const std::string text = signalled(
      "kill -USR2 $rank0; await '^rank 0: ' $d/err0; cp $d/out1 $d/before; sleep 0.2; "
      "for i in $(seq 1200); do cmp -s $d/out1 $d/before || break; sleep 0.05; done; "
      "cmp -s $d/out1 $d/before || echo goes on; kill -USR1 $rank0");
  EXPECT_NE(text.find("goes on\n"), std::string::npos) << text;
  EXPECT_TRUE(std::regex_search(text, std::regex("\nrank 0: .*step [0-9]+.*, for [0-9.]+ s\n")))
      << text;
  EXPECT_NE(text.find("\ndump_0\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("dump_1"), std::string::npos) << text;
  expect_saved_and_stopped(text);
}

// A rank is stopped: the other one ends with the exit code of a hang, which it names.
TEST(Signals, ARankThatHangsIsNamedAndTheExitCodeIsThree) {
  const std::string text = signalled(
      "kill -STOP $rank1; for i in $(seq 1200); do kill -0 $rank0 2>/dev/null || break; sleep "
      "0.05; done; kill -KILL $rank1",
      "--timeout 4 --first-timeout 60");
  EXPECT_NE(text.find("exit 0: 3\n"), std::string::npos) << text;
  EXPECT_TRUE(std::regex_search(text, std::regex("\"message\":.*culprit: rank 1 "))) << text;
}

}  // namespace
}  // namespace pipewright::examples
