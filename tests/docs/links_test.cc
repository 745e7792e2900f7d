// Every relative link of a document names a file or folder of the tree, and its anchor a heading.
// The README has at most 150 lines, and all commands with a prompt are in console fences.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/docs/document.h"

namespace pipewright::tests {
namespace {

namespace fs = std::filesystem;

// The source tree, which the sandbox lets a test read, because links point to files in all folders.
fs::path root() { return fs::canonical("README.md").parent_path(); }

std::vector<std::string> documents() {
  std::vector<std::string> paths;
  for (const char* folder : {".", "docs", "ir/text", "schedule/problem"}) {
    for (const auto& entry : fs::directory_iterator(root() / folder)) {
      if (entry.path().extension() == ".md") paths.push_back(entry.path().string());
    }
  }
  return paths;
}

TEST(LinksTest, TargetsExist) {
  for (const std::string& path : documents()) {
    for (const std::string& link : links_of(read_document(path))) {
      if (link.starts_with("http://") || link.starts_with("https://")) continue;
      const size_t hash = link.find('#');
      const std::string file = link.substr(0, hash);
      const fs::path target = file.empty() ? fs::path(path) : fs::path(path).parent_path() / file;
      EXPECT_TRUE(fs::exists(target)) << path << ": " << link;
      if (hash == std::string::npos || !fs::exists(target)) continue;
      const std::vector<std::string> anchors = anchors_of(read_document(target));
      EXPECT_TRUE(std::count(anchors.begin(), anchors.end(), link.substr(hash + 1)))
          << path << ": " << link << ": no such heading";
    }
  }
}

TEST(LinksTest, TheReadmeIsShort) {
  EXPECT_LE(read_document(root() / "README.md").lines.size(), 150u);
}

// A command outside of a console fence would not be run.
TEST(LinksTest, CommandsWithAPromptAreRun) {
  for (const std::string& path : documents()) {
    for (const Fence& fence : read_document(path).fences) {
      if (fence.language == "console") continue;
      for (const std::string& line : fence.lines)
        EXPECT_FALSE(line.starts_with("$ ")) << path << ": not in a console fence: " << line;
    }
  }
}

TEST(LinksTest, AnchorsAreGitHubs) {
  Document document{"", {"# A B", "## What's `new`, in 2?", "text", "#no"}, {}};
  EXPECT_EQ(anchors_of(document), (std::vector<std::string>{"a-b", "whats-new-in-2"}));
}

}  // namespace
}  // namespace pipewright::tests
