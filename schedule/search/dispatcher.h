#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_DISPATCHER_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_DISPATCHER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/words.h"

namespace pipewright::schedule::search {

// The next time at which each rank has to decide, as a tournament tree: every node has the earliest
// (time, rank) below it. One entry per rank, so it never grows; an update takes log2(ranks) steps.
// Times must be below 2^48, ranks below 2^14.
class WakeQueue {
 public:
  static constexpr Ticks kAsleep = std::numeric_limits<Ticks>::max();

  explicit WakeQueue(int num_ranks) {
    while ((size_t{1} << bits_) < static_cast<size_t>(num_ranks)) ++bits_;
    keys_.resize(size_t{2} << bits_);
    clear();
  }

  // Puts all ranks to sleep.
  void clear() { std::ranges::fill(keys_, kAsleep); }

  bool empty() const { return keys_[1] == kAsleep; }
  Ticks time() const { return keys_[1] >> bits_; }
  int rank() const { return static_cast<int>(keys_[1] & ((Ticks{1} << bits_) - 1)); }

  void set(int rank, Ticks time) {
    replace(rank, time == kAsleep ? kAsleep : (time << bits_ | rank));
  }
  // Wakes a sleeping rank no later than at `time`.
  void wake_by(int rank, Ticks time) {
    const Ticks key = time << bits_ | rank;
    if (key < keys_[(size_t{1} << bits_) + static_cast<size_t>(rank)]) replace(rank, key);
  }

 private:
  void replace(int rank, Ticks key) {
    size_t at = (size_t{1} << bits_) + static_cast<size_t>(rank);
    keys_[at] = key;
    while (at > 1) {
      key = std::min(key, keys_[at ^ 1]);
      at /= 2;
      if (keys_[at] == key) return;
      keys_[at] = key;
    }
  }

  unsigned bits_ = 0;
  std::vector<Ticks> keys_;  // node n has the children 2n and 2n + 1; the ranks are the leaves
};

// Numbers that steer the dispatcher, independent of the size and the scale of the problem. They say
// when each action should run: one microbatch passes through the pipeline with a delay after every
// stage, and the next microbatch follows one period later.
//
// All numbers are integers in units of 1/kOne, so that the same template makes the same schedule on
// every machine. A pass is one walk over the ranks: with v stages per rank there are v forward and
// v backward passes. The time unit is a third of the mean work of a stage.
struct Template {
  static constexpr int kOne = 4096;
  static constexpr int kNever = 1 << 30;

  std::vector<int> pass_delay;  // per pass: delay after each of its stages, in time units
  std::vector<int> turn_delay;  // between passes: delay in place of pass_delay, in time units
  int period = kOne;            // in multiples of the longest rank's work per microbatch
  int weight_lag = kNever;      // target of W after the end of I, in ranks x periods; kNever: W
                                // only fills gaps
  int patience = 0;         // how long to wait for an action with an earlier target, relative to
                            // the action that is ready
  int overrun = 0;          // how much a W may run into the start of the next action, relative
                            // to W
  bool reserves = false;    // whether F keeps memory free for earlier targets on its rank
  int reserve_base = kOne;  // microbatches of each later stage on the rank that F keeps memory
  int reserve_slope = 0;    // for: base + slope * rank, at least 1
  int cap_slope = kNever;   // microbatches in flight at a stage: at most slope * (stages left) /
  int cap_offset = 0;       // (stages per rank) + offset; kNever: no cap
  bool backward_first = false;  // I before F, later stages first, whatever the targets
  // Compounds, of problems with an overlap: how long an F or I waits for an I or F of its rank that
  // can run at once with it, relative to the shorter of both; kNever: they run alone.
  int partner_patience = kNever;
  bool whole_partners = false;  // whether compounds run W at once where they can
  // Microbatches come in groups of this size, each closer to the previous one of its group by this
  // part of the period. The mean distance stays one period.
  int group = 1, bunch = 0;

  friend bool operator==(const Template&, const Template&) = default;
};

// The most stages on any rank, which decides the number of a template's delays.
int stages_per_rank(const Problem& problem);

// Makes schedules: simulates all ranks in time order, and whenever a rank is free, starts the ready
// action with the earliest target of a template, as far as memory allows; or, where the template
// asks for compounds, that action and a partner. Keeps its buffers between calls. Not thread-safe.
// The problem must outlive it. Linear in the number of actions, at 30 to 70 ns each.
class Dispatcher {
 public:
  explicit Dispatcher(const Problem& problem);
  Dispatcher(const Dispatcher&) = delete;  // points into itself
  Dispatcher& operator=(const Dispatcher&) = delete;

  // The cost of the schedule that the template makes, or nullopt if it does not finish or costs
  // more than `most`. The schedule fits the memory limits. words() has it until the next call.
  std::optional<Ticks> run(const Template& numbers, Ticks most);
  const Words& words() const { return words_; }
  // The number of actions that run() started.
  size_t actions() const { return actions_; }

