// What the README shows is what happens: in its blocks, each line `$ pipewright ...` is run, and
// what stands below it is compared with stdout and stderr; and each picture that it shows is made
// again.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/shell/shell.h"

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

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// "docs/pictures/x.svg" of each image.
std::vector<std::string> pictures_of(const std::string& readme) {
  std::vector<std::string> pictures;
  for (size_t at = readme.find("](docs/pictures/"); at != std::string::npos;
       at = readme.find("](docs/pictures/", at + 1))
    pictures.push_back(readme.substr(at + 2, readme.find(')', at) - at - 2));
  return pictures;
}

std::string run(const std::string& command) {
  return pipewright::tests::run_shell("{ " + command + "\n} 2>&1").text;
}

TEST(ReadmeTest, ExamplesDoWhatTheyShow) {
  const std::string program = std::filesystem::absolute("cli").string();
  setenv("PATH", (program + ":/usr/bin:/bin").c_str(), 1);
  const std::filesystem::path top = std::filesystem::current_path();
  const std::string readme = read_file("README.md");
  const std::vector<Shown> examples = read_examples("README.md");
  std::filesystem::current_path(getenv("TEST_TMPDIR"));
  EXPECT_GE(examples.size(), 5u);
  for (const Shown& example : examples)
    EXPECT_EQ(run(example.command), example.output) << example.command;

  // Each picture that the README shows was written by one of the commands, byte for byte.
  const std::vector<std::string> pictures = pictures_of(readme);
  EXPECT_GE(pictures.size(), 3u);
  for (const std::string& picture : pictures) {
    EXPECT_EQ(read_file(std::filesystem::path(picture).filename()), read_file(top / picture))
        << picture << " is not what the README's command makes";
  }
}

}  // namespace
