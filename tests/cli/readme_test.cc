// What the README shows is what happens: in its blocks, each line `$ pipewright ...` is run, and
// what stands below it is compared with stdout and stderr.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

struct Shown {
  std::string command;
  std::string output;
};

std::vector<Shown> read_examples(const std::string& path) {
  std::ifstream file(path);
  std::vector<Shown> examples;
  bool in_block = false, in_example = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("```")) {
      in_block = !in_block;
      in_example = false;
    } else if (in_block && line.starts_with("$ ")) {
      in_example = line.find("pipewright ") != std::string::npos && !line.starts_with("$ bazel");
      if (in_example) examples.push_back({line.substr(2), ""});
    } else if (in_example) {
      examples.back().output += line + "\n";
    }
  }
  return examples;
}

std::string run(const std::string& command) {
  std::FILE* pipe = popen(("{ " + command + "\n} 2>&1").c_str(), "r");
  std::string output;
  char chunk[4096];
  for (size_t got; (got = std::fread(chunk, 1, sizeof chunk, pipe)) > 0;) output.append(chunk, got);
  pclose(pipe);
  return output;
}

TEST(ReadmeTest, ExamplesDoWhatTheyShow) {
  const std::string program = std::filesystem::absolute("cli").string();
  setenv("PATH", (program + ":/usr/bin:/bin").c_str(), 1);
  const std::vector<Shown> examples = read_examples("README.md");
  std::filesystem::current_path(getenv("TEST_TMPDIR"));
  EXPECT_GE(examples.size(), 5u);
  for (const Shown& example : examples)
    EXPECT_EQ(run(example.command), example.output) << example.command;
}

}  // namespace
