#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_LOCAL_SEARCH_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_LOCAL_SEARCH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/words.h"

namespace pipewright::schedule::search {

// A generator of pseudo-random numbers (Steele and Vigna's splitmix64) that returns the same
// numbers on every machine; the distributions of <random> differ between libraries.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // From 0 to n - 1; n must be from 1 to 2^31.
  int below(int n) { return static_cast<int>((next() >> 32) * static_cast<uint64_t>(n) >> 32); }
  size_t index(size_t n) { return static_cast<size_t>(below(static_cast<int>(n))); }
  // From low to high, both included.
  int between(int low, int high) { return low + below(high - low + 1); }
  // True once in n.
  bool one_in(int n) { return below(n) == 0; }

 private:
  uint64_t state_;
};

// Improves words by moving single letters along their rank: simulated annealing with an incremental
// replay, which computes again only the actions whose times change. Keeps its buffers between
// calls. Not thread-safe. The problem must outlive it; F and I must take time on every stage.
//
//   LocalSearch search(problem, seed);
//   search.start(words);
//   search.anneal({.evaluations = 1'000'000, .temperature = 20, .bound = bound});
//   if (search.best_cost() < cost) words = search.best();
class LocalSearch {
 public:
  LocalSearch(const Problem& problem, uint64_t seed);

  // Starts from words that run to their end and fit the memory limits. Throws ir::InternalError if
  // they do not run.
  void start(const Words& words);

  struct Annealing {
    int64_t evaluations;  // actions to evaluate, including a constant per move
    // At the start, in ticks; falls to 0. A move that makes the score worse by as much as one tick
    // of cost for each tick of temperature is accepted with probability 1/e.
    double temperature;
    Ticks bound = 0;                            // stop at this cost
    const std::atomic<bool>* cancel = nullptr;  // stop when it is set; may be null
  };
  // Goes on from the current words.
  void anneal(const Annealing& annealing);

  // Since start().
  Ticks best_cost() const { return best_cost_; }
  Words best() const;
  int64_t evaluations() const { return evaluations_; }

  // The times and memory of the current words must be those of a replay. For tests; linear.
  bool is_consistent();

 private:
  // An instance of a letter: letter * microbatches + instance.
  using Node = int32_t;
  static constexpr Node kNone = -1;

  struct NodeInfo {
    Letter letter;
    Ticks time, delay;  // delay: after the end of `need`
    Node need;          // on another rank, or kNone: on the same rank the word keeps the order
    Node unlocks;       // on another rank, or kNone
    Node before;        // on the same rank, must stay before this one; or kNone
    int32_t rank;
    int32_t position;  // in the rank's word
  };
  struct Shift {
    int rank, from, to;
  };
  struct Pending {
    Ticks start;
    Node node;
  };

  NodeInfo& at(Node node) { return nodes_[static_cast<size_t>(node)]; }
  const NodeInfo& at(Node node) const { return nodes_[static_cast<size_t>(node)]; }
  Ticks end(Node node) const { return ends_[static_cast<size_t>(node)]; }
  Ticks start_of(Node node) const { return end(node) - at(node).time; }
  // When the node can start, given the ends of what it waits for.
  Ticks ready(Node node) const;

  Ticks latest(Node node) const { return latest_[static_cast<size_t>(node)]; }

  void replay();       // all ends, and an order in which the nodes can run
  void measure();      // cost and spans from the ends
  void find_latest();  // from the order of the last replay
  void find_critical_path();
  void refresh();  // all of these
  int64_t score() const;
  // Moves of one node within its rank.
  bool can_shift(const Shift& move) const;
  void apply(const Shift& move);
  bool try_shift(Node node, int distance);
  bool fits() const;  // whether the shifts keep to the memory limit
  bool make_random_shifts();
  // Computes the ends after the shifts. False once a node ends more than `slack` after its latest
  // end.
  bool propagate(Ticks slack);
  void push(Node node);  // to the heap, if its start has changed
  void undo();           // the shifts and their changes

  const Problem& problem_;
  Random random_;
  size_t microbatches_;
  std::vector<NodeInfo> nodes_;
  std::vector<Memory> memory_change_;        // by letter
  std::vector<Memory> temporary_;            // by letter: LetterInfo::temporary
  std::vector<std::vector<Node>> words_;     // by rank
  std::vector<std::vector<Memory>> memory_;  // by rank: in use after each position
  std::vector<Ticks> ends_;
  std::vector<Ticks> latest_;  // end by which each node must end for the cost at the last refresh
  std::vector<Node> order_;    // nodes in an order in which the replay can run them
  std::vector<Node> path_;     // a critical path
  std::vector<Pending> heap_;
  std::vector<std::pair<Node, Ticks>> changes_;  // old ends, in the order of the changes
  std::vector<Shift> shifts_;
  std::vector<Node> block_;
  std::vector<Ticks> exponential_;  // quantiles of the exponential distribution, in 1/1024
  Ticks work_ = 0;                  // of all ranks
  Ticks reference_cost_ = 0;        // the cost that latest_ is for
  std::vector<std::vector<Node>> best_;
  Ticks best_cost_ = 0;
  Ticks cost_ = 0, sum_of_spans_ = 0;  // of the current words
  int longest_rank_ = 0;
  int64_t evaluations_ = 0;
};

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_LOCAL_SEARCH_H_
