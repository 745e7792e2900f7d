#ifndef PIPEWRIGHT_SCHEDULES_CONSTRAINTS_H_
#define PIPEWRIGHT_SCHEDULES_CONSTRAINTS_H_

#include <algorithm>

#include "pipewright/schedules/schedule_spec.h"

// Constraints on shapes that several schedules share. P = ranks, S = stages, M = microbatches.

namespace pipewright::schedules {

inline constexpr Constraint kOneStageARank = {
    "stages = ranks", "each rank holds one stage",
    [](const Shape& shape) { return shape.stages == shape.ranks; }};

inline constexpr Constraint kTwoStagesARank = {
    "stages = 2 ranks", "each rank holds two stages, one on each arm of the V",
    [](const Shape& shape) { return shape.stages == 2 * shape.ranks; }};

// With two replicas, an odd middle rank would hold one stage twice.
inline constexpr Constraint kEvenRanks = {"ranks are even",
                                          "no rank holds both replicas of a stage",
                                          [](const Shape& shape) { return shape.ranks % 2 == 0; }};

inline constexpr Constraint kEvenMicrobatches = {
    "microbatches are even", "each replica runs one half of them",
    [](const Shape& shape) { return shape.microbatches % 2 == 0; }};

inline constexpr Constraint kSameNumberOfStages = {
    "stages are a multiple of ranks", "each rank holds the same number of stages",
    [](const Shape& shape) { return shape.stages % shape.ranks == 0; }};

// The interleaved schedules run the microbatches in equal rounds (interleaved.h): max(1, M div P)
// rounds. This is PyTorch's rule (ScheduleInterleaved1F1B's number_of_rounds).
inline int rounds(const Shape& shape) { return std::max(1, shape.microbatches / shape.ranks); }
inline int microbatches_per_round(const Shape& shape) { return shape.microbatches / rounds(shape); }

inline constexpr Constraint kWholeRounds = {
    "microbatches are a multiple of max(1, microbatches div ranks)",
    "all rounds have the same number of microbatches", [](const Shape& shape) {
      return shape.group_size != 0 || shape.microbatches % rounds(shape) == 0;
    }};

inline constexpr Constraint kGroups = {
    "the group size is at least ranks, and so is a partial group after full ones",
    "a microbatch returns to a rank only after it has passed all other ranks",
    [](const Shape& shape) {
      const int size = shape.group_size, count = shape.microbatches;
      return size == 0 || (size >= shape.ranks &&
                           (count < size || count % size == 0 || count % size >= shape.ranks));
    }};

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_CONSTRAINTS_H_
