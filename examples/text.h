#ifndef PIPEWRIGHT_EXAMPLES_TEXT_H_
#define PIPEWRIGHT_EXAMPLES_TEXT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// The bytes of a file as training data: which part is held back, which windows are in a batch, and
// the loss of a bigram model as a baseline. Torch-free.

namespace pipewright::examples {

class Text {
 public:
  // Holds back the last tenth of the file. Throws std::runtime_error, naming the path, if the file
  // cannot be read, or if the held-back part is shorter than one window of `context` bytes and its
  // target.
  Text(const std::string& path, int64_t context);

  // The starts of the windows in the batch of one step, within the training part. Returns the same
  // batch for equal arguments on every rank.
  std::vector<int64_t> batch(uint64_t seed, int64_t step, int64_t size) const;
  // The starts of the windows in batch `part` of `parts`, each of `size` windows. All parts
  // together are spread evenly over the held-back part.
  std::vector<int64_t> held_back(int64_t size, int64_t part, int64_t parts) const;

  // The input, bytes [start, start + context), and its target, the same window one byte later.
  std::pair<std::vector<int64_t>, std::vector<int64_t>> window(int64_t start) const;

  // The first bytes of the held-back part.
  std::string held_back_begin(int64_t size) const;

  // The mean cross entropy of the held-back part, in nats per byte, under a bigram model counted on
  // the training part, with 0.1 added to each count.
  double bigram_loss() const;

 private:
  std::vector<uint8_t> bytes_;
  int64_t context_;
  int64_t training_;  // bytes before this are for training
};

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_TEXT_H_
