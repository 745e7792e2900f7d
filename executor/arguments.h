#ifndef PIPEWRIGHT_EXECUTOR_ARGUMENTS_H_
#define PIPEWRIGHT_EXECUTOR_ARGUMENTS_H_

#include <map>
#include <string>
#include <vector>

#include "pipewright/executor/executor.h"
#include "pipewright/executor/program/program.h"

// What the arguments of an Executor must satisfy, and what follows from them. Nothing here
// communicates, except that ranks_of() tells the other ranks of an error.

namespace pipewright::executor {

// The world rank of each program rank. Throws std::invalid_argument if they do not fit the program
// or leave out this rank; first, because this rank then belongs to no pipeline, it makes every
// executor with this id fail (Coordinator::refuse).
std::vector<int> ranks_of(const ir::Program& program, comms::World& world,
                          const ExecutorOptions& options, const std::string& id);
// The program rank of this rank.
int rank_in(const std::vector<int>& ranks, const comms::World& world);

// Throws std::invalid_argument if something is missing or does not fit.
void check_arguments(const ir::Program& program, int rank, const std::map<int, LocalStage>& stages,
                     const ExecutorOptions& options);

// What must be equal on all ranks: the program, and the options that are part of its meaning.
std::vector<DigestPart> digest_of(const ir::Program& program, const ExecutorOptions& options);

// The data-parallel groups of the stages, each once, in the order of stages, and then the group of
// ranks with the same batch.
std::vector<c10d::Backend*> groups_of(const std::map<int, LocalStage>& stages,
                                      const comms::BackendPtr& same_batch);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_ARGUMENTS_H_
