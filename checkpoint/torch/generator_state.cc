#include "pipewright/checkpoint/torch/generator_state.h"

#include <ATen/ATen.h>

#include <charconv>
#include <mutex>
#include <stdexcept>

namespace pipewright::checkpoint {
namespace {

constexpr const char* kDigits = "0123456789abcdef";

}  // namespace

std::string generator_state(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  const at::Tensor state = generator.get_state();
  const auto* bytes = state.const_data_ptr<uint8_t>();
  std::string text;
  for (int64_t i = 0; i < state.numel(); ++i) {
    text += kDigits[bytes[i] / 16];
    text += kDigits[bytes[i] % 16];
  }
  return text;
}

void set_generator_state(at::Generator generator, const std::string& text) {
  const std::lock_guard lock(generator.mutex());
  const int64_t expected = generator.get_state().numel();
  if (text.size() != 2 * static_cast<size_t>(expected))
    throw std::invalid_argument("state of a generator: expected " + std::to_string(2 * expected) +
                                " hexadecimal digits, got " + std::to_string(text.size()));
  const at::Tensor state = at::empty({expected}, at::kByte);
  auto* bytes = state.data_ptr<uint8_t>();
  for (int64_t i = 0; i < expected; ++i) {
    const char* digits = text.data() + 2 * i;
    const auto [stop, error] = std::from_chars(digits, digits + 2, bytes[i], 16);
    if (error != std::errc() || stop != digits + 2)
      throw std::invalid_argument("state of a generator: expected hexadecimal digits");
  }
  generator.set_state(state);
}

}  // namespace pipewright::checkpoint
