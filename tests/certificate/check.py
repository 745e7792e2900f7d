"""Checks the result of `pipewright simulate PLAN --costs COSTS --json` without pipewright: check.py PLAN COSTS RESULT.

Reads a compute order of F, B, I, W and compounds, runs it with ideal transfers, counts live activations, and computes the lower
bound that the result names from the costs alone (docs/bounds.md). All arithmetic is exact. Exits with 1 if anything differs."""
import json, re, sys
from bisect import bisect_left
from fractions import Fraction
from functools import cache
from itertools import accumulate
from math import gcd, lcm

def read_plan(path):
    """The placement, the rows (per rank, steps of one (kind, stage, microbatch) or of two), and the stages that recompute."""
    head, rows, action = {}, [], r"(\d+)([FBIW])(\d+)"
    for line in open(path):
        key, _, value = line.strip().partition(": ")
        head[key] = value
        if key.startswith("rank "):
            cells = [cell for cell in value.split() if cell != "."]
            assert all(re.fullmatch(rf"{action}|\({action};{action}\)OVERLAP_F_B", cell) for cell in cells), cells
            rows.append([[(kind, int(s), int(m)) for s, kind, m in re.findall(action, cell)] for cell in cells])
    assert head["level"] == "compute_only"
    ranks, stages, name = int(head["ranks"]), int(head["stages"]), head["placement"]
    rule = {"loop": lambda s: s % ranks, "v": lambda s: s % ranks if s // ranks % 2 == 0 else ranks - 1 - s % ranks}
    placement = [rule[name](s) for s in range(stages)] if name in rule else [int(rank) for rank in name.split()]
    return placement, int(head["microbatches"]), rows, [int(stage) for stage in head.get("recompute", "").split()]

class Costs:
    def __init__(self, path, placement, microbatches, recompute):
        self.file, self.placement = json.load(open(path), parse_float=Fraction, parse_int=Fraction), placement
        assert "offload_bytes" not in self.file, "offload is not checked"
        self.overlap, self.scales = self.file.get("overlap", Fraction(0)), self.file.get("microbatch_scale", [1] * microbatches)
        stages, scale = range(len(placement)), self.file.get("rank_scale", [1] * len(placement))
        self.F, self.I, self.W = ([self.at(key, s, 1) * scale[placement[s]] for s in stages]
                                  for key in ("forward", "backward_input", "backward_weight"))
        self.I = [i + self.F[s] * self.at("recompute", s, 1) * (s in recompute) for s, i in enumerate(self.I)]
        self.output = [self.transfer(s, s + 1, self.at("output_bytes", s, 0)) for s in stages]
        self.gradient = [self.transfer(s, s - 1, self.at("input_gradient_bytes", s, 0)) for s in stages]

    def at(self, key, stage, default):
        return value[stage] if isinstance(value := self.file.get(key, Fraction(default)), list) else value

    def transfer(self, stage, other, size):
        if not 0 <= other < len(self.placement) or self.placement[stage] == self.placement[other]: return Fraction(0)
        link = {k: self.file[k] for k in ("latency", "bandwidth") if k in self.file}
        for one in self.file.get("links", []):
            link |= one if (one["from"], one["to"]) == (self.placement[stage], self.placement[other]) else {}
        return link.get("latency", Fraction(0)) + (size / link["bandwidth"] if "bandwidth" in link else 0)

def replay(placement, microbatches, rows, costs):
    """The cost: every step starts when its rank is free and its inputs are there. Compounds hide some of their shorter part."""
    last, ends = len(placement) - 1, {("F", -1, m): Fraction(0) for m in range(microbatches)}
    def need(kind, s, m):  # what has to end before, and how long before
        if kind == "W" or kind != "F" and s == last:
            return ("I" if kind == "W" else "F", s, m), 0
        return (("F", s - 1, m), costs.output[s - 1]) if kind == "F" else (("I", s + 1, m), costs.gradient[s + 1])

    time, start, step, before = [Fraction(0)] * len(rows), {}, [0] * len(rows), None
    while before != (before := list(step)):
        for rank, row in enumerate(rows):
            while step[rank] < len(row):
                parts = row[step[rank]]
                needs = [need(*part) for part in parts]
                if any(action not in ends for action, _ in needs): break
                begin = max([time[rank], *(ends[action] + delay for action, delay in needs)])
                start.setdefault(rank, begin)
                times = [costs.scales[m] * sum(getattr(costs, one)[s] for one in kind.replace("B", "IW")) for kind, s, m in parts]
                time[rank] = begin + sum(times) - costs.overlap * min(times) * (len(parts) - 1)
                ends.update({("I" if kind == "B" else kind, s, m): time[rank] for kind, s, m in parts})
                step[rank] += 1
    assert all(step[r] == len(row) for r, row in enumerate(rows)), "deadlock"
    return max(time[rank] - begin for rank, begin in start.items())

def rational_gcd(numbers):
    unit = lcm(*(Fraction(one).denominator for one in numbers))
    return Fraction(gcd(*(int(one * unit) for one in numbers)) or 1, unit)

def peak(row, a, h, r):
    changes = lambda s: {"F": [a[s]], "B": [r[s], -a[s] - r[s]], "I": [r[s], h[s] - a[s] - r[s]], "W": [-h[s]]}
    return max(accumulate(change for step in row for kind, s, _ in step for change in changes(s)[kind]))

def knapsack(items, capacity):
    """The most value of items (size, value, count) within an integer capacity."""
    best = [Fraction(0)] * (max(capacity, 0) + 1)
    for size, value, count in items:
        for _ in range(min(count, len(best) // size) if size else 0):
            best[size:] = [max(old, other + value) for old, other in zip(best[size:], best)]
    return best[-1] + sum(value * count for size, value, count in items if size == 0)

class Bounds:
    """The bounds of docs/bounds.md, with integers for a and h."""
    def __init__(self, placement, microbatches, costs, split, memory):
        self.m, self.total, (self.a, self.h, self.limits) = microbatches, sum(costs.scales), memory
        self.placement, self.out, self.back, self.overlap = placement, costs.output, costs.gradient, costs.overlap
        self.on = {r: [s for s, rank in enumerate(placement) if rank == r] for r in placement}
        self.base = (costs.F, [i + w * (not is_split) for i, w, is_split in zip(costs.I, costs.W, split)],
                     [w * is_split for w, is_split in zip(costs.W, split)])
        self.fast, self.slow = ([[t * k for t in times] for times in self.base] for k in (min(costs.scales), max(costs.scales)))

    def path(self, s, t, times=None):
        F, I, _ = times or self.fast
        return sum(F[s:]) + sum(self.out[s:-1]) + sum(I[t + 1:]) + sum(self.back[t + 1:])

    @cache
    def terms(self, x):
        (F, I, W), (slow_F, slow_I, slow_W) = self.fast, self.slow
        on, m, a, h, last = self.on[x], self.m, self.a, self.h, self.on[x][-1]
        limit, whole = min(self.limits[x], m * sum(max(a[s], h[s]) for s in on)), sum(a[s] for s in on)
        forwards, *others = (self.total * sum(times[s] for s in on) for times in self.base)
        busy = lambda alone: forwards + sum(others) - self.overlap * min(max(0, forwards - alone), sum(others))  # alone: F work
        one = lambda times, stages=on: sum(times[s] for s in stages)
        up_to = lambda *times: [(*(one(of, on[:n + 1]) for of in (a, *times)), m - 1) for n in range(len(on))]
        started, unfinished, held = up_to(slow_F), up_to(slow_I, slow_W), [(h[s], 0, slow_W[s], m) for s in on]
        fits, beside_one = limit >= m * whole, knapsack(started, limit - whole)
        fill = m * one(slow_F) if fits else min(knapsack([(a[s], slow_F[s], m) for s in on], limit), one(slow_F) + beside_one)
        path, chain = self.path(on[0], last), self.path(last, on[0]) - F[last] + I[on[0]]
        left = lambda items, room, share=1: knapsack([(size, share * i + w, count) for size, i, w, count in items + held], room)
        rest = lambda n, share, items: share * (chain - n * one(slow_I)) - n * one(slow_W) - left(items, limit - n * whole, share)
        at = lambda k: rest(1, Fraction(k, 1024), unfinished)
        k = bisect_left(range(1024), True, key=lambda k: at(k + 1) <= at(k))
        warm, cool, least = max(Fraction(0), path - fill), at(1024), -left([], limit) if fits else at(k)
        fit, lap = limit // whole if whole else m, self.path(last, last) + I[last]
        if m > 3 * fit > 0 == self.overlap:  # theorem 6
            early = [s for s in on if self.path(last, s) - self.path(last, last) < lap]
            late = [s for s in on if self.path(s, s) - F[s] - self.path(last, s) + F[last] < lap]
            room, fits_n = lambda n, stages: limit - n * (whole - one(a, stages)), range(1, fit + 1)
            done = lambda n: n * (one(slow_F) + one(slow_I, early) + one(slow_W, early)) + knapsack(started, room(n, early))
            end = lambda n: chain + lap - n * (one(slow_I) + one(slow_W) + one(slow_F, late)) - left(unfinished, room(n, late))
            before = lambda n: n * one(slow_F) + knapsack(started[:-1], limit - n * whole)
            warm = max(warm, min(max(path - before(n), path + lap - done(n)) for n in fits_n))
            ends = lambda *ks: min(max(end(n), *(rest(n, Fraction(k, 1024), unfinished[:-1]) for k in ks)) for n in fits_n)
            cool, least = max(cool, ends(1024)), max(least, ends(0, k, 1024))
        return on, limit, fits, busy, fill, warm, max(Fraction(0), cool + W[on[0]]), max(-left([], limit), least)

    def is_possible(self, cost):
        """Theorem 5: whether a schedule of this cost may exist."""
        after, late = None, Fraction(0)  # the last stage of the next rank, and how late its first I is
        for on in sorted(self.on.values(), reverse=True):
            _, _, fits, busy, fill, _, cool, _ = self.terms(self.placement[on[0]])
            late = late if after is not None and on[-1] < after else Fraction(0)
            least, idle = self.path(on[0], on[-1]) + late, lambda alone: cost - busy(alone) - (0 if fits else cool)
            unit = rational_gcd([self.fast[0][s] for s in on]) if self.fast == self.slow == [*self.base] else Fraction(1, 10**12)
            done, after = min(least, fill) // unit * unit, on[-1]
            if least - done > idle(done):
                late += done + unit - least
                if idle(done + unit) < 0 or done + unit > fill: return False
        return True

    def value(self, name, rank, other, claimed):
        on, limit, fits, busy, fill, warm, cool, rest = self.terms(rank if other is None else other)
        (F, I, W), first, last, r0 = self.fast, on[0], on[-1], self.on[rank][0]
        area = self.m * sum((self.path(s, s) + I[s]) * self.a[s] + W[s] * self.h[s] for s in on)
        ramp = lambda steps: min(t / size for size, t in steps if size > 0) * limit * max(0, limit - max(steps)[0]) / 2
        up = ramp([(max(self.a[s], self.h[s]), F[s]) for s in on])
        head = sum(F[r0:first]) + sum(self.out[r0:first])
        tail = sum(I[r0:first]) + sum(self.back[r0 + 1:first + 1]) + W[r0]
        work = busy(min(fill, self.path(first, last)))
        if name in ("work", "warm_up_and_cool_down"):
            return busy(0) if name == "work" else work + (max(warm, cool) if fits else warm + cool)
        if name == "one_microbatch": return self.path(first, first, self.slow) + self.slow[1][first] + self.slow[2][first]
        if name == "nested_window" and r0 < first: return head + work + warm + rest + tail
        if name == "memory_area":
            return (area + up + ramp([(self.a[s] - self.h[s], I[s]) for s in on] + [(self.h[s], W[s]) for s in on])) / limit
        if name == "nested_memory_area": return head + (area + up) / limit - max(W[s] for s in on) + tail
        if name == "whole_microbatches" and r0 <= first:
            fit = lambda used: min(self.m, max(0, limit - used) // sum(self.a[s] for s in on))
            others = [fit(sum(self.a[s] for s in on[:n])) for n in range(1, len(on))]
            lost = [self.m * (fit(0) - n) + n * (n + 1) // 2 for n in others] + [fit(0) * (fit(0) - 1) // 2]
            weights = [(self.h[s], W[s] * (fit(0) - fit(self.h[s])), self.m) for s in on]
            most = self.m * (self.path(last, last) + I[last] + sum(one for _, one, _ in weights)) - knapsack(weights, limit)
            return head + (most + sum((F[s] * (1 - self.overlap) + I[s]) * n for s, n in zip(on, lost))) / fit(0) + tail
        if name == "first_backwards":
            least, most = (Fraction(claimed) * (1 + Fraction(error, 10**9)) for error in (-1, 1))
            return least if self.is_possible(most) and not self.is_possible(least) else most * 2
        assert name == "lifetimes", name
        return -(-self.m // min(limit // self.a[first], self.m)) * (self.path(first, first) + I[first]) + W[first]

def main(plan, costs_file, result_file):
    placement, microbatches, rows, recompute = read_plan(plan)
    costs, result = Costs(costs_file, placement, microbatches, recompute), json.load(open(result_file))
    same = lambda exact, printed: abs(float(exact) - printed) <= 1e-9 * max(1, abs(float(exact)))
    cost, ones, sizes = replay(placement, microbatches, rows, costs), [1] * len(placement), result["memory_per_stage"]
    parts = [[Fraction(str(x)) for x in part] for part in (*sizes.values(), result["memory_limits"])]
    memory = [[int(x // rational_gcd(parts[0] + parts[1] + parts[2])) for x in part] for part in parts]
    assert same(cost, result["cost"]), f"cost: {float(cost)}, not {result['cost']}"
    for rank, row in enumerate(rows):
        assert peak(row, ones, ones, [0] * len(ones)) == result["ranks"][rank]["peak_activations"], f"activations of rank {rank}"
        assert peak(row, *memory[:3]) <= memory[3][rank], f"memory of rank {rank}"
    split = [any(part[:2] == ("I", s) for row in rows for step in row for part in step) for s in range(len(placement))]
    # Every cost is a multiple of what all times are multiples of, so a bound may be rounded up to one.
    grain = rational_gcd([t * k for t in costs.F + costs.I + costs.W for k in (1, costs.overlap)] + costs.output + costs.gradient)
    bounds, claim = Bounds(placement, microbatches, costs, split, (*memory[:2], memory[3])), result["bound"]
    bound = bounds.value(*(claim[key] for key in ("name", "rank", "other", "value")))
    assert float(bound) * (1 - 1e-9) <= claim["value"] <= float(-(-bound // grain) * grain) * (1 + 1e-9), \
        f"bound {claim['name']}: {float(bound)}, not {claim['value']}"
    assert bound <= cost and same(sum(claim["terms"].values()), claim["value"]), "terms"
    assert abs(result["cost"] / claim["value"] - 1 - result["gap"]) <= 1e-8, "gap"
    print(f"{plan}: cost {float(cost)}, bound {float(bound)} ({claim['name']}), as claimed")

main(*sys.argv[1:])
