#ifndef PIPEWRIGHT_SCHEDULE_BOUNDS_BOUNDS_H_
#define PIPEWRIGHT_SCHEDULE_BOUNDS_BOUNDS_H_

#include <string_view>
#include <vector>

#include "pipewright/schedule/problem/problem.h"

// Lower bounds on the cost of every schedule of a problem: no order of the actions that respects
// the memory limits costs less, whoever finds it. A schedule whose cost equals a bound is optimal.
//
//   const Bound bound = lower_bound(problem);
//   bound.value  2133          bound.name  "warm_up_and_cool_down"
//   bound.rank   0             bound.terms {{"work", 1836}, {"warm_up", 187}, {"cool_down", 110}}
//
// Notation of the statements and proofs. x is a rank; its stages in pipeline order are x0 < ... <
// xl. F_s, I_s, W_s are the times of stage s, a_s the memory from the start of its F to the end of
// its I, h_s the memory from then to the end of its W, L the memory limit of the rank, m the number
// of microbatches.
//
//   path(s, t)  the least time from the start of F_s to the start of I_t of one microbatch: all
//               forwards from s to the last stage, all Is from there down to t + 1, and the
//               transfers between them
//   work(x)     m * sum of F_s + I_s + W_s over the stages of x
//   knap(C)     the most work that fits in memory C (knapsack.h)
//
// With an overlap o, an F and an I of a rank, or an F and a whole backward, may run at once as a
// compound, in F + I - o min(F, I). Each of them takes that long then, so paths stay as they are.
// But the rank is busy for less than work(x): Hidden(f) is o min(all F of x - f, all I and W of x),
// the most that compounds hide if F work f runs before the first I, because what is alone hides
// nothing. Bounds with work(x) have work(x) - Hidden(min(Fill, path(x0, xl))) in its place, and
// say so in a term "hidden"; docs/bounds.md says why.
//
// Nothing is assumed about the order of microbatches. Where their costs differ, paths are those of
// the fastest microbatch and knapsacks those of the slowest. Each bound is the largest over all
// ranks, with value 0 if it says nothing. All take time linear in the number of stages, apart from
// the knapsacks, bisections, and a loop over the microbatches that fit in the memory of a rank.
// Pure functions; any thread. docs/bounds.md has the proofs at length.

namespace pipewright::schedule {

struct BoundTerm {
  std::string_view name;
  Ticks value;

  friend bool operator==(const BoundTerm&, const BoundTerm&) = default;
};

struct Bound {
  Ticks value = 0;
  std::string_view name = "work";
  int rank = -1;   // whose span is bounded; -1 if the bound says nothing
  int other = -1;  // the rank whose window is inside that span (nested bounds); -1 for none
  std::vector<BoundTerm> terms = {};  // their sum is the value

