#ifndef PIPEWRIGHT_EXECUTOR_PROGRAM_DIGEST_H_
#define PIPEWRIGHT_EXECUTOR_PROGRAM_DIGEST_H_

#include <string>
#include <vector>

#include "pipewright/ir/schedule.h"

// A short digest of the program and options that must be equal on all ranks of a pipeline. Ranks
// compare it before the first step, because ranks with different programs would deadlock.
// Torch-free.

namespace pipewright::executor {

struct DigestPart {
  std::string name;   // "program"
  std::string value;  // text, or a 64-bit hash
};

// The program, its placement, number of microbatches and channel model, followed by `options`.
std::vector<DigestPart> digest_of(const ir::Program& program, std::vector<DigestPart> options);

// To and from one line of text.
std::string to_string(const std::vector<DigestPart>& digest);
std::vector<DigestPart> parse_digest(const std::string& text);

// The first difference, such as "program is 9f.. on rank 0 and 3b.. on rank 2"; empty if they are
// equal.
std::string difference(const std::vector<DigestPart>& left, int left_rank,
                       const std::vector<DigestPart>& right, int right_rank);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_PROGRAM_DIGEST_H_
