// List scheduling in time order. Each rank has one entry in the wake queue: the end of its action,
// or, while it idles, the next input that it knows of. The earliest rank decides:
//
//   1. of the I and F whose inputs have come, the one with the earliest target; F only if memory
//      remains for the activations that must come before it finishes (reserved())
//   2. a W whose target has passed goes first
//   3. if an input with an earlier target is on its way and comes soon enough, wait for it
//   4. a rank that waits, or that has no memory for F, fills the gap with a W that fits
//
// Where a stage recomputes, I takes memory and F leaves room for the largest one. An I that finds
// the room taken by Ws that are left waits for them: so memory alone never stops a rank there.
//
// The reservation for later stages of the rank keeps schedules with several stages per rank from
// filling memory with activations of microbatches that cannot finish. Sending an input to a rank
// that is busy costs no event: it looks when its action ends. So each action costs one decision of
// O(stages per rank) and O(log ranks) in the queue; reservations make it quadratic in the stages
// per rank. A run ends early once a rank's idle time makes the cost exceed `most`.
#include "pipewright/schedule/search/dispatcher.h"

#include <algorithm>

namespace pipewright::schedule::search {
namespace {

constexpr Ticks kAsleep = WakeQueue::kAsleep;

Ticks times(Ticks ticks, int factor) { return ticks * factor / Template::kOne; }

}  // namespace

int stages_per_rank(const Problem& problem) {
  std::vector<int> count(static_cast<size_t>(problem.num_ranks()));
  for (int stage = 0; stage < problem.num_stages(); ++stage)
    ++count[static_cast<size_t>(problem.placement.rank_of(stage))];
  return *std::ranges::max_element(count);
}

Dispatcher::Dispatcher(const Problem& problem)
    : problem_(problem),
      letters_(letters_of(problem)),
      microbatches_(static_cast<size_t>(problem.num_microbatches)),
      state_of_(static_cast<size_t>(problem.num_stages())),
      ranks_(static_cast<size_t>(problem.num_ranks())),
      work_(ranks_.size()),
      queue_(problem.num_ranks()),
      words_(ranks_.size()) {
  for (int rank = 0; rank < problem.num_ranks(); ++rank) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    state.first = states_.size();
    for (const int stage : problem.placement.stages_of(rank)) {
      state_of_[static_cast<size_t>(stage)] = states_.size();
      const StageWork& work = problem.work(stage);
      const bool recomputes = work.recomputed > 0;
      // Any other stage has room for the end of its I from F on.
      StageState& one = states_.emplace_back();
      one.stage = stage;
      one.memory = recomputes ? work.activation : std::max(work.activation, work.weight_input);
      one.input_memory =
          recomputes ? std::max(work.recomputed, work.weight_input - work.activation) : 0;
      for (const Pass pass : {Pass::kForward, Pass::kInput, Pass::kWeight}) {
        if (pass == Pass::kWeight && !problem.splits_backward) continue;
        for (int microbatch = 0; microbatch < problem.num_microbatches; ++microbatch)
          work_[static_cast<size_t>(rank)] += time_of(letter(stage, pass), microbatch);
      }
    }
    state.last = states_.size();
    state.limit = state.forward_limit = problem.memory_limit(rank);
    for (size_t at = state.first; at < state.last; ++at)
      state.forward_limit = std::min(state.forward_limit, state.limit - states_[at].input_memory);
    const size_t passes = problem.splits_backward ? 3 : 2;
    words_[static_cast<size_t>(rank)].reserve(passes * (state.last - state.first) * microbatches_);
  }
  for (std::vector<Ticks>& arrivals : arrivals_) arrivals.resize(states_.size() * microbatches_);
}

Ticks Dispatcher::time_of(Letter letter, int microbatch) const {
  return problem_.scaled(letters_[letter].time, microbatch);
}

