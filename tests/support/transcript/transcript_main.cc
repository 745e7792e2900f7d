// Replays transcripts, text files with commands and their output, and compares all of it:
//
//   $ pipewright validate PW006.csv     a shell command, run in the folder of the transcript
//   ...                                 its stdout
//   ! PW006.csv:1:4: error[PW006]: ...  its stderr
//   = 1                                 its exit code
//
//   transcript_main FOLDER [--update_goldens]
//
// With --update_goldens (under `bazel run`) the files are rewritten from the actual output; read
// the diff.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string shell_quoted(const fs::path& path) { return "'" + path.string() + "'"; }

// Runs one command and returns its part of a transcript.
std::string run(const std::string& command, const fs::path& folder, const fs::path& program) {
  const fs::path scratch =
      fs::path(std::getenv("TEST_TMPDIR") ? std::getenv("TEST_TMPDIR") : "/tmp") /
      ("transcript." + std::to_string(getpid()));
  const std::string out = scratch.string() + ".out", err = scratch.string() + ".err",
                    script = scratch.string() + ".sh";
  std::ofstream(script) << command << "\n";
  const std::string line =
      "cd " + shell_quoted(folder) + " && env -i PATH=" + shell_quoted(program.parent_path()) +
      ":/usr/bin:/bin LC_ALL=C TMP=" + shell_quoted(scratch.parent_path()) + " sh " +
      shell_quoted(script) + " >" + shell_quoted(out) + " 2>" + shell_quoted(err) + " </dev/null";
  const int status = std::system(line.c_str());
  std::string shown = "$ " + command + "\n" + read_file(out);
  if (!shown.ends_with('\n')) shown += "(no newline)\n";
  for (const std::string& complaint : lines_of(read_file(err))) shown += "! " + complaint + "\n";
  shown += "= " + std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : -1) + "\n";
  for (const std::string& file : {out, err, script}) fs::remove(file);
  return shown;
}

std::string replay(const fs::path& transcript, const fs::path& program) {
  std::string shown;
  bool at_top = true;
  for (const std::string& line : lines_of(read_file(transcript))) {
    at_top = at_top && line.starts_with("# ");
    if (at_top) shown += line + "\n";  // a comment; further down it is output
    if (line.starts_with("$ ")) shown += run(line.substr(2), transcript.parent_path(), program);
  }
  return shown;
}

class TranscriptTest : public testing::Test {
 public:
  TranscriptTest(fs::path transcript, fs::path program)
      : transcript_(std::move(transcript)), program_(std::move(program)) {}
  void TestBody() override { EXPECT_EQ(replay(transcript_, program_), read_file(transcript_)); }

 private:
  fs::path transcript_, program_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc < 2) {
    std::fprintf(stderr, "usage: transcript_main FOLDER [--update_goldens]\n");
    return 2;
  }
  const fs::path program = fs::absolute("cli/pipewright");
  const bool update = argc > 2 && std::string(argv[2]) == "--update_goldens";
  const char* workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  if (update && workspace == nullptr) {
    std::fprintf(stderr, "--update_goldens: expected to run under `bazel run`\n");
    return 2;
  }
  std::set<fs::path> transcripts;
  for (const auto& entry :
       fs::directory_iterator(update ? fs::path(workspace) / argv[1] : fs::absolute(argv[1]))) {
    if (entry.path().extension() == ".txt") transcripts.insert(entry.path());
  }
  for (const fs::path& transcript : transcripts) {
    if (update) {
      const std::string shown = replay(transcript, program);
      std::ofstream(transcript, std::ios::binary) << shown;
    } else {
      testing::RegisterTest(
          "Transcript", transcript.stem().string().c_str(), nullptr, nullptr, __FILE__, __LINE__,
          [=]() -> TranscriptTest* { return new TranscriptTest(transcript, program); });
    }
  }
  if (update) return 0;
  if (transcripts.empty()) {
    std::fprintf(stderr, "no transcripts in %s\n", argv[1]);
    return 2;
  }
  return RUN_ALL_TESTS();
}
