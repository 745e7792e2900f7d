#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_LOCAL_SEARCH_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_LOCAL_SEARCH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/random.h"
#include "pipewright/schedule/search/words.h"

namespace pipewright::schedule::search {

// Improves words by moving single steps along their rank, and where the problem has an overlap, by
// making compounds and splitting them: simulated annealing with an incremental replay, which
// computes again only the actions whose times change. Keeps its buffers between calls. Not
// thread-safe. The problem must outlive it; F and I must take time on every stage.
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
  const Words& best() const { return best_; }
  int64_t evaluations() const { return evaluations_; }

  // The times and memory of the current words must be those of a replay. For tests; linear.
  bool is_consistent();

 private:
  // An instance of a letter: letter * microbatches + instance.
  using Node = int32_t;
  static constexpr Node kNone = -1;

  struct NodeInfo {
    Ticks time;    // of its step
    Ticks delay;   // after the end of `need`
    Node need;     // on another rank, or kNone: on the same rank the word keeps the order
    Node unlocks;  // on another rank, or kNone
    Node before;   // on the same rank, must stay before this one; or kNone
    int32_t rank;
    int32_t position;  // in the rank's word
    Letter letter;
    uint8_t part = 0, parts = 1;  // which letter of its step it is, and how many that has
  };
  // Positions of a word: [first, middle) and [middle, last) change places; or, if `parts` is not 0,
  // the first `parts` letters of [first, last) become one step, in place of the first
  // `parts_before`, and the others run alone.
  struct Move {
    int rank, first, middle, last;
    uint8_t parts = 0, parts_before = 0;
  };
  struct Pending {
    Ticks start;
    Node node;
  };

  NodeInfo& at(Node node) { return nodes_[static_cast<size_t>(node)]; }
  const NodeInfo& at(Node node) const { return nodes_[static_cast<size_t>(node)]; }
  Ticks end(Node node) const { return ends_[static_cast<size_t>(node)]; }
  Ticks start_of(Node node) const { return end(node) - at(node).time; }
  Ticks latest(Node node) const { return latest_[static_cast<size_t>(node)]; }
  const std::vector<Node>& word_of(const NodeInfo& info) const {
    return words_[static_cast<size_t>(info.rank)];
  }
  // The first node of the node's step.
  Node head(Node node) const {
    const NodeInfo& info = at(node);
    return info.part == 0 ? node : word_of(info)[static_cast<size_t>(info.position - info.part)];
  }
  std::span<const Node> step_of(Node head) const {
    const NodeInfo& info = at(head);
    return {&word_of(info)[static_cast<size_t>(info.position)], info.parts};
  }

  // In these, a node is the first one of its step.
  // When the step can start, given the ends of what it waits for.
  Ticks ready(Node node) const;
  bool ends_at(Node node, Ticks end) const;  // all of its nodes
  bool has_inputs(Node node) const;

  // How long the letters of a step take together, and what a node does to the memory of its rank.
  Ticks time_of(std::span<const Node> step) const;
  MemoryUse use_of(const NodeInfo& info) const {
    if (info.parts < 3 || info.part == 0) return uses_[info.letter];
    return memory_use(problem_.work(stage_of(info.letter)), pass_of(info.letter),
                      /*is_whole=*/true);
  }

  void replay();       // all ends, and an order in which the nodes can run
  void measure();      // cost and spans from the ends
  void find_latest();  // from the order of the last replay
  void find_critical_path();
  void refresh();  // all of these
  int64_t score() const;
  // Moves of one step within its rank, in moves.cc.
  bool may_swap(const Move& move) const;
  void apply(const Move& move);
  void make(const Move& move);
  bool try_swap(const Move& move);
  bool try_shift(Node node, int distance);
  void resize(Node node, uint8_t parts);
  bool try_join(Node node, int distance);
  bool try_add_weight(Node node);
  bool change_compound(Node node);
  bool fits() const;  // whether the moves keep to the memory limit
  bool make_random_moves();
  // Computes the ends after the moves. False once a node ends more than `slack` after its latest
  // end.
  bool propagate(Ticks slack);
  void push(Node node);  // to the heap, if its start has changed
  void undo();           // the moves and their changes
  Words current() const;

  const Problem& problem_;
  Random random_;
  size_t microbatches_;
  std::vector<NodeInfo> nodes_;
  std::vector<Ticks> times_;                 // by node: how long it runs alone
  std::vector<MemoryUse> uses_;              // by letter
  std::vector<std::vector<Node>> words_;     // by rank
  std::vector<std::vector<Memory>> memory_;  // by rank: in use after each position
  std::vector<Ticks> ends_;
  std::vector<Ticks> latest_;  // end by which each node must end for the cost at the last refresh
  std::vector<Node> order_;    // first nodes of steps in an order in which the replay can run them
  std::vector<Node> path_;     // a critical path, of first nodes
  std::vector<Pending> heap_;
  std::vector<std::pair<Node, Ticks>> changes_;  // old ends, in the order of the changes
  std::vector<Move> moves_;
  std::vector<Node> block_;
  std::vector<Ticks> exponential_;  // quantiles of the exponential distribution, in 1/1024
  Ticks least_spans_ = 0;           // the sum of the spans is never less
  Ticks reference_cost_ = 0;        // the cost that latest_ is for
  Words best_;
  Ticks best_cost_ = 0;
  Ticks cost_ = 0, sum_of_spans_ = 0;  // of the current words
  int longest_rank_ = 0;
  int64_t evaluations_ = 0;
};

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_LOCAL_SEARCH_H_
