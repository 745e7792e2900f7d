#ifndef PIPEWRIGHT_CHECKPOINT_AGREE_H_
#define PIPEWRIGHT_CHECKPOINT_AGREE_H_

#include <functional>
#include <string>
#include <vector>

// Agreement between the ranks that save or load together: whether a step of it succeeded on all.

namespace pipewright::checkpoint {

// Sends `mine` to all ranks, and returns what each rank sent, by rank: an all-gather of short texts
// over the store, and the barrier of the protocol. Throws if a rank does not take part in time.
using Exchange = std::function<std::vector<std::string>(const std::string& mine)>;

// Collective. Runs `work`, which returns UTF-8, and tells the others how it went. Returns the
// results of all ranks, by rank. If `work` throws on some rank, throws std::runtime_error on all
// ranks, with the error of the first such rank.
std::vector<std::string> agree(const Exchange& exchange, const std::function<std::string()>& work);

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_AGREE_H_
