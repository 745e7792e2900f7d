// The table of folders in docs/design.md equals the includes between them, and has no circles.
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/docs/document.h"

namespace pipewright::tests {
namespace {

namespace fs = std::filesystem;

using Folders = std::set<std::string>;

fs::path root() { return fs::canonical("README.md").parent_path(); }

struct Row {
  std::string folder;
  Folders includes;
};

// The rows whose first cell is a link to a folder, in the order of the table.
std::vector<Row> table_of(const std::vector<std::string>& lines) {
  static const std::regex row(R"(\| \[([^\]]+)\]\(\.\./[^)]*\) \|.*\|([^|]*)\|)");
  static const std::regex name(R"([\w/]+)");
  std::vector<Row> table;
  for (const std::string& line : lines) {
    std::smatch cells;
    if (!std::regex_match(line, cells, row)) continue;
    const std::string includes = cells[2];
    table.push_back({cells[1],
                     {std::sregex_token_iterator(includes.begin(), includes.end(), name),
                      std::sregex_token_iterator()}});
  }
  return table;
}

// The folders of the headers that the files of a folder include, without its subfolders.
Folders includes_of(const fs::path& folder) {
  static const std::regex include(
      R"re(#include (?:"pipewright/(.*)/[^/]*"|<(?:torch|ATen|c10)/.*))re");
  Folders includes;
  for (const auto& entry : fs::directory_iterator(root() / folder)) {
    const std::string extension = entry.path().extension();
    if (extension != ".h" && extension != ".cc") continue;
    for (const std::string& line : read_document(entry.path()).lines) {
      std::smatch found;
      if (std::regex_search(line, found, include))
        includes.insert(found[1].matched ? found[1].str() : "LibTorch");
    }
  }
  includes.erase(folder);
  return includes;
}

TEST(Layering, TheTableEqualsTheIncludes) {
  const std::vector<Row> table = table_of(read_document("docs/design.md").lines);
  Folders named;
  for (const Row& row : table) {
    EXPECT_EQ(includes_of(row.folder), row.includes) << "in " << row.folder;
    named.insert(row.folder);
  }
  for (const char* top : {"autograd", "checkpoint", "cli", "comms", "ddp", "executor", "fsdp", "ir",
                          "modules", "python", "schedule", "schedules", "tp"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root() / top)) {
      if (entry.path().extension() != ".h") continue;
      const std::string folder = entry.path().parent_path().lexically_relative(root());
      EXPECT_TRUE(named.contains(folder)) << "docs/design.md does not name " << folder;
    }
  }
}

TEST(Layering, FoldersIncludeOnlyWhatStandsBelow) {
  const std::vector<Row> table = table_of(read_document("docs/design.md").lines);
  Folders above;
  for (const Row& row : table) {
    above.insert(row.folder);
    for (const std::string& folder : row.includes)
      EXPECT_FALSE(above.contains(folder)) << row.folder << " includes " << folder;
  }
}

}  // namespace
}  // namespace pipewright::tests
