#include "pipewright/schedule/search/compound_dispatcher.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace pipewright::schedule::search {
namespace {

struct Rules {
  // How many microbatches are between F and I of a stage, relative to what keeps its rank busy
  // until the first I: F runs alone below that only.
  double depth = 1;
  // How long an F or I waits for its partner, relative to the shorter of both.
  double patience = 0;
  bool is_whole = false;  // I runs W at once, in compounds
};

class CompoundDispatcher {
 public:
  CompoundDispatcher(const Problem& problem, const Rules& rules)
      : problem_(problem),
        rules_(rules),
        letters_(letters_of(problem)),
        microbatches_(static_cast<size_t>(problem.num_microbatches)),
        ends_(letters_.size() * microbatches_, -1),
        done_(letters_.size()),
        rows_(static_cast<size_t>(problem.num_ranks())),
        time_(rows_.size()),
        used_(rows_.size()) {
    for (int rank = 0; rank < problem.num_ranks(); ++rank)
      stages_of_.push_back(problem.placement.stages_of(rank));
    set_depths();
  }

  // nullopt if it gets stuck.
  std::optional<CompoundRows> run() {
    size_t left = (problem_.splits_backward ? 3 : 2) * microbatches_ * problem_.stages.size();
    while (left > 0) {
      std::optional<Choice> first;
      size_t at = 0;
      for (size_t rank = 0; rank < rows_.size(); ++rank) {
        const std::optional<Choice> one = choose(rank);
        if (one && (!first || one->start < first->start)) first = one, at = rank;
      }
      if (!first) return std::nullopt;
      left -= take(at, *first);
    }
    return std::move(rows_);
  }

 private:
  struct Choice {
    Ticks start;
    Step step;
  };

  // By the times of one microbatch that waits nowhere: how many of them a rank can start until the
  // first one returns.
  void set_depths() {
    const int stages = problem_.num_stages();
    std::vector<Ticks> work(rows_.size());
    for (int stage = 0; stage < stages; ++stage) {
      const StageWork& one = problem_.work(stage);
      work[static_cast<size_t>(problem_.placement.rank_of(stage))] +=
          problem_.together(one.forward, one.backward_input + one.backward_weight);
    }
    depth_.resize(problem_.stages.size());
    Ticks path = 0;  // from the start of F to the end of I
    for (int stage = stages - 1; stage >= 0; --stage) {
      const StageWork& one = problem_.work(stage);
      path += one.forward + one.backward_input + one.output_transfer;
      if (stage + 1 < stages) path += problem_.work(stage + 1).gradient_transfer;
      const auto of_rank =
          static_cast<double>(work[static_cast<size_t>(problem_.placement.rank_of(stage))]);
      const double most = rules_.depth * static_cast<double>(path) / std::max(1.0, of_rank);
      const auto all = static_cast<double>(microbatches_);
      depth_[static_cast<size_t>(stage)] = 1 + static_cast<int>(std::min(most, all));
    }
  }

  // When the letter's next instance can start on its rank; nullopt if there is none or its input is
  // not known yet.
  std::optional<Ticks> start_of(Letter letter, size_t rank) const {
    const auto instance = static_cast<size_t>(done_[letter]);
    if (instance == microbatches_) return std::nullopt;
    const LetterInfo& info = letters_[letter];
    Ticks start = time_[rank];
    if (info.need >= 0) {
      const Ticks input = ends_[static_cast<size_t>(info.need) * microbatches_ + instance];
      if (input < 0) return std::nullopt;
      start = std::max(start, input + info.delay);
    }
    return start;
  }

  bool fits(size_t rank, Letter letter) const {
    const LetterInfo& info = letters_[letter];
    return used_[rank] + info.memory + info.temporary <= problem_.memory_limits[rank];
  }
  // As an F that runs before others: later stages of the rank must have room for its microbatch.
  bool has_room(size_t rank, int stage) const {
    Memory need = problem_.work(stage).activation;
    for (const int other : stages_of_[rank]) {
      if (other > stage) need += problem_.work(other).activation;
    }
    return used_[rank] + need <= problem_.memory_limits[rank];
  }

