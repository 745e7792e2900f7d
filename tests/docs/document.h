#ifndef PIPEWRIGHT_TESTS_DOCS_DOCUMENT_H_
#define PIPEWRIGHT_TESTS_DOCS_DOCUMENT_H_

#include <string>
#include <vector>

// A Markdown file as its tests read it. The language of a fence determines how it is tested:
//
//   ```console    each line `$ COMMAND` is run; the lines after it are its exact output
//   ```cpp        compiled; run too if it has a main()
//   others        shown only: output that varies, commands that need a cluster or a GPU

namespace pipewright::tests {

struct Fence {
  int first_line = 0;    // of the content, from 1
  std::string language;  // "console"; empty if it has none
  std::vector<std::string> lines;
};

struct Document {
  std::string path;
  std::vector<std::string> lines;
  std::vector<Fence> fences;
};

// Throws std::runtime_error if the file cannot be read or its last fence is not closed.
Document read_document(const std::string& path);

// The anchor of each heading (the part of a link after `#`), as GitHub derives it.
std::vector<std::string> anchors_of(const Document& document);

// The targets of all links and pictures outside of fences and code spans, in order.
std::vector<std::string> links_of(const Document& document);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_DOCS_DOCUMENT_H_
