// Writes the C++ snippets of documents as one source file, which a test compiles and runs.
//
//   extract_snippets compiler|everything DOCUMENT...
//
// A snippet that names a folder above the compiler (comms, executor, ...) is part of `everything`,
// the others of `compiler`. Each gets a namespace of its own; its #includes go to the top of the
// file. A program, which has a main() as its last function, becomes a test that runs it. All other
// snippets become the body of a function that is never called; names that they do not declare are
// those of tests/docs/names.h.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "tests/docs/document.h"

namespace pipewright::tests {
namespace {

bool contains(const std::vector<std::string>& lines, const std::string& part) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

bool needs_libtorch(const Fence& snippet) {
  constexpr const char* kNames[] = {"at::",      "torch", "autograd::", "comms::",   "executor::",
                                    "executor.", "ddp::", "fsdp::",     "modules::", "tp::"};
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [&](const char* name) { return contains(snippet.lines, name); });
}

bool is_include(const std::string& line) { return line.starts_with("#include"); }

// "docs/training.md", 12 -> "training_12".
std::string name_of(const std::string& path, const Fence& snippet) {
  const size_t folder = path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1;
  return path.substr(folder, path.rfind('.') - folder) + "_" + std::to_string(snippet.first_line);
}

void write_program(const std::string& name, const std::string& path, const Fence& snippet) {
  std::cout << "#line " << snippet.first_line << " \"" << path << "\"\n";
  for (size_t i = 0; i < snippet.lines.size(); ++i) {
    const bool ends_main = i + 1 == snippet.lines.size();
    if (ends_main) std::cout << "return 0; ";  // as a main() does by itself
    std::cout << (is_include(snippet.lines[i]) ? "" : snippet.lines[i]) << "\n";
  }
  std::cout << "TEST(Snippets, " << name << ") { EXPECT_EQ(main(), 0); }\n";
}

void write_part(const std::string& path, const Fence& snippet) {
  // Not emitted, as it is inline and unused: the names need no definition.
  std::cout << "inline void snippet() {\nusing namespace pipewright;\n"
            << "#line " << snippet.first_line << " \"" << path << "\"\n";
  for (const std::string& line : snippet.lines) std::cout << (is_include(line) ? "" : line) << "\n";
  std::cout << "}\n";
}

void write_snippet(const std::string& path, const Fence& snippet) {
  const std::string name = name_of(path, snippet);
  std::cout << "namespace snippets::" << name << " {\n";
  if (contains(snippet.lines, "int main("))
    write_program(name, path, snippet);
  else
    write_part(path, snippet);
  std::cout << "}  // namespace snippets::" << name << "\n";
}

int main(const std::vector<std::string>& args) {
  const bool everything = args[0] == "everything";
  std::vector<Document> documents;
  for (size_t i = 1; i < args.size(); ++i) documents.push_back(read_document(args[i]));
  const auto for_each_snippet = [&](const auto& function) {
    for (const Document& document : documents) {
      for (const Fence& fence : document.fences) {
        if (fence.language == "cpp" && needs_libtorch(fence) == everything)
          function(document.path, fence);
      }
    }
  };
  if (everything) std::cout << "#define PIPEWRIGHT_DOCS_EVERYTHING\n";
  std::cout << "#include \"tests/docs/names.h\"\n#include <gtest/gtest.h>\n";
  for_each_snippet([](const std::string&, const Fence& snippet) {
    for (const std::string& line : snippet.lines) {
      if (is_include(line)) std::cout << line << "\n";
    }
  });
  for_each_snippet(write_snippet);
  return 0;
}

}  // namespace
}  // namespace pipewright::tests

int main(int argc, char** argv) { return pipewright::tests::main({argv + 1, argv + argc}); }
