// A gather pads all chunks to the length of the first. Only the last chunk that is not empty can be
// shorter, so the whole tensor is the beginning of what was gathered.
#include "pipewright/comms/group_collectives.h"

#include <ATen/ATen.h>
#include <ATen/Functions.h>

#include <cctype>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "pipewright/comms/group.h"
#include "pipewright/layout/layout.h"

namespace pipewright::comms {

at::Tensor chunk_of(const at::Tensor& whole, int64_t dim, c10d::Backend& group) {
  const layout::Chunk chunk = layout::chunk_of(whole.size(dim), group.getSize(), group.getRank());
  return whole.narrow(dim, chunk.begin, chunk.length);
}

at::Tensor padded_rows(const at::Tensor& x, int64_t dim, int64_t padded) {
  const at::Tensor rows = x.movedim(dim, 0);
  if (rows.size(0) == padded) return rows.contiguous();
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes[0] = padded;
  at::Tensor result = at::zeros(sizes, x.options());
  result.narrow(0, 0, rows.size(0)).copy_(rows);
  return result;
}

at::Tensor gather_chunks(const at::Tensor& mine, int64_t dim, int64_t length,
                         c10d::Backend& group) {
  at::Tensor part = padded_rows(mine, dim, layout::chunk_length(length, group.getSize()));
  std::vector<int64_t> sizes = part.sizes().vec();
  sizes[0] *= group.getSize();
  at::Tensor whole = at::empty(sizes, mine.options());
  group._allgather_base(whole, part)->wait();
  return whole.narrow(0, 0, length).movedim(0, dim).contiguous();
}

// Agreement between ranks. A c10d backend carries only tensors, so text is sent as bytes.
//
// Idea: two all-gathers, first of the sizes and then of the texts padded to the longest, give every
// rank the lines of all ranks. All ranks then make the same comparison, so either all throw the
// same error or none throws. Complexity: O(ranks * longest text) bytes on every rank.

namespace {

// The concatenation, in the order of ranks, of one flat tensor per rank. All have the same size.
at::Tensor all_gather(const at::Tensor& mine, c10d::Backend& group) {
  at::Tensor input = mine;
  at::Tensor all = at::empty({mine.numel() * group.getSize()}, mine.options());
  group._allgather_base(all, input)->wait();
  return all.cpu();
}

// By rank.
std::vector<std::string> all_gather_texts(const std::string& text, c10d::Backend& group,
                                          at::Device device) {
  const at::Tensor sizes =
      all_gather(at::full({1}, static_cast<int64_t>(text.size()), at::kLong).to(device), group);
  const int64_t longest = sizes.max().item<int64_t>();
  if (longest == 0) return std::vector<std::string>(static_cast<size_t>(group.getSize()));
  at::Tensor bytes = at::zeros({longest}, at::kByte);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  const at::Tensor all = all_gather(bytes.to(device), group);
  std::vector<std::string> texts;
  for (int rank = 0; rank < group.getSize(); ++rank) {
    const char* begin = static_cast<const char*>(all.data_ptr()) + rank * longest;
    texts.emplace_back(begin, static_cast<size_t>(sizes[rank].item<int64_t>()));
  }
  return texts;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// "Float [2] on cuda" of "Float [2] on cuda:1".
std::string without_index(std::string line, at::Device device) {
  if (!device.has_index()) return line;
  const std::string name = device.str();
  const size_t length = name.find(':');
  for (size_t at = 0; (at = line.find(name, at)) != std::string::npos; at += length) {
    const size_t end = at + name.size();
    if (end == line.size() || !std::isdigit(static_cast<unsigned char>(line[end])))
      line.erase(at + length, end - at - length);
  }
  return line;
}

}  // namespace

void compare_lines(const std::vector<std::string>& lines, c10d::Backend& group, at::Device device) {
  if (group.getSize() == 1) return;
  std::string text;
  for (const std::string& line : lines) text += without_index(line, device) + '\n';
  const std::vector<std::string> texts = all_gather_texts(text, group, device);
  const std::vector<std::string> first = split_lines(texts[0]);
  for (int rank = 1; rank < group.getSize(); ++rank) {
    const std::vector<std::string> theirs = split_lines(texts[static_cast<size_t>(rank)]);
    for (size_t i = 0; i < std::max(first.size(), theirs.size()); ++i) {
      const std::string one = i < first.size() ? first[i] : "nothing";
      const std::string other = i < theirs.size() ? theirs[i] : "nothing";
      if (one == other) continue;
      throw std::invalid_argument("ranks disagree: expected " + one + " as on rank 0, got " +
                                  other + " on rank " + std::to_string(rank));
    }
  }
}

std::string first_text(const std::string& text, c10d::Backend& group, at::Device device) {
  for (std::string& one : all_gather_texts(text, group, device)) {
    if (!one.empty()) return std::move(one);
  }
  return "";
}

void broadcast_values(const std::vector<at::Tensor>& tensors, c10d::Backend& group) {
  if (group.getSize() == 1) return;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor values = tensor.detach().contiguous();
    // Sends bytes, so that backends need not know dtypes such as fp8.
    std::vector<at::Tensor> sent = {values.view({-1}).view(at::kByte)};
    group.broadcast(sent)->wait();
    if (values.data_ptr() != tensor.data_ptr()) tensor.detach().copy_(values);
  }
}

}  // namespace pipewright::comms