  friend bool operator==(const Bound&, const Bound&) = default;
};

// The bounds, by Bound::name.
//
// work: T >= work(x), less Hidden(0). A rank runs one action or compound at a time.
//
// one_microbatch: T >= path(x0, x0) + I_x0 + W_x0, of the slowest microbatch. F_x0, I_x0 and W_x0
// are all on x.
//
// warm_up_and_cool_down, of one rank: T >= work(x) + warm + cool, where
//
//   warm = max(0, path(x0, xl) - Fill)      Fill: the most F work in memory L that includes all Fs
//                                           of one microbatch
//   cool = max(0, chain + W_x0 - Pending)   chain: from the end of F_xl to the end of I_x0
//                                           Pending: the I and W work of one whole microbatch, and
//                                           the most I and W work in memory L - sum of a_s
//
// If the memory holds all Fs of x at once, T >= work(x) + max(warm, cool).
//
// Proof. The first I on x is an I_xl. Its microbatch started F_x0 on x at least path(x0, xl)
// earlier. Before it, no I and hence no W ran on x, so nothing was freed and the Fs that had
// started fit in L, among them all Fs of this microbatch: at least warm is idle. The last F on x is
// the F_xl of some microbatch, which has run no I on x. After it, chain + W_x0 pass at least. All
// Fs are over, so the work that is left is that of what is in memory, at most Pending: at least
// cool is idle. If not all Fs fit, some F comes after the first I, so both idle times are disjoint.
//
// Warm and cool are larger where x0 is slower than xl and there are more than three times as many
// microbatches as fit in memory: the n that have run F_xl before the first I must last for a lap,
// from F_xl to I_xl, because the next F_xl comes after it. Likewise at the end. Theorem 6 of
// docs/bounds.md; only without an overlap.
//
// nested_window: for ranks r and x with r0 < x0,
//
//   T >= head + work(x) + warm + rest + tail
//
//   head      from the start of F_r0 to the start of F_x0: forwards and transfers between
//   tail      from the end of I_x0 to the end of I_r0, and W_r0
//   rest      the least value of max(0, chain - Is) - Ws for I work Is and W work Ws in memory L,
//             those of one whole microbatch included; at least -Deferred, which it is if the memory
//             holds all Fs of x at once
//   Deferred  the most W work in memory L
//
// Proof. The window of x lasts from the start of its first F to the end of its last I. Every
// microbatch's first action on x is F_x0, and it comes at least head after F_r0 of that microbatch;
// the last I on x is an I_x0, and at least tail passes until W_r0 of its microbatch has ended. So
// the span of r has at least head before and tail after the window. Let q be the W work of x that
// is left at the end of the window; it is in memory, so q <= Deferred. In the window, work(x) - q
// is done; warm is idle before the first I as above; after the last F at least chain passes, in
// which what was left then is done, but for q: Is + Ws - q. So the window lasts at least work(x) -
// q + warm + max(0, chain - Is - Ws + q), which is at least the value for q = Ws.
//
// memory_area, memory over time: T * L >= sum over the stages of x of m (life_s a_s + W_s h_s) +
// ramps, where life_s = path(s, s) + I_s. Each activation is in memory for so long, and the rank
// has L.
//
// Ramps: memory cannot be full at the start and at the end. While the first Fs run, the memory in
// use is at most b_s = max(a_s, h_s) for each F started so far. If g is the least F_s / b_s, and b
// the largest b_s, the area below L that stays unused while they run is at least g L (L - b) / 2;
// equal stages with L a multiple of b meet this. The same holds for the last Is and Ws, seen
// backwards in time.
//
// nested_memory_area, the same inside a nested window: for r0 < x0, T >= head + E + tail, where
//
//   E * L >= sum of m (life_s a_s + W_s h_s) + ramp at the start - L * max W_s
//
// Proof. The window of x has all F-to-I lifetimes. The Ws that are left at its end are in memory,
// so the sum of their h_s is at most L, and what they take away from the area is at most L max W_s.
//
// lifetimes, in turn: at most k = L div a_x0 microbatches are between F_x0 and the end of I_x0 at
// any time, so they can be coloured with k colours such that those of one colour follow each
// other: T >= ceil(m / k) (path(x0, x0) + I_x0) + W_x0.
//
// whole_microbatches, in memory: for r0 <= x0 (r may be x), T >= head + E + tail, where
//
//   K * E >= m (path(xl, xl) + I_xl) + lost
//   K        the most microbatches whose a_s of all stages of x fit in L together
//   lost     the sum, over the actions of x, of their time multiplied by how many fewer than K
//            microbatches can be between the start of F_xl and the end of I_xl while they run
//
// Proof. Let N be the number of microbatches between the start of F_xl and the end of I_xl. Each of
// them has an activation of every stage of x, so N is at most K. While the n-th F_xl runs, N is at
// most n. While the n-th F_s of another stage s runs, N is at most n - 1, and at most (L - A) div
// (sum of all a_s), where A is the sum of a_s of the stages of x up to s: all of them are in memory
// for the microbatch that runs. The same holds for the n-th last I_xl and I_s. While a W_s runs, N
// is at most (L - h_s) div (sum of all a_s). So K E minus the lost part is at least the integral of
// N over the window of x, and that is at least m (path(xl, xl) + I_xl). The Ws that are left at the
// end of the window fit in L together; lost leaves them out.
//
// With an overlap o, every F counts with F (1 - o) in `lost`: a compound takes at least that and I.
//
// This decides where few whole microbatches fit: the memory area bound counts fractions.
//
// first_backwards, of all ranks together. Let late_x be how much more time than path(x0, xl) passes
// from the start of the first F on x to the start of its first I. T is at least the smallest value
// for which these have a solution:
//
//   late_x >= 0, and late_r >= late_x for ranks r and x with r0 < x0 and rl < xl
//   path(x0, xl) + late_x = n g + idle for a whole n, where n g <= Fill and
//                           0 <= idle <= T - work(x) - cool (if all Fs fit at once: T - work(x))
//
// g is the greatest common divisor of the Fs of x. Proof. The first F on x is of a microbatch that
// ran on r at least path(r0, x0) earlier, from F to F; the first I on r is of a microbatch that ran
// on x at least as long earlier as a microbatch takes from I_xl to I_rl. Hence late_r >= late_x.
// Before its first I, x runs nothing but Fs; their work is a multiple of g and at most Fill. The
// rest is idle, and so is cool after the last F; x is idle for at most T - work(x), or with an
// overlap T - work(x) + Hidden(n g).
//
// This decides where memory is plentiful: the first gradient meets an F in progress on every rank,
// unless the rank has left a gap for it.
//
// copies, of a rank that offloads: T >= head + m * sum over its stages of (offload_s + reload_s) +
// tail, where, with s the first stage on x that has copies,
//
//   head   from the start of F_x0 to the end of F_s
//   tail   from the start of I_s to the end of I_x0, and W_x0
//
// Proof. The rank's copy stream runs one copy at a time. The first one comes after F of its
// microbatch on s or a later stage of x; the last one before I of its microbatch on such a stage.
// Both microbatches have their F_x0 and their W_x0 in the span of x.
//
// The other bounds take for a_s what never leaves the device, StageWork::activation: whatever is
// offloaded, this much is in use from the start of F to the end of I.

// The problem in which h_s is at most a_s. A schedule may also run I and W of a microbatch as a
// whole backward B, which has memory a_s until it ends: in this problem it is an I and a W, so what
// no schedule of this problem can do, no schedule with whole backwards can.
Problem allowing_whole_backwards(Problem problem);

// All of the above for allowing_whole_backwards(problem), in this order.
std::vector<Bound> lower_bounds(const Problem& problem);
// The largest of them; the first of equals.
Bound lower_bound(const Problem& problem);
// That with the name work, for the problem as it is.
Bound work_bound(const Problem& problem);

// How far a cost is above a bound in the same unit: 0.1 for 10%; 0 if the bound says nothing.
constexpr double gap(double cost, double bound) { return bound > 0 ? cost / bound - 1 : 0; }

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_BOUNDS_BOUNDS_H_
