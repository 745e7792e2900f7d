// List scheduling in time order. Each rank has one entry in the wake queue: the end of its action,
// or, while it idles, the next input that it knows of. The earliest rank decides:
//
//   1. of the I and F whose inputs have come, the one with the earliest target; F only if memory
//      remains for the activations that must come before it finishes (reserved())
//   2. a W whose target has passed goes first
//   3. if an input with an earlier target is on its way and comes soon enough, wait for it
//   4. a rank that waits, or that has no memory for F, fills the gap with a W that fits
//   5. for compounds: the F or I that was chosen takes the I or F with the earliest target whose
//      input has come, and for which there is memory beside it; or it waits for one that comes soon
//
// Where a stage recomputes or offloads, I takes memory and F leaves room for the largest one. An I
// that finds the room taken by Ws that are left waits for them: so memory alone never stops a rank
// there.
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

// Added to a target, it is later than all others, and leaves room for a key's low bits.
constexpr Ticks kGapsOnly = Ticks{1} << 46;

constexpr size_t index_of(Pass pass) { return static_cast<size_t>(pass); }

Ticks times(Ticks ticks, int factor) { return ticks * factor / Template::kOne; }

}  // namespace

int stages_per_rank(const Problem& problem) {
  std::vector<int> count(static_cast<size_t>(problem.num_ranks()));
  for (int stage = 0; stage < problem.num_instances(); ++stage)
    ++count[static_cast<size_t>(problem.placement.rank_of_instance(stage))];
  return *std::ranges::max_element(count);
}

Dispatcher::Dispatcher(const Problem& problem)
    : problem_(problem),
      letters_(letters_of(problem)),
      microbatches_(problem.runs_per_instance()),
      state_of_(static_cast<size_t>(problem.num_instances())),
      ranks_(static_cast<size_t>(problem.num_ranks())),
      work_(ranks_.size()),
      queue_(problem.num_ranks()),
      words_(ranks_.size()) {
  for (int rank = 0; rank < problem.num_ranks(); ++rank) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    state.first = states_.size();
    for (const int stage : problem.placement.instances_of(rank)) {
      state_of_[static_cast<size_t>(stage)] = states_.size();
      const StageWork& work = problem.work(stage);
      const bool restores = work.restored() > 0;
      // Any other stage has room for the end of its I from F on.
      StageState& one = states_.emplace_back();
      one.stage = stage;
      one.key = static_cast<Key>(2 * (states_.size() - 1 - state.first));
      one.memory = restores ? work.activation : std::max(work.activation, work.weight_input);
      one.input_memory =
          restores ? std::max(work.restored(), work.weight_input - work.activation) : 0;
      one.weight_input = work.weight_input;
      for (const Pass pass : {Pass::kForward, Pass::kInput, Pass::kWeight}) {
        if (pass == Pass::kWeight && !problem.splits_backward) continue;
        for (int k = 0; k < microbatches_; ++k)
          work_[static_cast<size_t>(rank)] += time_of(letter(stage, pass), k);
      }
    }
    state.last = states_.size();
    state.limit = state.forward_limit = problem.memory_limit(rank);
    for (size_t at = state.first; at < state.last; ++at)
      state.forward_limit = std::min(state.forward_limit, state.limit - states_[at].input_memory);
    const size_t passes = problem.splits_backward ? 3 : 2;
    words_[static_cast<size_t>(rank)].reserve(passes * (state.last - state.first) *
                                              static_cast<size_t>(microbatches_));
  }
  for (const LetterInfo& info : letters_) {
    Receiver& receiver = receivers_.emplace_back();
    if (info.unlocks < 0) continue;
    const auto next = static_cast<Letter>(info.unlocks);
    const LetterInfo& of_next = letters_[next];
    receiver = {.state = &states_[state_of_[static_cast<size_t>(stage_of(next))]],
                .delay = of_next.delay,
                .rank = of_next.rank,
                .pass = search::pass_of(next),
                .is_plain = !of_next.needs_last_slice && !of_next.recomputes && of_next.delay >= 0};
  }
  arrivals_.resize(2 * states_.size() * static_cast<size_t>(microbatches_));
  while ((1 << key_bits_) < 2 * stages_per_rank(problem)) ++key_bits_;
  weight_bit_ = Key{1} << key_bits_++;
}

