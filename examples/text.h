#ifndef PIPEWRIGHT_EXAMPLES_TEXT_H_
#define PIPEWRIGHT_EXAMPLES_TEXT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// A text of bytes to train on, without LibTorch: what is held back from training, which windows a
// batch has, and how well a table of pairs of bytes does on it.

namespace pipewright::examples {

class Text {
 public:
  // The last tenth of the file is held back. Throws std::runtime_error that names the path, if it
  // cannot be read or has no room for two windows of `context` bytes and one more.
  Text(const std::string& path, int64_t context);

  // The starts of the windows of one step's batch, in the training text: the same for the same
  // numbers, whoever asks.
  std::vector<int64_t> batch(uint64_t seed, int64_t step, int64_t size) const;
  // As many starts, evenly over the text that is held back; `part` of `parts` of them.
  std::vector<int64_t> held_back(int64_t size, int64_t part, int64_t parts) const;

  // Bytes `start` to `start` + context, and those one further: input and target.
  std::pair<std::vector<int64_t>, std::vector<int64_t>> window(int64_t start) const;

  // Mean negative log likelihood of the text that is held back, in nats a byte, under a table of
  // pairs of bytes counted in the training text; a tenth is added to each count.
  double bigram_loss() const;

 private:
  std::vector<uint8_t> bytes_;
  int64_t context_;
  int64_t training_;  // bytes before this are for training
};

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_TEXT_H_
