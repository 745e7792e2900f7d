// Runs a fuzz target over its corpus, as a test without libFuzzer. A corpus has one input per line,
// sorted and escaped; tools/fuzz_corpus writes it.
#include <gtest/gtest.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

const char* corpus = nullptr;

// Returns nullopt if the line is malformed.
std::optional<std::string> unescape(std::string_view line) {
  constexpr std::string_view letters = "\\nrt", meanings = "\\\n\r\t";
  std::string input;
  for (size_t i = 0; i < line.size(); ++i) {
    unsigned char byte = line[i];
    if (byte < ' ' || byte > '~') return std::nullopt;
    if (byte == '\\') {
      if (++i == line.size()) return std::nullopt;
      if (line[i] == 'x') {
        const std::string_view digits = line.substr(i + 1, 2);
        const char* const end = digits.data() + digits.size();
        if (digits.size() < 2 || std::from_chars(digits.data(), end, byte, 16).ptr != end)
          return std::nullopt;
        i += 2;
      } else {
        const size_t letter = letters.find(line[i]);
        if (letter == letters.npos) return std::nullopt;
        byte = meanings[letter];
      }
    }
    input += static_cast<char>(byte);
  }
  return input;
}

// The target aborts if a property is violated.
[[noreturn]] void run(const std::string& input) {
  std::exit(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size()));
}

TEST(Corpus, EveryInputRuns) {
  std::ifstream file(corpus, std::ios::binary);
  std::string line, previous;
  int number = 0;
  while (std::getline(file, line)) {
    const std::string place = std::string(corpus) + ":" + std::to_string(++number) + ": ";
    const auto input = unescape(line);
    if (!input)
      FAIL() << place << "expected printable ASCII with escapes \\\\, \\n, \\r, \\t and \\xNN";
    if (file.eof()) FAIL() << place << "expected a newline at the end of the file";
    if (number > 1 && line <= previous) FAIL() << place << "expected sorted lines without repeats";
    // Each input runs in its own process, so that one abort does not hide the others.
    EXPECT_EXIT(run(*input), testing::ExitedWithCode(0), "") << place << line;
    previous = line;
  }
  if (number <= 10) FAIL() << corpus << ": expected more than 10 inputs, got " << number;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2) return 2;
  corpus = argv[1];
  return RUN_ALL_TESTS();
}
