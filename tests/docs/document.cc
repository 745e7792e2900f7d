#include "tests/docs/document.h"

#include <cctype>
#include <fstream>
#include <stdexcept>

namespace pipewright::tests {
namespace {

constexpr char kFence[] = "```";

// For each line, whether it is part of a fence, its marks included.
std::vector<bool> in_fence(const Document& document) {
  std::vector<bool> inside(document.lines.size(), false);
  for (const Fence& fence : document.fences) {
    const size_t first = static_cast<size_t>(fence.first_line) - 2;
    for (size_t i = first; i < first + fence.lines.size() + 2; ++i) inside[i] = true;
  }
  return inside;
}

std::string without_code_spans(const std::string& line) {
  std::string kept;
  bool in_span = false;
  for (const char c : line) {
    if (c == '`') in_span = !in_span;
    if (!in_span) kept += c;
  }
  return kept;
}

std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) || c == '-' || c == '_' || byte >= 0x80)
      anchor += static_cast<char>(std::tolower(byte));
    else if (c == ' ')
      anchor += '-';
  }
  return anchor;
}

}  // namespace

Document read_document(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open `" + path + "`");
  Document document{path, {}, {}};
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    document.lines.push_back(line);
    const int next_line = static_cast<int>(document.lines.size()) + 1;
    if (line.starts_with(kFence)) {
      inside = !inside;
      if (inside) document.fences.push_back({next_line, line.substr(sizeof(kFence) - 1), {}});
    } else if (inside) {
      document.fences.back().lines.push_back(line);
    }
  }
  if (inside) throw std::runtime_error("`" + path + "`: the last fence is not closed");
  return document;
}

std::vector<std::string> anchors_of(const Document& document) {
  const std::vector<bool> skipped = in_fence(document);
  std::vector<std::string> anchors;
  for (size_t i = 0; i < document.lines.size(); ++i) {
    const std::string& line = document.lines[i];
    const size_t level = line.find_first_not_of('#');
    if (skipped[i] || level == 0 || level == std::string::npos || line[level] != ' ') continue;
    anchors.push_back(anchor_of(line.substr(level + 1)));
  }
  return anchors;
}

std::vector<std::string> links_of(const Document& document) {
  const std::vector<bool> skipped = in_fence(document);
  std::vector<std::string> links;
  for (size_t i = 0; i < document.lines.size(); ++i) {
    if (skipped[i]) continue;
    const std::string line = without_code_spans(document.lines[i]);
    for (size_t at = line.find("]("); at != std::string::npos; at = line.find("](", at + 2)) {
      const size_t end = line.find(')', at);
      if (end != std::string::npos) links.push_back(line.substr(at + 2, end - at - 2));
    }
  }
  return links;
}

}  // namespace pipewright::tests
