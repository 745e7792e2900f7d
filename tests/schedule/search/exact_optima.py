#!/usr/bin/env python3
"""Solves the problems of exact_optima.json with a constraint solver, OR-tools CP-SAT.

Needs Python 3.9 and OR-tools, and nothing of pipewright:

    pip install ortools==9.15.6755
    python3 tests/schedule/search/exact_optima.py            solve all cases and rewrite the file
    python3 tests/schedule/search/exact_optima.py --check    compare the file with what the solver says

All cases together take about 40 s on one core. To add a case, add its line with any `cost`
and `"proved": false, "proved_bound": 0`, and run the script.

The problem is that of schedule/problem/problem.h, with placements "loop" and "v". Every rank runs
one action at a time, and F, I and W of each stage in the order of the microbatches, which loses no
optimum (schedule/search/words.h). For each two actions of a rank, a Boolean says which comes first.
No stage keeps more memory for W than for I, so memory is highest while an F runs: for each F, the
memory of all that comes before it is a sum of Booleans.

The span of a rank is the time from the start of its first action to the end of its last, and the
cost of a schedule is the longest span. So a rank that starts later may cost less. pipewright starts
all actions as early as their order allows, but no bound relies on that. Hence each case is solved
twice: with late starts, for a lower bound of all schedules, and then for a schedule without. The
schedule is not taken on trust: replay() runs it and checks its memory. It is proved optimal if its
cost equals the lower bound.
"""

import argparse
import collections
import itertools
import json
import math
import pathlib
import sys
import time

from ortools.sat.python import cp_model

PATH = pathlib.Path(__file__).with_name("exact_optima.json")
ABOUT = [
    "Costs of the best schedules of small problems, written by exact_optima.py, which solves them with OR-tools CP-SAT.",
    "`proved`: no schedule costs less. Otherwise `cost` is the best known, and no schedule costs less than `proved_bound`.",
    "tests/schedule/search/cases.h describes the other fields.",
]
F, I, W = range(3)


class Problem:
    """A case of the file, with one entry per stage of everything."""

    def __init__(self, case):
        self.ranks, self.stages = case["ranks"], case["stages"]
        self.microbatches = case["microbatches"]
        self.activation, self.weight_input = case["activation"], case["weight_input"]
        self.limit = case["limit"]
        assert self.weight_input <= self.activation, "memory must be highest while an F runs"

        def at(values, index):
            return values[0 if len(values) == 1 else index]

        self.work = [at(case["work"], stage) for stage in range(self.stages)]
        self.rank = [self._rank(case["placement"], stage) for stage in range(self.stages)]
        # Between each stage and the next.
        self.transfers = [
            0 if self.rank[stage] == self.rank[stage + 1] else at(case["transfers"], stage)
            for stage in range(self.stages - 1)
        ]

    def _rank(self, placement, stage):
        lap, place = divmod(stage, self.ranks)
        if placement == "loop":
            return place
        assert placement == "v", placement
        return self.ranks - 1 - place if lap % 2 else place

    def stages_of(self, rank):
        return [stage for stage in range(self.stages) if self.rank[stage] == rank]

    def time(self, action):
        stage, letter, _ = action
        return self.work[stage][letter]

    def need(self, action):
        """The action whose result this one needs, and how long the transfer takes; or None."""
        stage, letter, microbatch = action
        if letter == W:
            return (stage, I, microbatch), 0
        if letter == F:
            if stage == 0:
                return None
            return (stage - 1, F, microbatch), self.transfers[stage - 1]
        if stage == self.stages - 1:
            return (stage, F, microbatch), 0
        return (stage + 1, I, microbatch), self.transfers[stage]

    def change(self, action):
        """What an action does to the memory of its rank: F from its start on, I and W from their end on."""
        return (self.activation, self.weight_input - self.activation, -self.weight_input)[action[1]]


def build(problem, least_cost, may_start_late):
    """The model, the starts by action, and the actions by rank; no schedule costs less than `least_cost`."""
    model = cp_model.CpModel()
    # One microbatch at a time takes this long at most, and needs the least memory. All ranks start
    # before rank 0 ends, so twice that is enough for all starts.
    longest = problem.microbatches * (sum(map(sum, problem.work)) + 2 * sum(problem.transfers))
    cost = model.new_int_var(least_cost, longest, "cost")
    model.minimize(cost)
    actions = [
        [
            (stage, letter, microbatch)
            for stage in problem.stages_of(rank)
            for letter in (F, I, W)
            for microbatch in range(problem.microbatches)
        ]
        for rank in range(problem.ranks)
    ]
    start = {action: model.new_int_var(0, 2 * longest, "") for mine in actions for action in mine}
    for action, begin in start.items():
        need = problem.need(action)
        if need:
            model.add(begin >= start[need[0]] + problem.time(need[0]) + need[1])
    model.add(start[0, F, 0] == 0)

    path = 0  # from the start of F on stage 0 to that on the rank's first stage
    for rank, mine in enumerate(actions):
        before = order(model, problem, start, mine)
        for f in mine:
            if f[1] == F:
                used = sum(problem.change(other) * before[other, f] for other in mine if other != f)
                model.add(used + problem.change(f) <= problem.limit)
        # Both placements have the ranks' first stages in the order of the ranks.
        first = start[rank, F, 0]
        if not may_start_late:
            model.add(first == path)
        path += problem.work[rank][F] + (problem.transfers[rank] if rank + 1 < problem.stages else 0)
        for stage in problem.stages_of(rank):
            last = stage, W, problem.microbatches - 1
            model.add(cost >= start[last] + problem.time(last) - first)
    return model, start, actions


