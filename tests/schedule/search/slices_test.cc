// Searches with slices: the best of all orders of small problems, by trying each, and never worse
// than the catalogue's schedules of slices.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/search/catalogue.h"
#include "pipewright/schedule/search/replay.h"
#include "pipewright/schedule/search/search.h"
#include "pipewright/schedule/search/words.h"

namespace pipewright::schedule::search {
namespace {

// One action of a rank with one stage: 'F', 'I' (or all of a B) or 'W' of a slice.
using Step = std::pair<char, int>;
using Order = std::vector<Step>;

struct Tiny {
  int ranks, microbatches, slices;
  bool splits;
  double forward, input, weight, latency;  // of a whole microbatch
  int memory;                              // slices per rank from F to their last action; 0: any

  int all() const { return microbatches * slices; }
  double time(Step step) const {
    const double whole = step.first == 'F'   ? forward
                         : step.first == 'W' ? weight
                                             : input + (splits ? 0 : weight);
    return whole / slices;
  }
  // Whether the rank's rules allow `step` after `done`.
  bool may_follow(const Order& done, Step step) const {
    const auto has = [&](char kind, int slice) {
      return std::ranges::count(done, Step{kind, slice}) > 0;
    };
    const auto [kind, u] = step;
    if (has(kind, u)) return false;
    if (kind == 'W') return has('I', u);
    if (kind == 'F') {
      // Microbatches are alike, so their forwards begin in one order.
      if (u % slices == 0) return u == 0 || has('F', u - slices);
      return has('F', u - 1);
    }
    return has('F', u) && (u % slices == slices - 1 || has('I', u + 1));
  }
  bool fits(const Order& order) const {
    int alive = 0;
    for (const Step& step : order) {
      if (step.first == 'F' && ++alive > memory && memory > 0) return false;
      alive -= step.first == (splits ? 'W' : 'I') ? 1 : 0;
    }
    return true;
  }
};

// All orders of a rank.
void extend(const Tiny& tiny, Order* order, std::vector<Order>* found) {
  const size_t length = static_cast<size_t>(tiny.all()) * (tiny.splits ? 3 : 2);
  if (order->size() == length) {
    if (tiny.fits(*order)) found->push_back(*order);
    return;
  }
  for (const char kind : {'F', 'I', 'W'}) {
    for (int u = 0; u < tiny.all(); ++u) {
      if ((kind == 'W' && !tiny.splits) || !tiny.may_follow(*order, {kind, u})) continue;
      order->emplace_back(kind, u);
      extend(tiny, order, found);
      order->pop_back();
    }
  }
}

// The longest span of a rank; nullopt if the orders stop.
std::optional<double> cost_of(const Tiny& tiny, const std::vector<const Order*>& orders) {
  std::map<std::pair<int, Step>, double> ends;
  std::vector<size_t> next(orders.size());
  std::vector<double> time(orders.size()), first(orders.size(), -1);
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (size_t rank = 0; rank < orders.size(); ++rank) {
      while (next[rank] < orders[rank]->size()) {
        const Step step = (*orders[rank])[next[rank]];
        const int from = static_cast<int>(rank) + (step.first == 'F' ? -1 : 1);
        double start = time[rank];
        if (step.first != 'W' && from >= 0 && from < tiny.ranks) {
          const auto input = ends.find({from, step});
          if (input == ends.end()) break;
          start = std::max(start, input->second + tiny.latency);
        }
        if (first[rank] < 0) first[rank] = start;
        time[rank] = ends[{static_cast<int>(rank), step}] = start + tiny.time(step);
        ++next[rank];
        goes_on = true;
      }
    }
  }
  double cost = 0;
  for (size_t rank = 0; rank < orders.size(); ++rank) {
    if (next[rank] < orders[rank]->size()) return std::nullopt;
    cost = std::max(cost, time[rank] - first[rank]);
  }
  return cost;
}

double best_cost(const Tiny& tiny) {
  std::vector<Order> all;
  Order none;
  extend(tiny, &none, &all);
  double best = 1e9;
  std::vector<size_t> chosen(static_cast<size_t>(tiny.ranks));
  while (true) {
    std::vector<const Order*> orders;
    for (const size_t index : chosen) orders.push_back(&all[index]);
    if (const auto cost = cost_of(tiny, orders)) best = std::min(best, *cost);
    size_t rank = 0;
    while (rank < chosen.size() && ++chosen[rank] == all.size()) chosen[rank++] = 0;
    if (rank == chosen.size()) return best;
  }
}

SearchRequest request_of(const Tiny& tiny) {
  const Costs whole = {.forward = tiny.forward,
                       .backward_input = tiny.input,
                       .backward_weight = tiny.weight,
                       .link = {.latency = tiny.latency}};
  SearchRequest request = {.placement = ir::Placement::loop(tiny.ranks, tiny.ranks),
                           .num_microbatches = tiny.all(),
                           .costs = sliced(whole, tiny.slices, tiny.all()),
                           .splits_backward = tiny.splits};
  if (tiny.memory > 0) request.memory.activations = static_cast<double>(tiny.memory) / tiny.slices;
  request.evaluations = 200'000;
  return request;
}

TEST(SearchWithSlices, FindsTheBestOfAllOrders) {
  std::mt19937 random(7);
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  int optimal = 0, cases = 0;
  for (int round = 0; round < 150; ++round) {
    Tiny tiny{};
    tiny.splits = below(2) == 0;
    tiny.ranks = 2 + (tiny.splits ? below(2) : 0);
    tiny.microbatches = tiny.splits ? 1 : 2;
    tiny.slices = tiny.splits ? 2 + below(2) : 2;
    tiny.forward = 6.0 * (1 + below(4));
    tiny.input = 6.0 * (1 + below(4));
    tiny.weight = 6.0 * (1 + below(4));
    tiny.latency = below(3);
    if (!tiny.splits && below(2) == 0) tiny.memory = 2 + below(3);
    SCOPED_TRACE(round);
    const SearchRequest request = request_of(tiny);
    const Problem problem = problem_of(request);
    const SearchResult found = search_schedule(request);
    const double best = best_cost(tiny), cost = problem.time(found.cost_in_ticks);
    EXPECT_LE(problem.time(found.bound.value), best + 1e-9);
    EXPECT_GE(cost, best - 1e-9);
    optimal += cost < best + 1e-9;
    ++cases;
    EXPECT_TRUE(compile({.source = ir::AnySchedule(found.order)}).ok());
    EXPECT_EQ(found.order.slices, tiny.slices);
  }
  EXPECT_EQ(optimal, cases);
}

TEST(SearchWithSlices, IsNeverWorseThanTheCatalogue) {
  int compared = 0;
  for (const int ranks : {2, 4}) {
    for (const int stages : {ranks, 2 * ranks}) {
      for (const int slices : {2, 4}) {
        for (const double activations : {1.0, 1.5, 2.5, 8.0}) {
          const Costs whole = {.forward = 10,
                               .backward_input = 11,
                               .backward_weight = 7,
                               .slice_scale = std::vector<double>(static_cast<size_t>(slices), 1)};
          SearchRequest request = {.placement = ir::Placement::loop(ranks, stages),
                                   .num_microbatches = 4 * slices,
                                   .costs = sliced(whole, slices, 4 * slices),
                                   .memory = {.activations = activations}};
          request.evaluations = 20'000;
          const Problem problem = problem_of(request);
          const SearchResult found = search_schedule(request);
          EXPECT_GE(found.cost_in_ticks, found.bound.value);
          EXPECT_TRUE(compile({.source = ir::AnySchedule(found.order)}).ok());
          Replay replay(problem);
          for (const Candidate& named : catalogue(problem)) {
            if (!fits_memory(problem, named.words)) continue;
            ASSERT_TRUE(replay.run(named.words)) << named.name;
            EXPECT_LE(found.cost_in_ticks, replay.cost()) << named.name;
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 20);
}

}  // namespace
}  // namespace pipewright::schedule::search
