// The state is one word of nodes per rank and the end of every node. The nodes of a compound are
// neighbours in the word and have the same times; its first node stands for it. Moves change the
// words; the rest says what that costs, and what is kept.
//
// After a move, times are corrected by label correction: steps whose predecessors changed are taken
// from a heap, earliest start first, and computed again; if the end changes, the next step of the
// rank and the steps that wait for it follow. Most moves end after a few steps, because slack
// absorbs the change. Each node has a latest end, beyond which the cost would rise too far; the
// move is given up once a node ends later. That also ends moves that deadlock, since times grow
// with every round of the cycle; or once it has changed very many, because where transfers take
// much longer than actions, times may grow slowly. The latest ends are those of an earlier state,
// refreshed now and then: a wrong rejection only loses a move, and accepted costs are always exact.
//
// The score that annealing minimises is the cost plus the mean span: without the second part most
// moves change nothing, and the search stalls.
#include "pipewright/schedule/search/local_search.h"

#include <algorithm>
#include <functional>

#include "pipewright/ir/check.h"
#include "pipewright/schedule/problem/problem.h"

namespace pipewright::schedule::search {
namespace {

constexpr int kEvaluationsPerMove = 6;  // what a move costs beside the nodes it computes
constexpr int kRefreshMoves = 2000;     // between two refreshes of the latest ends
constexpr int kPathChanges = 8;         // accepted moves between two critical paths
constexpr size_t kMostChanges = 4;      // of one move, per node

}  // namespace

LocalSearch::LocalSearch(const Problem& problem, uint64_t seed)
    : problem_(problem),
      random_(seed),
      microbatches_(static_cast<size_t>(problem.runs_per_instance())) {
  const std::vector<LetterInfo> letters = letters_of(problem);
  nodes_.resize(letters.size() * microbatches_);
  ends_.resize(nodes_.size());
  latest_.resize(nodes_.size());
  const auto node = [&](int letter, size_t instance) {
    return static_cast<Node>(static_cast<size_t>(letter) * microbatches_ + instance);
  };
  for (Letter one = 0; one < letters.size(); ++one) {
    const LetterInfo& info = letters[one];
    uses_.push_back(memory_use(problem.work(stage_of(one)), pass_of(one)));
    const auto rank_of = [&](int other) { return letters[static_cast<size_t>(other)].rank; };
    const bool is_unused = !problem.splits_backward && pass_of(one) == Pass::kWeight;
    for (size_t instance = 0; instance < microbatches_; ++instance) {
      const bool near = info.need >= 0 && rank_of(info.need) == info.rank;
      const bool sends = info.unlocks >= 0 && rank_of(info.unlocks) != info.rank;
      NodeInfo& one_node = nodes_[one * microbatches_ + instance];
      const int k = static_cast<int>(instance);
      const auto needed = static_cast<size_t>(needed_instance(problem, info, k));
      one_node = {.time = search::time_of(problem, info, one, k),
                  .delay = delay_of(problem, info, one, k),
                  .need = info.need >= 0 && !near ? node(info.need, needed) : kNone,
                  .unlocks = sends ? node(info.unlocks, instance) : kNone,
                  .before = near ? node(info.need, needed) : kNone,
                  .rank = info.rank,
                  .position = -1,
                  .letter = one};
      times_.push_back(one_node.time);
      if (!is_unused) least_spans_ += one_node.time;
    }
  }
  least_spans_ -= problem.hidden(least_spans_ / 2);
  for (int n = 0; n < 1024; ++n) exponential_.push_back(exponential_quantile(n));
}

inline Ticks LocalSearch::ready(Node node) const {
  const NodeInfo& info = at(node);
  Ticks time = 0;
  if (info.position > 0) time = end(word_of(info)[static_cast<size_t>(info.position - 1)]);
  if (info.need != kNone) time = std::max(time, end(info.need) + info.delay);
  if (info.parts > 1) {
    const NodeInfo& partner = at(step_of(node)[1]);
    if (partner.need != kNone) time = std::max(time, end(partner.need) + partner.delay);
  }
  return time;
}

inline bool LocalSearch::ends_at(Node node, Ticks time) const {
  return end(node) == time &&
         (at(node).parts == 1 ||
          std::ranges::all_of(step_of(node), [&](Node one) { return end(one) == time; }));
}

bool LocalSearch::has_inputs(Node node) const {
  return std::ranges::all_of(
      step_of(node), [&](Node one) { return at(one).need == kNone || end(at(one).need) >= 0; });
}

void LocalSearch::start(const Words& words) {
  words_.assign(words.size(), {});
  memory_.assign(words.size(), {});
  std::vector<int> instances(uses_.size());
  for (size_t rank = 0; rank < words.size(); ++rank) {
    const Word& from = words[rank];
    std::vector<Node>& word = words_[rank];
    for (const Letter marked : from) {
      const Letter one = plain(marked);
      const auto node = static_cast<Node>(one * microbatches_) + instances[one]++;
      at(node).position = static_cast<int32_t>(word.size());
      word.push_back(node);
    }
    memory_[rank].resize(word.size());
    for (size_t k = 0, size = 0; k < word.size(); k += size) {
      size = step_size(&from[k]);
      const int first = static_cast<int>(k), last = static_cast<int>(k + size);
      apply({static_cast<int>(rank), first, first, last, static_cast<uint8_t>(size)});
    }
  }
  replay();
  evaluations_ = static_cast<int64_t>(order_.size());
  best_ = words;
  best_cost_ = cost_;
}

// Computes all ends, and an order in which the steps can run.
void LocalSearch::replay() {
  order_.clear();
  std::ranges::fill(ends_, -1);
  std::vector<size_t> next(words_.size());
  std::vector<int> queue;
  std::vector<bool> is_queued(words_.size(), true);
  size_t left = 0;
  for (size_t rank = words_.size(); rank-- > 0;) {
    queue.push_back(static_cast<int>(rank));
    left += words_[rank].size();
  }
  while (!queue.empty()) {
    const auto rank = static_cast<size_t>(queue.back());
    queue.pop_back();
    is_queued[rank] = false;
    while (next[rank] < words_[rank].size()) {
      const Node node = words_[rank][next[rank]];
      if (!has_inputs(node)) break;
      const std::span<const Node> step = step_of(node);
      const Ticks time = ready(node) + at(node).time;
      order_.push_back(node);
      next[rank] += step.size();
      left -= step.size();
      for (const Node one : step) {
        ends_[static_cast<size_t>(one)] = time;
        if (at(one).unlocks == kNone) continue;
        const int other = at(at(one).unlocks).rank;
        if (is_queued[static_cast<size_t>(other)]) continue;
        is_queued[static_cast<size_t>(other)] = true;
        queue.push_back(other);
      }
    }
  }
  PW_CHECK(left == 0, "the words run to their end");
  measure();
}

void LocalSearch::measure() {
  cost_ = sum_of_spans_ = 0;
  for (size_t rank = 0; rank < words_.size(); ++rank) {
    const std::vector<Node>& word = words_[rank];
    if (word.empty()) continue;
    const Ticks span = end(word.back()) - start_of(word.front());
    sum_of_spans_ += span;
    if (span <= cost_) continue;
    cost_ = span;
    longest_rank_ = static_cast<int>(rank);
  }
}

// Needs the order_ of the current words.
void LocalSearch::find_latest() {
  reference_cost_ = cost_;
  for (auto node = order_.rbegin(); node != order_.rend(); ++node) {
    const std::span<const Node> step = step_of(*node);
    const std::vector<Node>& word = word_of(at(*node));
    const size_t next = static_cast<size_t>(at(*node).position) + step.size();
    Ticks latest = next < word.size() ? this->latest(word[next]) - at(word[next]).time
                                      : cost_ + start_of(word.front());
    for (const Node one : step) {
      if (at(one).unlocks == kNone) continue;
      const NodeInfo& other = at(at(one).unlocks);
      latest = std::min(latest, this->latest(at(one).unlocks) - other.time - other.delay);
    }
    for (const Node one : step) latest_[static_cast<size_t>(one)] = latest;
  }
}

// From the end of the longest rank back to the first action that waits for nothing.
void LocalSearch::find_critical_path() {
  path_.clear();
  Node node = words_[static_cast<size_t>(longest_rank_)].back();
  while (node != kNone) {
    node = head(node);
    path_.push_back(node);
    const NodeInfo& info = at(node);
    const Ticks start = start_of(node);
    const Node previous =
        info.position == 0 ? kNone : word_of(info)[static_cast<size_t>(info.position) - 1];
    if (previous != kNone && end(previous) == start) {
      node = previous;
      continue;
    }
    const auto step = step_of(node);
    const auto late = std::ranges::find_if(step, [&](Node one) {
      return at(one).need != kNone && end(at(one).need) + at(one).delay == start;
    });
    node = late == step.end() ? kNone : at(*late).need;
  }
}

int64_t LocalSearch::score() const {
  return static_cast<int64_t>(words_.size()) * cost_ + sum_of_spans_;
}

inline void LocalSearch::push(Node node) {
  const Ticks start = ready(node);
  if (ends_at(node, start + at(node).time)) return;
  heap_.push_back({start, node});
  std::ranges::push_heap(heap_, std::greater<>(), &Pending::start);
}

bool LocalSearch::propagate(Ticks slack) {
  heap_.clear();
  for (const Move& move : moves_) {
    const std::vector<Node>& word = words_[static_cast<size_t>(move.rank)];
    const size_t last = std::min(static_cast<size_t>(move.last), word.size() - 1);
    for (auto k = static_cast<size_t>(move.first); k <= last; ++k) push(head(word[k]));
  }
  while (!heap_.empty()) {
    std::ranges::pop_heap(heap_, std::greater<>(), &Pending::start);
    const Node node = heap_.back().node;
    heap_.pop_back();
    const NodeInfo& info = at(node);
    const Ticks now = ready(node) + info.time;
    if (ends_at(node, now)) continue;
    if (changes_.size() >= kMostChanges * nodes_.size()) return false;
    const std::span<const Node> step = step_of(node);
    Ticks latest = this->latest(node);
    for (const Node one : step.subspan(1)) latest = std::max(latest, this->latest(one));
    if (now > latest + slack) return false;
    for (const Node one : step) {
      Ticks& end = ends_[static_cast<size_t>(one)];
      changes_.emplace_back(one, end);
      end = now;
    }
    const std::vector<Node>& word = word_of(info);
    const size_t next = static_cast<size_t>(info.position) + step.size();
    if (next < word.size()) push(word[next]);
    for (const Node one : step) {
      if (at(one).unlocks != kNone) push(head(at(one).unlocks));
    }
  }
  return true;
}

void LocalSearch::undo() {
  for (auto change = changes_.rbegin(); change != changes_.rend(); ++change)
    ends_[static_cast<size_t>(change->first)] = change->second;
  for (auto move = moves_.rbegin(); move != moves_.rend(); ++move)
    apply({move->rank, move->first, move->first + move->last - move->middle, move->last,
           move->parts_before, move->parts});
}

void LocalSearch::refresh() {
  replay();
  find_latest();
  find_critical_path();
  evaluations_ += static_cast<int64_t>(order_.size());
}

void LocalSearch::anneal(const Annealing& annealing) {
  const int64_t begin = evaluations_;
  const auto weight = static_cast<int64_t>(words_.size());
  int moves = 0, changes = 0;
  refresh();
  while (best_cost_ > annealing.bound) {
    const int64_t used = evaluations_ - begin;
    if (used >= annealing.evaluations) return;
    if (is_cancelled(annealing.cancel)) return;
    if (++moves == kRefreshMoves) {
      refresh();
      moves = 0;
    }
    evaluations_ += kEvaluationsPerMove;
    if (!make_random_moves()) {
      undo();
      continue;
    }
    const double left = 1 - static_cast<double>(used) / static_cast<double>(annealing.evaluations);
    const auto temperature = static_cast<int64_t>(1024 * annealing.temperature * left * left);
    const int64_t most = score() + weight * temperature / 1024 *
                                       exponential_[random_.index(exponential_.size())] / 1024;
    const Ticks cost = cost_, sum_of_spans = sum_of_spans_;
    const int longest_rank = longest_rank_;
    const bool runs = propagate((most - least_spans_) / weight - reference_cost_);
    evaluations_ += static_cast<int64_t>(changes_.size());
    if (runs) measure();
    if (!runs || score() > most) {
      undo();
      cost_ = cost;
      sum_of_spans_ = sum_of_spans;
      longest_rank_ = longest_rank;
      continue;
    }
    if (cost_ < best_cost_) {
      best_cost_ = cost_;
      best_ = current();
    }
    if (!changes_.empty() && ++changes == kPathChanges) {
      find_critical_path();
      changes = 0;
    }
  }
}

Words LocalSearch::current() const {
  Words words;
  for (const std::vector<Node>& nodes : words_) {
    Word& word = words.emplace_back();
    word.reserve(nodes.size());
    for (const Node node : nodes) {
      const NodeInfo& info = at(node);
      word.push_back(info.letter | (info.part + 1 < info.parts ? kTogether : 0));
    }
  }
  return words;
}

bool LocalSearch::is_consistent() {
  const std::vector<Ticks> ends = ends_;
  const std::vector<std::vector<Memory>> memory = memory_;
  const Ticks cost = cost_, sum = sum_of_spans_;
  replay();
  for (size_t rank = 0; rank < words_.size(); ++rank) {
    Memory used = 0;
    for (size_t k = 0; k < words_[rank].size(); ++k) {
      const MemoryUse use = use_of(at(words_[rank][k]));
      used += use.change;
      if (used != memory[rank][k] ||
          used + use.temporary > problem_.memory_limit(static_cast<int>(rank)))
        return false;
    }
  }
  return ends == ends_ && cost == cost_ && sum == sum_of_spans_;
}

}  // namespace pipewright::schedule::search