void Dispatcher::prepare(const Template& numbers) {
  const int stages = problem_.num_stages(), ranks = problem_.num_ranks();
  const int per_rank = static_cast<int>(numbers.pass_delay.size()) / 2;
  Ticks work = 0;
  for (const StageWork& one : problem_.stages)
    work += one.forward + one.backward_input + one.backward_weight;
  const Ticks unit = work / (3 * stages);
  const Ticks longest = *std::ranges::max_element(work_);
  period_ = std::max<Ticks>(1, times(longest / problem_.num_microbatches, numbers.period));
  weight_lag_ = numbers.weight_lag == Template::kNever ? kAsleep / 4
                                                       : times(period_, numbers.weight_lag) * ranks;
  group_ = numbers.group;
  step_ = period_ - times(period_, numbers.bunch);
  group_step_ = group_ * period_ - (group_ - 1) * step_;
  patience_ = numbers.patience;
  overrun_ = numbers.overrun;
  reserves_ = numbers.reserves;
  backward_first_ = numbers.backward_first;

  // The targets of microbatch 0. Stage s is on pass s / ranks; the k-th stage of the way back is on
  // pass per_rank + k / ranks.
  const auto delay = [&](int step, int first_pass) {
    const int pass = std::min(first_pass + step / ranks, 2 * per_rank - 1);
    return step % ranks == 0 ? times(unit, numbers.turn_delay[static_cast<size_t>(pass - 1)])
                             : times(unit, numbers.pass_delay[static_cast<size_t>(pass)]);
  };
  Ticks target = 0;
  for (int stage = 0; stage < stages; ++stage) {
    const StageWork& one = problem_.work(stage);
    if (stage > 0) {
      const StageWork& previous = problem_.work(stage - 1);
      target += previous.forward + previous.output_transfer + delay(stage, 0);
    }
    StageState& state = states_[state_of_[static_cast<size_t>(stage)]];
    const int rank = problem_.placement.rank_of(stage);
    const Memory limit = std::max<Memory>(0, ranks_[static_cast<size_t>(rank)].forward_limit);
    const Memory most = state.memory == 0 ? problem_.num_microbatches : limit / state.memory;
    state = {.stage = stage, .memory = state.memory, .input_memory = state.input_memory};
    state.cap = problem_.num_microbatches;
    if (numbers.cap_slope != Template::kNever) {
      const int64_t left = int64_t{stages - stage} * numbers.cap_slope / per_rank;
      state.cap = static_cast<int>(std::clamp<int64_t>((left + numbers.cap_offset) / Template::kOne,
                                                       1, problem_.num_microbatches));
    }
    const int64_t wished =
        (numbers.reserve_base + int64_t{numbers.reserve_slope} * rank) / Template::kOne;
    state.reserve = static_cast<int>(std::clamp<int64_t>(std::min<int64_t>(wished, most / per_rank),
                                                         1, problem_.num_microbatches));
    state.forward_target = target;
    state.next_forward = stage == 0 ? 0 : kAsleep;
    state.forwards_ready = stage == 0 ? problem_.num_microbatches : 0;
    state.next_input = kAsleep;
    if (stage + 1 == stages)
      target += one.forward + times(unit, numbers.turn_delay[static_cast<size_t>(per_rank - 1)]);
  }
  for (int stage = stages - 1; stage >= 0; --stage) {
    if (stage + 1 < stages) {
      const StageWork& next = problem_.work(stage + 1);
      target += next.backward_input + next.gradient_transfer + delay(stages - 1 - stage, per_rank);
    }
    StageState& state = states_[state_of_[static_cast<size_t>(stage)]];
    state.input_target = target;
    state.weight_target = target + problem_.work(stage).backward_input + weight_lag_;
  }
  std::ranges::fill_n(arrivals_[0].begin(), static_cast<std::ptrdiff_t>(microbatches_), 0);

  queue_.clear();
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    RankState& state = ranks_[rank];
    state.used = 0;
    state.left = work_[rank];
    state.start = -1;
    state.end = 0;
    words_[rank].clear();
  }
  actions_ = 0;
}

Memory Dispatcher::reserved(const RankState& rank, const StageState& state) const {
  Memory memory = 0;
  for (size_t at = rank.first; at < rank.last; ++at) {
    const StageState& other = states_[at];
    const int left = problem_.num_microbatches - other.forwards;
    if (&other == &state || left == 0) continue;
    if (reserves_) {
      // Forwards of the other stage with an earlier target.
      const Ticks ahead = state.forward_target - other.forward_target;
      const int count = ahead < 0 ? 0
                        : ahead < period_
                            ? 1
                            : static_cast<int>(std::min<Ticks>(ahead / period_ + 1, left));
      if (count > 0) {
        memory += count * other.memory;
        continue;
      }
    }
    if (other.stage < state.stage) continue;
    const int missing = other.reserve - (other.forwards - other.inputs);
    if (missing > 0) memory += std::min(missing, left) * other.memory;
  }
  return memory;
}