 private:
  // A time in the high bits; in the low bits, which pass of which stage of the rank it belongs to.
  // So the earliest of several is their least key. Where times are equal, lower stages go first, I
  // goes before F, and W goes last.
  using Key = int64_t;
  static constexpr Key kNone = WakeQueue::kAsleep;

  // The progress of one stage. Arrays are indexed by Pass.
  struct StageState {
    std::array<Key, 2> arrival = {};  // of the next input; kNone: not sent, or F is at its cap
    std::array<Key, 2> order = {};    // targets of the next F and I; constant if backward_first
    Key weight = kNone;               // target of the next W; kNone: its I has not started
    Key next_weight = 0;              // the same, whether or not its I has started
    Ticks forward_target = 0;         // of the next F
    Memory memory = 0;                // of an activation
    Memory input_memory = 0;          // what I needs in addition
    Memory weight_input = 0;          // what is in use from I to W
    Key key = 0;                      // of time 0 and I
    int stage = 0;
    int cap = 0;                        // most microbatches between F and I
    int reserve = 0;                    // microbatches that other stages keep memory for
    std::array<int, 3> started = {};    // how many of each pass have started
    std::array<int, 2> sent = {};       // how many inputs of F and I have been sent
    std::array<Key*, 2> arrivals = {};  // of the inputs, by microbatch

    int in_flight() const { return started[0] - started[1]; }  // microbatches between F and I
  };
  // What needs the result of an F or I: the next pass of a microbatch.
  struct Receiver {
    StageState* state = nullptr;  // null if nothing needs it
    Ticks delay = 0;              // as LetterInfo::delay
    int rank = 0;
    Pass pass = Pass::kForward;
    bool is_plain = true;  // takes each result alone, at a delay that is constant and not negative
  };
  struct RankState {
    size_t first = 0, last = 0;  // its stages in states_
    Memory used = 0, limit = 0;
    Memory forward_limit = 0;  // of what F may leave in use: any I fits beside it
    Ticks left = 0;            // work that has not started
    Ticks start = -1;          // of the first action
    Ticks end = 0;             // of the last action
  };

  void prepare(const Template& numbers);
  void prepare_replica(const Template& numbers, int first, Ticks unit);
  Memory reserved(const RankState& rank, size_t at) const;
  // The key of what `rank` starts at `now`; kNone if nothing, and *wake becomes the time of its
  // next input.
  Key choose(const RankState& rank, Ticks now, Ticks* wake) const;
  // The F or I that can run at once with `choice`; kNone if there is none. If `choice` should wait
  // for one that comes, *wake becomes its time.
  Key partner_of(const RankState& rank, Key choice, Ticks now, Ticks* wake) const;
  // Starts a letter, for the time of its compound where that is longer than its own.
  void start(int rank, Key choice, Ticks now, Ticks compound = 0);
  // Notes when the k-th result, which is made at `end`, comes to a receiver. Returns that time.
  Ticks send(const Receiver& next, int k, Ticks now, Ticks end);
  void start_compound(int rank, Key choice, Key partner, Ticks now);
  // The arrival of the next input; kNone if it has not been sent.
  static Key input_of(const StageState& state, Pass pass);
  // Bring StageState::arrival and weight up to date after a start or an input that was sent.
  static void update_arrival(StageState* state, Pass pass);
  static void update_weight(StageState* state);

  Key key(Ticks ticks, const StageState& state, Pass pass) const;
  Ticks ticks_of(Key key) const { return key >> key_bits_; }
  Pass pass_of(Key key) const {
    return (key & weight_bit_) != 0 ? Pass::kWeight
           : (key & 1) != 0         ? Pass::kForward
                                    : Pass::kInput;
  }
  // The index in states_.
  size_t state_index(const RankState& rank, Key key) const {
    return rank.first + static_cast<size_t>((key & (weight_bit_ - 1)) >> 1);
  }
  // From the target of a microbatch to that of the next one.
  Ticks step_after(int microbatch) const {
    return group_ == 1 || (microbatch + 1) % group_ == 0 ? group_step_ : step_;
  }
  Ticks time_of(Letter letter, int k) const;

  const Problem& problem_;
  std::vector<LetterInfo> letters_;
  int microbatches_;                 // that each stage runs
  std::vector<StageState> states_;   // by rank, stages ascending
  std::vector<size_t> state_of_;     // by stage
  std::vector<Receiver> receivers_;  // by letter
  std::vector<RankState> ranks_;
  std::vector<Key> arrivals_;  // what StageState::arrivals points to
  std::vector<Ticks> work_;    // by rank, in total
  unsigned key_bits_ = 0;      // of a key, below its time
  Key weight_bit_ = 0;         // the highest of these
  WakeQueue queue_;
  Words words_;
  size_t actions_ = 0;

  // Of the template of this run, in ticks.
  Ticks period_ = 0;
  Ticks step_ = 0, group_step_ = 0;  // to the target of the next microbatch, of the next group
  int group_ = 1, patience_ = 0, overrun_ = 0, partner_patience_ = 0;
  bool reserves_ = false, backward_first_ = false, makes_compounds_ = false,
       whole_partners_ = false;
};

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_DISPATCHER_H_
