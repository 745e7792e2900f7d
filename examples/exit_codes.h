#ifndef PIPEWRIGHT_EXAMPLES_EXIT_CODES_H_
#define PIPEWRIGHT_EXAMPLES_EXIT_CODES_H_

// How train_gpt ends, for schedulers. A contract: docs/operations.md.

namespace pipewright::examples {

inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;
inline constexpr int kUsage = 2;
inline constexpr int kHang = 3;             // a step hung
inline constexpr int kSavedAndStopped = 4;  // by a signal; can be resumed

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_EXIT_CODES_H_
