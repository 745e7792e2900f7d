#ifndef PIPEWRIGHT_EXECUTOR_DIGEST_H_
#define PIPEWRIGHT_EXECUTOR_DIGEST_H_

#include <string>
#include <vector>

#include "pipewright/ir/schedule.h"

// What all ranks of a pipeline must have alike, in a few bytes, to be compared before the first
// step: two ranks with different programs would wait for each other for ever. No LibTorch.

namespace pipewright::executor {

struct DigestPart {
  std::string name;   // "program"
  std::string value;  // text, or a hash of 64 bits
};

// Program, placement, microbatches, channel model; `options` is added as it is.
std::vector<DigestPart> digest_of(const ir::Program& program, std::vector<DigestPart> options);

// As one line, and back.
std::string to_string(const std::vector<DigestPart>& digest);
std::vector<DigestPart> parse_digest(const std::string& text);

// "program is 9f.. on rank 0 and 3b.. on rank 2"; empty if they are equal.
std::string difference(const std::vector<DigestPart>& left, int left_rank,
                       const std::vector<DigestPart>& right, int right_rank);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_DIGEST_H_
