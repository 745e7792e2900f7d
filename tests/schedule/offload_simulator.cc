#include "tests/schedule/offload_simulator.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <utility>

#include "pipewright/ir/dependencies.h"

namespace pipewright::tests {
namespace {

using schedule::Costs;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_backward(ir::ActionPart part) {
  return part.kind() == ir::ActionKind::kBackward || part.kind() == ir::ActionKind::kBackwardInput;
}

double time_of(const Costs& costs, ir::ActionPart part) {
  const int stage = part.stage();
  const double input = costs.backward_input.at(stage), weight = costs.backward_weight.at(stage);
  switch (part.kind()) {
    case ir::ActionKind::kForward:
      return costs.forward.at(stage);
    case ir::ActionKind::kBackwardInput:
      return input;
    case ir::ActionKind::kBackwardWeight:
      return weight;
    default:
      return input + weight;
  }
}

double time_of(const Costs& costs, const ir::Action& action) {
  double sum = 0;
  for (const ir::ActionPart part : action.parts()) sum += time_of(costs, part);
  return sum;
}

// The places of the rule.
void place_late(const ir::Row& row, const Costs& costs, std::vector<Trip>* trips) {
  const auto busy_before = [&](size_t step) {
    double sum = 0;
    for (size_t one = 0; one < step; ++one) sum += time_of(costs, row[one]);
    return sum;
  };
  double next = kInfinity;
  for (auto trip = trips->rbegin(); trip != trips->rend(); ++trip) {
    const double start = std::min(next, busy_before(trip->backward)) - costs.reload.at(trip->stage);
    trip->place = trip->backward;
    const auto before = trip + 1;
    const size_t earliest =
        std::max(trip->forward + 1, before == trips->rend() ? 0 : before->backward);
    while (trip->place > earliest && busy_before(trip->place) > start) --trip->place;
    next = std::max(start, busy_before(trip->place));
  }
}

}  // namespace

std::vector<Trip> trips_of(const ir::Row& row, const Costs& costs) {
  std::vector<Trip> trips;
  for (size_t backward = 0; backward < row.size(); ++backward) {
    for (const ir::ActionPart part : row[backward].parts()) {
      if (!is_backward(part) || costs.offload_bytes.at(part.stage()) == 0) continue;
      for (size_t forward = 0; forward < backward; ++forward) {
        for (const ir::ActionPart one : row[forward].parts()) {
          if (one == ir::ActionPart(ir::ActionKind::kForward, part.stage(), part.microbatch()))
            trips.push_back({part.stage(), forward, backward, backward});
        }
      }
    }
  }
  return trips;
}

OffloadRun run_of(const ir::ComputeOrder& order, const Costs& costs,
                  const std::vector<std::vector<Trip>>& trips) {
  struct Transit {
    const Trip* trip;
    bool back;
  };
  struct Rank {
    size_t next = 0;  // the step that runs or is to start
    bool runs = false;
    double end = 0;
    std::deque<Transit> queue;  // the first one runs if copying
    bool copying = false;
    double copied = 0;
    std::map<size_t, bool> is_back;   // by step of the backward
    bool posted = false;              // what is posted before `next`
    std::map<size_t, bool> may_take;  // by the same: whether one of two things has happened
    double used = 0;
  };
  const int stages = order.placement.num_stages();
  std::map<std::pair<ir::Result, std::pair<int, int>>, double> arrivals;
  std::vector<Rank> ranks(order.rows.size());
  OffloadRun run;
  run.peaks.resize(ranks.size());
  run.starts.resize(ranks.size());
  const auto offloaded = [&](const Trip& trip) {
    return std::min(costs.offload_bytes.at(trip.stage), costs.activation_bytes.at(trip.stage));
  };
  // The copy back takes memory when it has been posted and the copy to the host has ended.
  const auto take_back = [&](Rank* rank, const Trip& trip) {
    bool& other_has_happened = rank->may_take[trip.backward];
    if (other_has_happened) rank->used += offloaded(trip);
    other_has_happened = true;
  };
  const auto is_ready = [&](ir::ActionPart part, double now) {
    const auto arrived = [&](ir::Result result, int stage) {
      const auto found = arrivals.find({result, {stage, part.microbatch()}});
      return found != arrivals.end() && found->second <= now;
    };
    const int stage = part.stage();
    if (part.kind() == ir::ActionKind::kForward)
      return stage == 0 || arrived(ir::Result::kOutput, stage);
    if (part.kind() == ir::ActionKind::kBackwardWeight) return true;
    return stage + 1 == stages || arrived(ir::Result::kInputGradient, stage);
  };
  const auto finish = [&](ir::ActionPart part, Rank* rank, int number, double now) {
    const int stage = part.stage();
    const auto send = [&](ir::Result result, int to) {
      if (to < 0 || to == stages) return;
      const double delay = order.placement.rank_of(to) == number ? 0 : costs.link.latency;
      arrivals[{result, {to, part.microbatch()}}] = now + delay;
    };
    if (part.kind() == ir::ActionKind::kForward) send(ir::Result::kOutput, stage + 1);
    if (is_backward(part)) {
      send(ir::Result::kInputGradient, stage - 1);
      rank->used -= costs.activation_bytes.at(stage);
    }
    if (part.kind() == ir::ActionKind::kBackwardInput)
      rank->used += costs.weight_input_bytes.at(stage);
    if (part.kind() == ir::ActionKind::kBackwardWeight)
      rank->used -= costs.weight_input_bytes.at(stage);
  };
  for (double now = 0; now < kInfinity;) {
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t number = 0; number < ranks.size(); ++number) {
        Rank& rank = ranks[number];
        const ir::Row& row = order.rows[number];
        if (rank.runs && rank.end <= now) {
          for (const ir::ActionPart part : row[rank.next].parts())
            finish(part, &rank, static_cast<int>(number), now);
          rank.runs = rank.posted = false;
          ++rank.next;
          progress = true;
        }
        if (rank.copying && rank.copied <= now) {
          const Transit done = rank.queue.front();
          rank.queue.pop_front();
          rank.copying = false;
          if (done.back) rank.is_back[done.trip->backward] = true;
          if (!done.back) {
            rank.used -= offloaded(*done.trip);
            take_back(&rank, *done.trip);
          }
          progress = true;
        }
        if (!rank.runs && !rank.posted) {
          for (const Trip& trip : trips[number])
            if (trip.forward + 1 == rank.next) rank.queue.push_back({&trip, false});
          for (const Trip& trip : trips[number]) {
            if (trip.place != rank.next) continue;
            rank.queue.push_back({&trip, true});
            take_back(&rank, trip);
          }
          rank.posted = true;
        }
        if (!rank.copying && !rank.queue.empty()) {
          const Transit& next = rank.queue.front();
          rank.copying = true;
          rank.copied = now + (next.back ? costs.reload : costs.offload).at(next.trip->stage);
          progress = true;
        }
        if (!rank.runs && rank.next < row.size()) {
          bool ready = true;
          for (const ir::ActionPart part : row[rank.next].parts())
            ready = ready && is_ready(part, now);
          for (const Trip& trip : trips[number])
            ready = ready && (trip.backward != rank.next || rank.is_back[trip.backward]);
          if (ready) {
            rank.runs = progress = true;
            rank.end = now + time_of(costs, row[rank.next]);
            run.starts[number].push_back(now);
            for (const ir::ActionPart part : row[rank.next].parts()) {
              if (part.kind() == ir::ActionKind::kForward)
                rank.used += costs.activation_bytes.at(part.stage());
            }
          }
        }
        run.peaks[number] = std::max(run.peaks[number], rank.used);
      }
    }
    double next = kInfinity;
    const auto consider = [&](double time) {
      if (time > now) next = std::min(next, time);
    };
    for (const Rank& rank : ranks) {
      if (rank.runs) consider(rank.end);
      if (rank.copying) consider(rank.copied);
    }
    for (const auto& [_, time] : arrivals) consider(time);
    now = next;
  }
  for (size_t number = 0; number < ranks.size(); ++number) {
    if (ranks[number].next < order.rows[number].size()) {
      run.cost = kInfinity;
      return run;
    }
    run.cost = std::max(run.cost, ranks[number].end - run.starts[number].front());
    run.makespan = std::max(run.makespan, ranks[number].end);
  }
  return run;
}

OffloadRun run_of(const ir::ComputeOrder& order, const Costs& costs) {
  std::vector<std::vector<Trip>> trips;
  for (const ir::Row& row : order.rows) {
    trips.push_back(trips_of(row, costs));
    place_late(row, costs, &trips.back());
  }
  return run_of(order, costs, trips);
}

}  // namespace pipewright::tests