def order(model, problem, start, mine):
    """Puts the actions of a rank in an order: for each two of them, whether the first comes before the second."""
    before = {}
    for index, one in enumerate(mine):
        for other in mine[index + 1 :]:
            if one[:2] == other[:2]:  # in the order of the microbatches
                before[one, other], before[other, one] = 1, 0
                model.add(start[other] >= start[one] + problem.time(one))
                continue
            literal = model.new_bool_var("")
            before[one, other], before[other, one] = literal, ~literal
            model.add(start[other] >= start[one] + problem.time(one)).only_enforce_if(literal)
            model.add(start[one] >= start[other] + problem.time(other)).only_enforce_if(~literal)
    model.add_no_overlap(
        [model.new_fixed_size_interval_var(start[action], problem.time(action), "") for action in mine]
    )
    return before


def replay(problem, orders):
    """The cost of these orders, one per rank, if each action starts as early as it can."""
    end, first, last = {}, {}, {}
    queues = [collections.deque(order) for order in orders]
    while any(queues):
        ready = [queue for queue in queues if queue and (problem.need(queue[0]) or [None])[0] in {None, *end}]
        assert ready, "the solver's schedule deadlocks"
        for queue in ready:
            action = queue.popleft()
            rank, need = problem.rank[action[0]], problem.need(action)
            begin = max(last.get(rank, 0), end[need[0]] + need[1] if need else 0)
            first.setdefault(rank, begin)
            end[action] = last[rank] = begin + problem.time(action)
    for order in orders:
        used = list(itertools.accumulate(map(problem.change, order)))
        assert max(used) <= problem.limit, "the solver's schedule does not fit in memory"
    return max(last[rank] - first[rank] for rank in first)


def solve(problem, seconds):
    """The least cost found, or None, and a lower bound of all costs."""

    def run(least_cost, may_start_late):
        model, start, actions = build(problem, least_cost, may_start_late)
        solver = cp_model.CpSolver()
        # With one worker and a seed, the same version of OR-tools does the same again.
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 1
        solver.parameters.max_time_in_seconds = seconds
        status = solver.solve(model)
        assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN), solver.status_name(status)
        bound = math.ceil(solver.best_objective_bound - 1e-6)
        if status == cp_model.UNKNOWN:
            return None, bound
        return [sorted(mine, key=lambda action: solver.value(start[action])) for mine in actions], bound

    _, bound = run(0, may_start_late=True)
    orders, _ = run(bound, may_start_late=False)
    return replay(problem, orders) if orders else None, bound


def updated(case, seconds):
    """The case with what the solver says of it, and what of that contradicts the file."""
    found, bound = solve(Problem(case), seconds)
    known = case["cost"]
    wrong = []
    if found is not None and found < known:
        wrong.append(f"a schedule costs {found}, the file says {known}")
    if known < bound:
        wrong.append(f"no schedule costs less than {bound}, the file says {known}")
    if known < bound or (found is not None and found < known):
        assert found is not None, f"{wrong}, and no schedule was found: try more --seconds"
        known = found
    if case["proved"] and bound < known:
        wrong.append(f"not proved within {seconds} s")
    result = {key: value for key, value in case.items() if key not in ("cost", "proved", "proved_bound")}
    result |= {"cost": known, "proved": known == bound}
    if known != bound:
        result["proved_bound"] = bound
    return result, wrong


def text_of(cases):
    """The file: one line per case."""
    lines = [",\n".join(map(json.dumps, items)) for items in (ABOUT, cases)]
    return f'{{\n"about": [\n{lines[0]}\n],\n"cases": [\n{lines[1]}\n]\n}}\n'


def main():
    parser = argparse.ArgumentParser(description="Solves the problems of exact_optima.json with OR-tools CP-SAT.")
    parser.add_argument("--check", action="store_true", help="compare, and leave the file as it is")
    parser.add_argument("--seconds", type=float, default=300, help="per case, twice; default: %(default)s")
    options = parser.parse_args()
    text = PATH.read_text()
    cases = []
    for index, case in enumerate(json.loads(text)["cases"]):
        began = time.monotonic()
        result, wrong = updated(case, options.seconds)
        cases.append(result)
        proof = "proved" if result["proved"] else f"not proved, at least {result['proved_bound']}"
        shape = f"{case['placement']}, {case['ranks']} ranks, {case['stages']} stages, {case['microbatches']} microbatches"
        print(
            f"{index:3} {shape}, limit {case['limit']}: {result['cost']}, {proof}, {time.monotonic() - began:.1f} s",
            *(f"    {line}" for line in wrong),
            sep="\n",
            flush=True,
        )
    print(f"{sum(case['proved'] for case in cases)} of {len(cases)} costs are proved optimal")
    if not options.check:
        PATH.write_text(text_of(cases))
    elif text_of(cases) != text:
        sys.exit(f"{PATH.name} differs from what the solver says")


if __name__ == "__main__":
    main()
