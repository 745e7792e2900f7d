// Runs the commands of README.md and docs/*.md. In a console fence, each line `$ COMMAND` is
// followed by what the command prints to stdout and stderr. The commands of a document run in
// order, in one folder that is empty at first. commands_test runs the commands that need no
// LibTorch; training_commands_test, which has train_gpt as data, runs the commands that call
// train_gpt.
//
//   bazel run //tests/docs:commands_test -- --update_goldens
//   bazel run //tests/docs:training_commands_test -- --update_goldens
//
// rewrite the documents with what the commands print, and the pictures that they draw. Read the
// diff.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/docs/document.h"
#include "tests/support/shell/shell.h"

namespace pipewright::tests {
namespace {

namespace fs = std::filesystem;

constexpr char kPrompt[] = "$ ";

// A command and the lines of its output, [begin, end) of the document, counted from 0.
struct Shown {
  std::string command;
  size_t begin, end;
};

bool trains(const std::string& command) { return command.find("train_gpt") != std::string::npos; }

std::vector<Shown> commands_of(const Document& document) {
  std::vector<Shown> all;
  for (const Fence& fence : document.fences) {
    if (fence.language != "console") continue;
    const auto first = static_cast<size_t>(fence.first_line) - 1;
    bool continued = false;
    for (size_t i = 0; i < fence.lines.size(); ++i) {
      const std::string& line = fence.lines[i];
      if (continued)
        all.back().command += "\n" + line;
      else if (line.starts_with(kPrompt))
        all.push_back({line.substr(sizeof(kPrompt) - 1), 0, 0});
      else if (i == 0)
        throw std::runtime_error(document.path + ": a console fence must begin with a command");
      const bool is_command = continued || line.starts_with(kPrompt);
      continued = is_command && line.ends_with('\\');
      if (is_command) all.back().begin = first + i + 1;
      all.back().end = first + i + 1;
    }
  }
  return all;
}

std::string lines_between(const Document& document, size_t begin, size_t end) {
  std::string text;
  for (size_t i = begin; i < end; ++i) text += document.lines[i] + "\n";
  return text;
}

// Text between numbers, and the numbers: "a1.5b" -> {"a", "b"}, {1.5}.
struct Numbered {
  std::vector<std::string> texts = {""};
  std::vector<double> numbers;
};

Numbered numbers_of(const std::string& text) {
  Numbered found;
  for (size_t i = 0; i < text.size();) {
    if (std::isdigit(static_cast<unsigned char>(text[i])) == 0) {
      found.texts.back() += text[i++];
      continue;
    }
    char* end = nullptr;
    found.numbers.push_back(std::strtod(text.c_str() + i, &end));
    found.texts.emplace_back();
    i = static_cast<size_t>(end - text.c_str());
  }
  return found;
}

// The output of training differs between machines by rounding and speed: numbers may differ by 5%,
// and numbers before `tokens/s` by any amount.
bool same_training(const std::string& left, const std::string& right) {
  const Numbered a = numbers_of(left), b = numbers_of(right);
  if (a.texts != b.texts) return false;
  for (size_t i = 0; i < a.numbers.size(); ++i) {
    if (a.texts[i + 1].starts_with(" tokens/s")) continue;
    if (std::abs(a.numbers[i] - b.numbers[i]) > 0.05 * a.numbers[i]) return false;
  }
  return true;
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The documents and the programs that their commands call, under `bazel test` and `bazel run`.
class Documents {
 public:
  Documents() : built_(fs::current_path()), has_training_(fs::exists("examples/train_gpt")) {
    const std::string path =
        (built_ / "cli").string() + ":" + (built_ / "examples").string() + ":/usr/bin:/bin";
    setenv("PATH", path.c_str(), 1);
    setenv("LC_ALL", "C", 1);
  }

  // README.md and docs/*.md, relative to `root`.
  static std::vector<fs::path> list(const fs::path& root) {
    std::vector<fs::path> paths = {"README.md"};
    for (const auto& entry : fs::directory_iterator(root / "docs")) {
      if (entry.path().extension() == ".md") paths.push_back("docs" / entry.path().filename());
    }
    std::sort(paths.begin() + 1, paths.end());
    return paths;
  }

  bool is_mine(const std::string& command) const { return trains(command) == has_training_; }

  // A folder for the commands of one document.
  static fs::path enter(const fs::path& document) {
    const char* scratch = std::getenv("TEST_TMPDIR");
    const fs::path folder = fs::path(scratch ? scratch : fs::temp_directory_path().string()) /
                            ("commands." + document.stem().string());
    fs::remove_all(folder);
    fs::create_directories(folder);
    fs::current_path(folder);
    return folder;
  }

  static std::string run(const std::string& command) {
    return run_shell("{ " + command + "\n} 2>&1 </dev/null").text;
  }

  const fs::path& built() const { return built_; }

 private:
  const fs::path built_;
  const bool has_training_;
};

class CommandsTest : public testing::Test {
 public:
  CommandsTest(const Documents& documents, fs::path path)
      : documents_(documents), path_(std::move(path)) {}

  void TestBody() override {
    const Document document = read_document((documents_.built() / path_).string());
    const fs::path folder = Documents::enter(path_);
    for (const Shown& shown : commands_of(document)) {
      if (!documents_.is_mine(shown.command)) continue;
      const std::string expected = lines_between(document, shown.begin, shown.end);
      const std::string got = Documents::run(shown.command);
      if (trains(shown.command) && same_training(expected, got)) continue;
      EXPECT_EQ(got, expected) << path_.string() << ":" << shown.begin << ": " << shown.command
                               << "\nif this is intended: bazel run //tests/docs:"
                               << (trains(shown.command) ? "training_commands" : "commands")
                               << "_test -- --update_goldens";
    }
    // A picture of the documents that a command has drawn is the one in docs/pictures.
    for (const auto& entry : fs::directory_iterator(documents_.built() / "docs/pictures")) {
      const fs::path drawn = folder / entry.path().filename();
      if (!fs::exists(drawn)) continue;
      EXPECT_EQ(read_file(drawn), read_file(entry.path())) << entry.path();
    }
  }

 private:
  const Documents& documents_;
  const fs::path path_;
};

void update(const Documents& documents, const fs::path& root, const fs::path& path) {
  const Document document = read_document((root / path).string());
  const fs::path folder = Documents::enter(path);
  std::string text;
  size_t done = 0;  // lines of the old document
  for (const Shown& shown : commands_of(document)) {
    if (!documents.is_mine(shown.command)) continue;
    const std::string expected = lines_between(document, shown.begin, shown.end);
    std::string got = Documents::run(shown.command);
    if (trains(shown.command) && same_training(expected, got)) got = expected;
    text += lines_between(document, done, shown.begin) + got;
    done = shown.end;
  }
  text += lines_between(document, done, document.lines.size());
  std::ofstream(root / path, std::ios::binary) << text;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".svg") {
      fs::copy_file(entry.path(), root / "docs/pictures" / entry.path().filename(),
                    fs::copy_options::overwrite_existing);
    }
  }
}

}  // namespace
}  // namespace pipewright::tests

int main(int argc, char** argv) {
  using namespace pipewright::tests;  // NOLINT(google-build-using-namespace)
  testing::InitGoogleTest(&argc, argv);
  const Documents documents;
  if (argc > 1 && std::string(argv[1]) == "--update_goldens") {
    const char* workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
    if (workspace == nullptr) {
      std::cerr << "--update_goldens works under `bazel run`\n";
      return 2;
    }
    for (const fs::path& path : Documents::list(workspace)) update(documents, workspace, path);
    return 0;
  }
  for (const fs::path& path : Documents::list(documents.built())) {
    testing::RegisterTest(
        "Commands", path.stem().string().c_str(), nullptr, nullptr, __FILE__, __LINE__,
        [&documents, path]() -> CommandsTest* { return new CommandsTest(documents, path); });
  }
  return RUN_ALL_TESTS();
}