  // Of the stages of the rank, the one whose pass can start first; of equals the last stage for F,
  // which is nearest to its I, and the first stage for I.
  std::optional<Choice> earliest(size_t rank, Pass pass) const {
    std::optional<Choice> best;
    for (const int stage : stages_of_[rank]) {
      const Letter one = letter(stage, pass);
      const std::optional<Ticks> start = start_of(one, rank);
      if (!start || (best && *start > best->start)) continue;
      if (pass == Pass::kForward ? !has_room(rank, stage) : !fits(rank, one)) continue;
      if (pass == Pass::kInput && best && *start == best->start) continue;
      best = Choice{*start, {.letter = one}};
    }
    return best;
  }

  bool is_deep(Letter forward) const {
    const int stage = stage_of(forward);
    return done_[forward] - done_[letter(stage, Pass::kInput)] >=
           depth_[static_cast<size_t>(stage)];
  }

  std::optional<Choice> choose(size_t rank) const {
    const std::optional<Choice> forward = earliest(rank, Pass::kForward);
    const std::optional<Choice> input = earliest(rank, Pass::kInput);
    if (forward && input) {
      const Letter f = forward->step.letter, i = input->step.letter;
      const auto [soon, late] = std::minmax(forward->start, input->start);
      const auto shorter = static_cast<double>(std::min(letters_[f].time, letters_[i].time));
      const Letter w = letter(stage_of(i), Pass::kWeight);
      const bool is_whole = rules_.is_whole && problem_.splits_backward && done_[i] == done_[w];
      if (done_[f] != done_[i] && static_cast<double>(late - soon) <= rules_.patience * shorter)
        return Choice{late, {f, i, is_whole}};
    }
    std::optional<Choice> best = input;
    if (forward && !is_deep(forward->step.letter) && (!best || forward->start < best->start))
      best = forward;
    // A W where it fits before, or where nothing else is left.
    if (!problem_.splits_backward) return best ? best : forward;
    for (const int stage : stages_of_[rank]) {
      const Letter one = letter(stage, Pass::kWeight);
      const std::optional<Ticks> start = start_of(one, rank);
      if (start && (!best || *start + letters_[one].time / 2 < best->start))
        best = Choice{*start, {.letter = one}};
    }
    return best ? best : forward;
  }

  // Runs a step. Returns how many letters it has.
  size_t take(size_t rank, const Choice& choice) {
    const Step& step = choice.step;
    std::vector<Letter> all = {step.letter};
    Ticks time = letters_[step.letter].time;
    if (step.is_compound()) {
      Ticks backward = letters_[step.partner].time;
      all.push_back(step.partner);
      if (step.is_whole) {
        all.push_back(letter(stage_of(step.partner), Pass::kWeight));
        backward += letters_[all.back()].time;
      }
      time = problem_.together(time, backward);
    }
    time_[rank] = choice.start + time;
    for (const Letter one : all) {
      ends_[one * microbatches_ + static_cast<size_t>(done_[one]++)] = time_[rank];
      used_[rank] += letters_[one].memory;
    }
    rows_[rank].push_back(step);
    return all.size();
  }

  const Problem& problem_;
  const Rules rules_;
  const std::vector<LetterInfo> letters_;
  const size_t microbatches_;
  std::vector<Ticks> ends_;  // by letter and instance; -1 until it has run
  std::vector<int> done_;    // by letter: how often it has run
  std::vector<int> depth_;   // by stage
  std::vector<std::vector<int>> stages_of_;
  CompoundRows rows_;
  std::vector<Ticks> time_;  // by rank: the end of its last step
  std::vector<Memory> used_;
};

}  // namespace

std::vector<CompoundRows> dispatched_compounds(const Problem& problem) {
  std::vector<CompoundRows> all;
  for (const double depth : {0.8, 1.0, 1.25, 1.6}) {
    for (const double patience : {0.0, 0.5, 1.0}) {
      for (const bool is_whole : {false, true}) {
        if (is_whole && !problem.splits_backward) continue;
        if (auto rows = CompoundDispatcher(problem, {depth, patience, is_whole}).run())
          all.push_back(*std::move(rows));
      }
    }
  }
  return all;
}

}  // namespace pipewright::schedule::search