Dispatcher::Choice Dispatcher::choose(const RankState& rank, Ticks now, Ticks* wake) {
  Choice best, weight;
  Ticks best_target = kAsleep, weight_target = kAsleep;
  Ticks next = kAsleep, next_target = kAsleep;  // the next input that comes
  bool no_memory = false;
  for (size_t at = rank.first; at < rank.last; ++at) {
    StageState& state = states_[at];
    if (state.next_input <= now && rank.used + state.input_memory > rank.limit) {
      no_memory = true;
    } else if (state.next_input <= now) {
      const Ticks target = backward_first_ ? -1 - state.stage : state.input_target;
      if (target < best_target) {
        best_target = target;
        best = {&state, Pass::kInput};
      }
    } else if (state.next_input < next) {
      next = state.next_input;
      next_target = state.input_target;
    }
    if (state.next_forward != kAsleep && state.forwards - state.inputs < state.cap) {
      if (rank.used + state.memory > rank.forward_limit ||
          (rank.last - rank.first > 1 &&
           rank.used + state.memory + reserved(rank, state) > rank.forward_limit)) {
        no_memory = no_memory || state.next_forward <= now;
      } else if (state.next_forward <= now) {
        const Ticks target =
            backward_first_ ? problem_.num_stages() - state.stage : state.forward_target;
        if (target < best_target) {
          best_target = target;
          best = {&state, Pass::kForward};
        }
      } else if (state.next_forward < next) {
        next = state.next_forward;
        next_target = state.forward_target;
      }
    }
    if (state.weights < state.inputs && state.weight_target < weight_target &&
        problem_.splits_backward) {
      weight_target = state.weight_target;
      weight = {&state, Pass::kWeight};
    }
  }
  if (best.state != nullptr) {
    if (weight.state != nullptr && weight_target < best_target && !backward_first_) return weight;
    if (next_target >= best_target || backward_first_) return best;
    const Ticks time = letters_[letter(best.state->stage, best.pass)].time;
    if (next - now >= times(time, patience_)) return best;
  }
  if (weight.state != nullptr) {
    const Ticks time = letters_[letter(weight.state->stage, Pass::kWeight)].time;
    if (next == kAsleep || no_memory || now + time <= next + times(time, overrun_)) return weight;
  }
  *wake = next;
  return {};
}

void Dispatcher::start(int rank_index, Choice choice, Ticks now) {
  RankState& rank = ranks_[static_cast<size_t>(rank_index)];
  StageState& state = *choice.state;
  const Letter one = letter(state.stage, choice.pass);
  const LetterInfo& info = letters_[one];
  int microbatch = 0;
  switch (choice.pass) {
    case Pass::kForward: {
      microbatch = state.forwards++;
      state.forward_target += step_after(microbatch);
      rank.used += state.memory;
      const Ticks* arrivals = &arrivals_[0][static_cast<size_t>(state.stage) * microbatches_];
      state.next_forward =
          state.forwards < state.forwards_ready ? arrivals[state.forwards] : kAsleep;
      break;
    }
    case Pass::kInput: {
      microbatch = state.inputs++;
      state.input_target += step_after(microbatch);
      rank.used += problem_.work(state.stage).weight_input - state.memory;
      const Ticks* arrivals = &arrivals_[1][static_cast<size_t>(state.stage) * microbatches_];
      state.next_input = state.inputs < state.inputs_ready ? arrivals[state.inputs] : kAsleep;
      break;
    }
    case Pass::kWeight:
      microbatch = state.weights++;
      state.weight_target += step_after(microbatch);
      rank.used -= problem_.work(state.stage).weight_input;
      break;
  }
  const Ticks time = time_of(one, microbatch), end = now + time;
  rank.left -= time;
  rank.end = end;
  if (rank.start < 0) rank.start = now;
  words_[static_cast<size_t>(rank_index)].push_back(one);
  ++actions_;
  queue_.set(rank_index, end);
  if (info.unlocks < 0) return;

  const auto next = static_cast<Letter>(info.unlocks);
  const LetterInfo& next_info = letters_[next];
  const Ticks arrival = end + next_info.delay;
  StageState& receiver = states_[state_of_[static_cast<size_t>(stage_of(next))]];
  const bool is_forward = pass_of(next) == Pass::kForward;
  arrivals_[is_forward ? 0 : 1][static_cast<size_t>(receiver.stage) * microbatches_ +
                                static_cast<size_t>(microbatch)] = arrival;
  if (is_forward) {
    if (receiver.forwards == receiver.forwards_ready++) receiver.next_forward = arrival;
  } else {
    if (receiver.inputs == receiver.inputs_ready++) receiver.next_input = arrival;
  }
  // A rank that is busy decides when it ends; one that idles must look at what comes.
  if (next_info.rank != rank_index && ranks_[static_cast<size_t>(next_info.rank)].end <= now)
    queue_.wake_by(next_info.rank, arrival);
}

std::optional<Ticks> Dispatcher::run(const Template& numbers, Ticks most) {
  prepare(numbers);
  queue_.set(problem_.placement.rank_of(0), 0);
  const size_t total = (problem_.splits_backward ? 3 : 2) * states_.size() * microbatches_;
  while (!queue_.empty()) {
    const Ticks now = queue_.time();
    const int index = queue_.rank();
    RankState& rank = ranks_[static_cast<size_t>(index)];
    Ticks wake = kAsleep;
    const Choice choice = choose(rank, now, &wake);
    if (choice.state == nullptr) {
      queue_.set(index, wake);
      continue;
    }
    start(index, choice, now);
    if (rank.end + rank.left - rank.start > most) return std::nullopt;
  }
  if (actions_ < total) return std::nullopt;
  Ticks cost = 0;
  for (const RankState& rank : ranks_) cost = std::max(cost, rank.end - rank.start);
  return cost;
}

}  // namespace pipewright::schedule::search