Ticks Dispatcher::time_of(Letter letter, int k) const {
  return search::time_of(problem_, letters_[letter], letter, k);
}

inline Dispatcher::Key Dispatcher::key(Ticks ticks, const StageState& state, Pass pass) const {
  const Key bit = pass == Pass::kWeight ? weight_bit_ : pass == Pass::kForward ? 1 : 0;
  return ticks << key_bits_ | state.key | bit;
}

inline void Dispatcher::update_weight(StageState* state) {
  const bool may_run =
      state->started[index_of(Pass::kWeight)] < state->started[index_of(Pass::kInput)];
  state->weight = may_run ? state->next_weight : kNone;
}

inline Dispatcher::Key Dispatcher::input_of(const StageState& state, Pass pass) {
  const size_t at = index_of(pass);
  const int next = state.started[at];
  return next < state.sent[at] ? state.arrivals[at][next] : kNone;
}

inline void Dispatcher::update_arrival(StageState* state, Pass pass) {
  const bool may_come = pass == Pass::kInput || state->in_flight() < state->cap;
  state->arrival[index_of(pass)] = may_come ? input_of(*state, pass) : kNone;
}

// The targets of the first microbatch of a replica, whose first stage has this number. Stage s is
// on pass s / ranks; the k-th stage of the way back is on pass per_rank + k / ranks.
void Dispatcher::prepare_replica(const Template& numbers, int first, Ticks unit) {
  const int stages = problem_.num_stages(), ranks = problem_.num_ranks();
  const int per_rank = static_cast<int>(numbers.pass_delay.size()) / 2;
  const Ticks weight_lag = numbers.weight_lag == Template::kNever
                               ? kGapsOnly
                               : times(period_, numbers.weight_lag) * ranks;
  const auto delay = [&](int step, int first_pass) {
    const int pass = std::min(first_pass + step / ranks, 2 * per_rank - 1);
    return step % ranks == 0 ? times(unit, numbers.turn_delay[static_cast<size_t>(pass - 1)])
                             : times(unit, numbers.pass_delay[static_cast<size_t>(pass)]);
  };
  Ticks target = 0;
  for (int stage = 0; stage < stages; ++stage) {
    const int of_all = first + stage;
    const auto index = static_cast<size_t>(of_all);
    const StageWork& one = problem_.work(of_all);
    if (stage > 0) {
      const StageWork& previous = problem_.work(first + stage - 1);
      target += previous.forward + previous.output_transfer + delay(stage, 0);
    }
    StageState& state = states_[state_of_[index]];
    const int rank = problem_.placement.rank_of_instance(first + stage);
    const Memory limit = std::max<Memory>(0, ranks_[static_cast<size_t>(rank)].forward_limit);
    const Memory most = state.memory == 0 ? microbatches_ : limit / state.memory;
    state = {.memory = state.memory,
             .input_memory = state.input_memory,
             .weight_input = state.weight_input,
             .key = state.key,
             .stage = first + stage};
    for (const Pass pass : {Pass::kForward, Pass::kInput}) {
      state.arrivals[index_of(pass)] = &arrivals_[(index_of(pass) * states_.size() + index) *
                                                  static_cast<size_t>(microbatches_)];
    }
    state.cap = microbatches_;
    if (numbers.cap_slope != Template::kNever) {
      const int64_t left = int64_t{stages - stage} * numbers.cap_slope / per_rank;
      state.cap = static_cast<int>(
          std::clamp<int64_t>((left + numbers.cap_offset) / Template::kOne, 1, microbatches_));
    }
    const int64_t wished =
        (numbers.reserve_base + int64_t{numbers.reserve_slope} * rank) / Template::kOne;
    state.reserve = static_cast<int>(
        std::clamp<int64_t>(std::min<int64_t>(wished, most / per_rank), 1, microbatches_));
    state.forward_target = target;
    state.order = {key(backward_first_ ? 2 * stages - stage : target, state, Pass::kForward), 0};
    if (stage == 0) {
      std::fill_n(state.arrivals[index_of(Pass::kForward)], microbatches_,
                  key(0, state, Pass::kForward));
      state.sent[index_of(Pass::kForward)] = microbatches_;
    }
    state.arrival = {kNone, kNone};
    update_arrival(&state, Pass::kForward);
    if (stage + 1 == stages)
      target += one.forward + times(unit, numbers.turn_delay[static_cast<size_t>(per_rank - 1)]);
  }
  for (int stage = stages - 1; stage >= 0; --stage) {
    const StageWork& one = problem_.work(first + stage);
    if (stage + 1 < stages) {
      const StageWork& next = problem_.work(first + stage + 1);
      target += next.backward_input + next.gradient_transfer - one.recomputation +
                delay(stages - 1 - stage, per_rank);
    }
    const int of_all = first + stage;
    StageState& state = states_[state_of_[static_cast<size_t>(of_all)]];
    state.order[index_of(Pass::kInput)] =
        key(backward_first_ ? stages - stage : target, state, Pass::kInput);
    const Ticks end = target + one.backward_input;
    state.next_weight =
        problem_.splits_backward ? key(end + weight_lag, state, Pass::kWeight) : kNone;
  }
}

