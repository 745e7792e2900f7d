#include "examples/text.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>

namespace pipewright::examples {

Text::Text(const std::string& path, int64_t context) : context_(context) {
  if (std::filesystem::is_directory(path))
    throw std::runtime_error("`" + path + "` is a directory");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open `" + path + "`");
  bytes_.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  if (file.bad()) throw std::runtime_error("cannot read `" + path + "`");
  const auto size = static_cast<int64_t>(bytes_.size());
  training_ = size - size / 10;
  if (size - training_ < context + 1) {
    throw std::runtime_error("`" + path + "`: expected at least " +
                             std::to_string(10 * (context + 1)) + " bytes, got " +
                             std::to_string(size) + ": its last tenth must hold a window of " +
                             std::to_string(context) + " bytes and its target");
  }
}

std::vector<int64_t> Text::batch(uint64_t seed, int64_t step, int64_t size) const {
  std::seed_seq sequence{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                         static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)};
  std::mt19937_64 random(sequence);
  const auto choices = static_cast<uint64_t>(training_ - context_);
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < size; ++i) starts.push_back(static_cast<int64_t>(random() % choices));
  return starts;
}

std::vector<int64_t> Text::held_back(int64_t size, int64_t part, int64_t parts) const {
  const int64_t room = static_cast<int64_t>(bytes_.size()) - training_ - context_ - 1;
  std::vector<int64_t> starts;
  for (int64_t i = part * size; i < (part + 1) * size; ++i)
    starts.push_back(training_ + (parts * size > 1 ? room * i / (parts * size - 1) : 0));
  return starts;
}

std::pair<std::vector<int64_t>, std::vector<int64_t>> Text::window(int64_t start) const {
  const auto from = bytes_.begin() + start;
  return {{from, from + context_}, {from + 1, from + context_ + 1}};
}

std::string Text::held_back_begin(int64_t size) const {
  const auto from = bytes_.begin() + training_;
  return {from, from + std::min<int64_t>(size, bytes_.end() - from)};
}

double Text::bigram_loss() const {
  constexpr size_t kBytes = 256;
  constexpr double kAdded = 0.1;
  std::vector<double> pairs(kBytes * kBytes, kAdded), firsts(kBytes, kAdded * kBytes);
  const auto training = static_cast<size_t>(training_);
  for (size_t i = 1; i < training; ++i) {
    pairs[bytes_[i - 1] * kBytes + bytes_[i]] += 1;
    firsts[bytes_[i - 1]] += 1;
  }
  double sum = 0;
  for (size_t i = training + 1; i < bytes_.size(); ++i)
    sum -= std::log(pairs[bytes_[i - 1] * kBytes + bytes_[i]] / firsts[bytes_[i - 1]]);
  return sum / static_cast<double>(bytes_.size() - training - 1);
}

}  // namespace pipewright::examples
