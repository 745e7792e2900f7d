#ifndef PIPEWRIGHT_CLI_CHECKPOINT_REPORT_H_
#define PIPEWRIGHT_CLI_CHECKPOINT_REPORT_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/checkpoint/stored_checkpoint.h"
#include "pipewright/cli/console.h"

// How `pipewright checkpoint` shows what it found, as text and as JSON.

namespace pipewright::cli {

// One of the checkpoints that DIR has, or the only one that it is.
struct CheckpointEntry {
  std::filesystem::path path;
  bool is_latest = false;                                  // `latest` names it
  std::optional<checkpoint::StoredCheckpoint> checkpoint;  // nullopt if it is damaged
  checkpoint::CheckpointReport report;
};

// "4096 bytes", "4.1 MB": powers of 1000, as `ls -h --si` and Hugging Face count.
std::string bytes_text(uint64_t bytes);

// A line per checkpoint.
void print_checkpoints(const std::vector<CheckpointEntry>& entries, Console& console);
// One checkpoint and its tensors.
void print_checkpoint(const CheckpointEntry& entry, Console& console);
// What is not wrong but worth knowing, to stderr: files that are not read, and why something may be
// missing without being noticed.
void print_notes(const CheckpointEntry& entry, Console& console);
// Everything that is wrong, to stderr.
void print_report(const checkpoint::CheckpointReport& report, Console& console);

// {"version": 1, "valid": ..., "checkpoints": [...]}; with the tensors if `with_tensors`.
std::string checkpoints_json(const std::vector<CheckpointEntry>& entries, bool with_tensors);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_CHECKPOINT_REPORT_H_
