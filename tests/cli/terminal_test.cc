// On a terminal (a pty) the output is coloured and has the terminal's width. NO_COLOR, TERM=dumb
// and --color override the colours. Long work shows how far it is.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

namespace {

// The output of `pipewright` on a terminal of 16 columns.
std::string on_terminal(const std::vector<std::string>& words,
                        const std::vector<std::string>& environment, int expected_status) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  EXPECT_TRUE(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
  const int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
  EXPECT_GE(slave, 0);
  const winsize size{24, 16, 0, 0};
  ioctl(slave, TIOCSWINSZ, &size);
  const pid_t child = fork();
  if (child == 0) {
    dup2(slave, STDOUT_FILENO);
    dup2(slave, STDERR_FILENO);
    std::vector<std::string> all = {"cli/pipewright"};
    all.insert(all.end(), words.begin(), words.end());
    std::vector<char*> arguments, variables;
    for (std::string& word : all) arguments.push_back(word.data());
    std::vector<std::string> copy = environment;
    for (std::string& variable : copy) variables.push_back(variable.data());
    arguments.push_back(nullptr);
    variables.push_back(nullptr);
    execve(arguments[0], arguments.data(), variables.data());
    _exit(127);
  }
  close(slave);
  std::string text;
  char chunk[4096];
  for (ssize_t got; (got = read(master, chunk, sizeof chunk)) > 0;)
    text.append(chunk, static_cast<size_t>(got));
  close(master);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), expected_status) << text;
  return text;
}

// `pipewright print 1f1b.csv` with further words.
std::string print_on_terminal(const std::vector<std::string>& words,
                              const std::vector<std::string>& environment) {
  std::vector<std::string> all = {"print", "tests/cli/1f1b.csv"};
  all.insert(all.end(), words.begin(), words.end());
  return on_terminal(all, environment, 0);
}

bool has_color(const std::string& text) {
  return text.find("\x1B[34m0F0\x1B[0m") != std::string::npos;
}

TEST(TerminalTest, ColorsAreOnByThemselves) {
  EXPECT_TRUE(has_color(print_on_terminal({"--format", "table"}, {"TERM=xterm"})));
}

TEST(TerminalTest, NoColorDumbTerminalsAndTheFlagTurnThemOff) {
  EXPECT_FALSE(has_color(print_on_terminal({"--format", "table"}, {"TERM=xterm", "NO_COLOR=1"})));
  EXPECT_TRUE(has_color(print_on_terminal(
      {"--format", "table"}, {"TERM=xterm", "NO_COLOR="})));  // empty counts as not set
  EXPECT_FALSE(has_color(print_on_terminal({"--format", "table"}, {"TERM=dumb"})));
  EXPECT_FALSE(has_color(print_on_terminal({"--format", "table"}, {})));
  EXPECT_FALSE(
      has_color(print_on_terminal({"--format", "table", "--color", "never"}, {"TERM=xterm"})));
}

TEST(TerminalTest, TheFlagTurnsThemOnAgainstNoColor) {
  EXPECT_TRUE(has_color(
      print_on_terminal({"--format", "table", "--color", "always"}, {"TERM=dumb", "NO_COLOR=1"})));
}

// On a terminal the default is a timeline that fits the width; in a file or a pipe it is a table
// (print.txt).
TEST(TerminalTest, ATimelineIsTheDefault) {
  EXPECT_EQ(print_on_terminal({"--color", "never", "--width", "40"}, {}),
            "rank 0  F0F1    B0- F2B1- F3B2-   B3-\r\n"
            "rank 1    F0B0- F1B1- F2B2- F3B3-\r\n"
            "makespan 15, cost 15, bubble 20.0%, peak activations 1 to 2\r\n");
  // Only numbers: the colour shows the kind.
  const std::string colored = print_on_terminal({"--width", "40"}, {"TERM=xterm"});
  EXPECT_NE(colored.find("\x1B[0;7;34m0"), std::string::npos);
  EXPECT_EQ(colored.find("F0"), std::string::npos);
}

// The first 20 errors: more would push the first one off the screen.
TEST(TerminalTest, TheNumberOfErrorsIsLimited) {
  const std::string path = testing::TempDir() + "/25_errors.csv";
  std::ofstream file(path);
  for (int cell = 0; cell < 25; ++cell) file << "x,";
  file.close();
  const auto errors = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all = {"validate", path};
    all.insert(all.end(), words.begin(), words.end());
    const std::string text = on_terminal(all, {}, 1);
    size_t found = 0;
    for (size_t at = 0; (at = text.find("error[PW001]", at)) != std::string::npos; ++at) ++found;
    return found;
  };
  EXPECT_EQ(errors({}), 20u);
  EXPECT_EQ(errors({"--max-errors", "3"}), 3u);
  EXPECT_EQ(errors({"--max-errors", "100"}), 25u);
}

// 16 columns hold the label and one rank, so the second rank is in a second table below.
TEST(TerminalTest, TheTableFitsTheWidth) {
  EXPECT_EQ(print_on_terminal({"--format", "table", "--color", "never"}, {}).find("Rank 0 Rank 1"),
            std::string::npos);
  EXPECT_NE(print_on_terminal({"--format", "table", "--color", "never", "--width", "200"}, {})
                .find("Rank 0 Rank 1"),
            std::string::npos);
}

// A line that is overwritten, and gone at the end.
TEST(TerminalTest, VerifyShowsHowFarItIs) {
  const std::vector<std::string> words = {"checkpoint", "verify", "tests/cli/ckpt/step-000300"};
  const std::string text = on_terminal(words, {}, 0);
  EXPECT_NE(text.find("\rverified "), std::string::npos) << text;
  EXPECT_NE(text.find("\r\x1b[Ktests/cli/ckpt/step-000300: whole"), std::string::npos) << text;
  std::vector<std::string> as_json = words;
  as_json.emplace_back("--json");
  EXPECT_TRUE(on_terminal(as_json, {}, 0).starts_with("{"));
}

TEST(TerminalTest, SearchShowsHowFarItIs) {
  std::vector<std::string> words = {
      "search",      "--ranks", "4",        "--microbatches", "8",         "--memory", "2",
      "--placement", "v",       "--budget", "3000000",        "--forward", "1.1"};
  const std::string text = on_terminal(words, {}, 0);
  // A line that is overwritten, and gone at the end.
  const std::regex line(
      "\r(?:first for 4 microbatches: )?cost ([0-9.]+)  bound ([0-9.]+)  gap ([0-9.]+)%  "
      "evaluations ([0-9.e+]+)\x1B\\[K");
  const auto begin = std::sregex_iterator(text.begin(), text.end(), line);
  double cost = 1e9, evaluations = 0;
  size_t end = 0;
  for (auto match = begin; match != std::sregex_iterator(); ++match) {
    EXPECT_LE(std::stod((*match)[1]), cost);
    EXPECT_GE(std::stod((*match)[4]), evaluations);
    cost = std::stod((*match)[1]);
    evaluations = std::stod((*match)[4]);
    EXPECT_NEAR(100 * (cost / std::stod((*match)[2]) - 1), std::stod((*match)[3]), 0.1);
    end = static_cast<size_t>(match->position() + match->length());
  }
  EXPECT_GE(std::distance(begin, std::sregex_iterator()), 2);
  EXPECT_EQ(evaluations, 3e6);
  EXPECT_TRUE(text.substr(end).starts_with("\r\x1B[Kv: 4 ranks")) << text;
  words.emplace_back("--json");
  EXPECT_TRUE(on_terminal(words, {}, 0).starts_with("{"));
}

}  // namespace
