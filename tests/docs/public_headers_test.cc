// The table of public headers, public_headers.bzl: each exists and includes only public ones, CMake
// installs them, and examples and documents include no others.
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

using Headers = std::set<std::string>;

// The source tree, like links_test: headers of all folders are read.
fs::path root() { return fs::canonical("README.md").parent_path(); }

// The entries of a list that begins with the line `begin` and ends with the line `end`.
Headers list_in(const std::string& file, const std::string& begin, const std::string& end) {
  static const std::regex entry(R"re( *"?([\w/]+\.(?:h|def))"?,?)re");
  Headers headers;
  bool is_inside = false;
  for (const std::string& line : read_document(file).lines) {
    if (line == begin) is_inside = true;
    if (line == end) is_inside = false;
    std::smatch found;
    if (!is_inside || !std::regex_match(line, found, entry)) continue;
    EXPECT_TRUE(headers.insert(found[1]).second) << file << ": " << line << " appears twice";
  }
  EXPECT_FALSE(headers.empty()) << file << ": no list begins with " << begin;
  return headers;
}

Headers table(const std::string& list) { return list_in("public_headers.bzl", list + " = [", "]"); }

Headers operator+(Headers left, const Headers& right) {
  left.insert(right.begin(), right.end());
  return left;
}

Headers all() {
  return table("COMPILER_HEADERS") + table("TRAINING_HEADERS") + table("CUDA_HEADERS");
}

// The headers of ours that a file includes.
Headers included_by(const fs::path& file) {
  static const std::regex include(R"re(\s*#include "pipewright/([^"]+)".*)re");
  Headers headers;
  for (const std::string& line : read_document(file).lines) {
    std::smatch found;
    if (std::regex_match(line, found, include)) headers.insert(found[1]);
  }
  return headers;
}

void expect_includes(const fs::path& file, const Headers& allowed) {
  for (const std::string& header : included_by(file)) {
    EXPECT_TRUE(allowed.contains(header))
        << file << " includes " << header << ", which public_headers.bzl does not list";
  }
}

TEST(PublicHeaders, Exist) {
  for (const std::string& header : all()) {
    EXPECT_TRUE(fs::exists(root() / header)) << header;
    EXPECT_TRUE(fs::exists(root() / "include/pipewright" / header)) << "no link to " << header;
  }
}

TEST(PublicHeaders, IncludeOnlyPublicOnes) {
  Headers allowed;
  for (const char* list : {"COMPILER_HEADERS", "TRAINING_HEADERS", "CUDA_HEADERS"}) {
    const Headers headers = table(list);
    allowed = allowed + headers;
    for (const std::string& header : headers) expect_includes(root() / header, allowed);
  }
}

TEST(PublicHeaders, AreThoseThatCMakeInstalls) {
  const std::string file = "cmake/sources.cmake";
  EXPECT_EQ(list_in(file, "set(pipewright_schedule_headers", ")"), table("COMPILER_HEADERS"));
  EXPECT_EQ(list_in(file, "set(pipewright_executor_headers", ")"), table("TRAINING_HEADERS"));
  EXPECT_EQ(list_in(file, "set(pipewright_nccl_headers", ")"), table("CUDA_HEADERS"));
}

TEST(PublicHeaders, AreAllThatExamplesAndDocumentsInclude) {
  const Headers allowed = all();
  int includes = 0;
  for (const char* folder :
       {".", "docs", "examples", "tests/consumer", "tests/packages/consumer"}) {
    for (const auto& entry : fs::directory_iterator(root() / folder)) {
      const std::string extension = entry.path().extension();
      if (extension != ".md" && extension != ".h" && extension != ".cc") continue;
      expect_includes(entry.path(), allowed);
      includes += static_cast<int>(included_by(entry.path()).size());
    }
  }
  EXPECT_GT(includes, 50);  // they were read
}

}  // namespace
}  // namespace pipewright::tests