void Dispatcher::prepare(const Template& numbers) {
  Ticks work = 0;
  for (const StageWork& one : problem_.stages)
    work += one.forward + one.backward_input + one.backward_weight;
  const Ticks unit = work / (3 * problem_.num_instances());
  makes_compounds_ = problem_.overlap > 0 && numbers.partner_patience != Template::kNever;
  partner_patience_ = numbers.partner_patience;
  whole_partners_ = problem_.splits_backward && numbers.whole_partners;
  Ticks longest = *std::ranges::max_element(work_);
  if (makes_compounds_) longest -= problem_.hidden(longest / 2);
  period_ = std::max<Ticks>(1, times(longest / microbatches_, numbers.period));
  group_ = numbers.group;
  step_ = period_ - times(period_, numbers.bunch);
  group_step_ = group_ * period_ - (group_ - 1) * step_;
  patience_ = numbers.patience;
  overrun_ = numbers.overrun;
  reserves_ = numbers.reserves;
  backward_first_ = numbers.backward_first;

  for (int first = 0; first < problem_.num_instances(); first += problem_.num_stages())
    prepare_replica(numbers, first, unit);

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

[[gnu::always_inline]] inline Memory Dispatcher::reserved(const RankState& rank, size_t at) const {
  Memory memory = 0;
  const auto forwards_left = [&](const StageState& other) {
    return microbatches_ - other.started[index_of(Pass::kForward)];
  };
  const auto reserve = [&](const StageState& other) {
    const int missing = std::max(other.reserve - other.in_flight(), 0);
    memory += std::min(missing, forwards_left(other)) * other.memory;
  };
  if (!reserves_) {
    for (size_t other = at + 1; other < rank.last; ++other) reserve(states_[other]);
    return memory;
  }
  for (size_t i = rank.first; i < rank.last; ++i) {
    const StageState& other = states_[i];
    if (i == at || forwards_left(other) == 0) continue;
    const Ticks ahead = states_[at].forward_target - other.forward_target;
    if (ahead >= 0) {
      // Forwards of the other stage with an earlier target.
      const Ticks count = ahead < period_ ? 1 : ahead / period_ + 1;  // division is slow
      memory += std::min<Ticks>(count, forwards_left(other)) * other.memory;
    } else if (i > at) {
      reserve(other);
    }
  }
  return memory;
}

[[gnu::always_inline]] inline Dispatcher::Key Dispatcher::choose(const RankState& rank, Ticks now,
                                                                 Ticks* wake) const {
  // A processor cannot foresee which inputs have come and what fits, so minima of keys take the
  // place of branches.
  const Key later = (now + 1) << key_bits_;
  Key best = kNone, weight = kNone;
  Key next = kNone;  // the next input that comes
  bool no_memory = false;
  for (size_t at = rank.first; at < rank.last; ++at) {
    const StageState& state = states_[at];
    weight = std::min(weight, state.weight);

    const Key input = state.arrival[index_of(Pass::kInput)];
    const bool input_here = input < later;
    if (state.input_memory > 0 && rank.used + state.input_memory > rank.limit) {
      no_memory |= input_here;
    } else {
      best = std::min(best, input_here ? state.order[index_of(Pass::kInput)] : kNone);
    }
    next = std::min(next, input_here ? kNone : input);

    const Key forward = state.arrival[index_of(Pass::kForward)];
    const bool forward_here = forward < later;
    Memory needed = rank.used + state.memory;
    if (forward != kNone && needed <= rank.forward_limit) needed += reserved(rank, at);
    const bool fits = needed <= rank.forward_limit;
    const Key order = forward_here ? state.order[index_of(Pass::kForward)] : kNone;
    const Key comes = forward_here ? kNone : forward;
    no_memory |= forward_here & !fits;
    best = std::min(best, fits ? order : kNone);
    next = std::min(next, fits ? comes : kNone);
  }
  const auto time_of = [&](Key key) {
    return letters_[letter(states_[state_index(rank, key)].stage, pass_of(key))].time;
  };
  const Ticks next_time = next == kNone ? WakeQueue::kAsleep : ticks_of(next);
  if (best != kNone) {
    if (backward_first_) return best;
    if (weight < best) return weight;
    if (next == kNone) return best;
    const StageState& state = states_[state_index(rank, next)];
    const Ticks next_target = ticks_of(state.order[index_of(pass_of(next))]);
    if (next_target >= ticks_of(best)) return best;
    if (next_time - now >= times(time_of(best), patience_)) return best;
  }
  if (weight != kNone) {
    const Ticks time = time_of(weight);
    if (next == kNone || no_memory || now + time <= next_time + times(time, overrun_))
      return weight;
  }
  *wake = next_time;
  return kNone;
}

Dispatcher::Key Dispatcher::partner_of(const RankState& rank, Key choice, Ticks now,
                                       Ticks* wake) const {
  if (choice == kNone || pass_of(choice) == Pass::kWeight) return kNone;
  const Pass own = pass_of(choice);
  const Pass pass = own == Pass::kForward ? Pass::kInput : Pass::kForward;
  const StageState& chosen = states_[state_index(rank, choice)];
  const auto time_of = [&](const StageState& state, Pass of) {
    return letters_[letter(state.stage, of)].time;
  };
  const Key later = (now + 1) << key_bits_;
  Key best = kNone;
  for (size_t at = rank.first; at < rank.last; ++at) {
    const StageState& state = states_[at];
    // An F may exceed its cap, because the I ends a microbatch.
    const Key input = input_of(state, pass);
    const auto next_of = [&](const StageState& of, Pass its) {
      return microbatch_of(problem_, letter(of.stage, its), of.started[index_of(its)]);
    };
    if (input == kNone || next_of(state, pass) == next_of(chosen, own)) continue;
    if (pass == Pass::kForward &&
        rank.used + state.memory + reserved(rank, at) > rank.forward_limit)
      continue;
    if (input < later) {
      best = std::min(best, state.order[index_of(pass)]);
      continue;
    }
    const Ticks shorter = std::min(time_of(chosen, own), time_of(state, pass));
    const Ticks comes = ticks_of(input);
    if (comes - now <= times(shorter, partner_patience_)) *wake = std::min(*wake, comes);
  }
  return best;
}

void Dispatcher::start_compound(int rank_index, Key choice, Key partner, Ticks now) {
  const RankState& rank = ranks_[static_cast<size_t>(rank_index)];
  Word& word = words_[static_cast<size_t>(rank_index)];
  const auto [input, forward] = std::minmax(choice, partner, [&](Key a, Key b) {
    return pass_of(a) == Pass::kInput && pass_of(b) == Pass::kForward;
  });
  const StageState& of_forward = states_[state_index(rank, forward)];
  const StageState& of_input = states_[state_index(rank, input)];
  const auto next_time = [&](const StageState& state, Pass pass) {
    return time_of(letter(state.stage, pass), state.started[index_of(pass)]);
  };
  Ticks backward = next_time(of_input, Pass::kInput);
  // A whole backward has I and W of one microbatch.
  const bool is_whole = whole_partners_ && of_input.started[index_of(Pass::kInput)] ==
                                               of_input.started[index_of(Pass::kWeight)];
  if (is_whole) backward += next_time(of_input, Pass::kWeight);
  const Ticks time = problem_.together(next_time(of_forward, Pass::kForward), backward);
  start(rank_index, forward, now, time);
  word.back() |= kTogether;
  start(rank_index, input, now, time);
  if (!is_whole) return;
  word.back() |= kTogether;
  start(rank_index, of_input.weight, now, time);
}

[[gnu::always_inline]] inline Ticks Dispatcher::send(const Receiver& next, int k, Ticks now,
                                                     Ticks end) {
  StageState& state = *next.state;
  Key* const arrivals = state.arrivals[index_of(next.pass)];
  int& sent = state.sent[index_of(next.pass)];
  Ticks arrival = end + next.delay;
  if (next.is_plain) [[likely]] {
    arrivals[sent++] = key(arrival, state, next.pass);
    return arrival;
  }
  const Letter one = letter(state.stage, next.pass);
  const LetterInfo& info = letters_[one];
  // One that could have started before now starts now.
  arrival = std::max(now, end + delay_of(problem_, info, one, k));
  if (info.needs_last_slice && (k + 1) % problem_.slices != 0) return arrival;
  while (sent <= k) arrivals[sent++] = key(arrival, state, next.pass);
  return arrival;
}

[[gnu::always_inline]] inline void Dispatcher::start(int rank_index, Key choice, Ticks now,
                                                     Ticks compound) {
  RankState& rank = ranks_[static_cast<size_t>(rank_index)];
  StageState& state = states_[state_index(rank, choice)];
  const Pass pass = pass_of(choice);
  const Letter one = letter(state.stage, pass);
  const int microbatch = state.started[index_of(pass)]++;
  const Ticks step = step_after(microbatch);
  const Ticks time = time_of(one, microbatch), end = now + std::max(time, compound);
  rank.left -= time;
  rank.end = end;
  if (rank.start < 0) rank.start = now;
  words_[static_cast<size_t>(rank_index)].push_back(one);
  ++actions_;
  queue_.set(rank_index, end);
  switch (pass) {
    case Pass::kForward:
      rank.used += state.memory;
      state.forward_target += step;
      update_arrival(&state, Pass::kForward);
      break;
    case Pass::kInput:
      rank.used += state.weight_input - state.memory;
      update_arrival(&state, Pass::kInput);
      update_arrival(&state, Pass::kForward);
      update_weight(&state);
      break;
    case Pass::kWeight:
      rank.used -= state.weight_input;
      state.next_weight += step << key_bits_;
      update_weight(&state);
      return;
  }
  if (!backward_first_) state.order[index_of(pass)] += step << key_bits_;
  const Receiver& next = receivers_[one];
  if (next.state == nullptr) return;
  const Ticks arrival = send(next, microbatch, now, end);
  update_arrival(next.state, next.pass);
  // A rank that is busy decides when it ends; one that idles must look at what comes.
  if (next.rank != rank_index && ranks_[static_cast<size_t>(next.rank)].end <= now)
    queue_.wake_by(next.rank, arrival);
}

std::optional<Ticks> Dispatcher::run(const Template& numbers, Ticks most) {
  prepare(numbers);
  for (int first = 0; first < problem_.num_instances(); first += problem_.num_stages())
    queue_.set(problem_.placement.rank_of_instance(first), 0);
  const size_t total =
      (problem_.splits_backward ? 3 : 2) * states_.size() * static_cast<size_t>(microbatches_);
  while (!queue_.empty()) {
    const Ticks now = queue_.time();
    const int index = queue_.rank();
    RankState& rank = ranks_[static_cast<size_t>(index)];
    Ticks wake = WakeQueue::kAsleep;
    const Key choice = choose(rank, now, &wake);
    const Key partner = makes_compounds_ ? partner_of(rank, choice, now, &wake) : kNone;
    if (partner != kNone) {
      start_compound(index, choice, partner, now);
    } else if (choice != kNone && wake == WakeQueue::kAsleep) {
      start(index, choice, now);
    } else {
      queue_.set(index, wake);
      continue;
    }
    const Ticks hidden = makes_compounds_ ? problem_.hidden(rank.left / 2) : 0;
    if (rank.end + rank.left - hidden - rank.start > most) return std::nullopt;
  }
  if (actions_ < total) return std::nullopt;
  Ticks cost = 0;
  for (const RankState& rank : ranks_) cost = std::max(cost, rank.end - rank.start);
  return cost;
}

}  // namespace pipewright::schedule::search
