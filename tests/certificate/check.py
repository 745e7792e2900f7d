"""Checks the result of `pipewright simulate PLAN --costs COSTS --json` without pipewright: check.py PLAN COSTS RESULT.

Reads a compute order of F, B, I, W and compounds, runs it with ideal transfers and copies to the host, adds up what is in memory,
and computes the lower bound that the result names from the costs alone (docs/bounds.md). All arithmetic is exact. Exits with 1 if
anything differs; a key that the result has and this does not know is an error, too."""
import json, re, sys
from bisect import bisect_left
from copy import copy
from fractions import Fraction
from functools import cache
from itertools import accumulate
from math import gcd, lcm

def read_plan(path):
    """The placement, the number of stages, the slices of all microbatches and of each, the rows (per rank, steps of one (kind, stage,
    slice) or of two), where in its row in the file each step is, and the stages that recompute and that offload. With two replicas of S stages, the
    second one, which runs the second half of the microbatches, has stages S to 2S-1 here."""
    head, rows, places, action = {}, [], [], r"(\d+)([FBIW])(\d+)"
    for line in open(path):
        key, _, value = line.strip().partition(": ")
        head[key] = value
        if key.startswith("rank "):
            places.append([place for place, cell in enumerate(value.split()) if cell != "."])
            cells = [cell for cell in value.split() if cell != "."]
            assert all(re.fullmatch(rf"{action}|\({action};{action}\)OVERLAP_F_B", cell) for cell in cells), cells
            rows.append([[(kind, int(s), int(m)) for s, kind, m in re.findall(action, cell)] for cell in cells])
    assert head["level"] == "compute_only"
    ranks, stages, replicas = int(head["ranks"]), int(head["stages"]), int(head.get("replicas", 1))
    rule = {"loop": lambda s: s % ranks, "v": lambda s: s % ranks if s // ranks % 2 == 0 else ranks - 1 - s % ranks}
    placement = [rank for name in (head["placement"], head.get("placement 1", ""))[:replicas]
                 for rank in ([rule[name](s) for s in range(stages)] if name in rule else [int(rank) for rank in name.split()])]
    slices, microbatches = int(head.get("slices", 1)), int(head["microbatches"])
    if replicas == 2:
        rows = [[[(kind, s + stages * (m >= microbatches // 2 * slices), m) for kind, s, m in parts] for parts in row] for row in rows]
    for rank, row in enumerate(rows): assert all(placement[s] == rank for parts in row for _, s, _ in parts), f"rank {rank}"
    recompute, offload = ([int(stage) for stage in head.get(key, "").split()] for key in ("recompute", "offload"))
    return placement, stages, slices * microbatches, slices, rows, places, recompute, offload

OF_SLICES = ("forward backward_input backward_weight output_bytes input_gradient_bytes activation_bytes weight_input_bytes"
             " checkpoint_bytes offload_bytes offload reload").split()  # each has a part of them

class Costs:
    def __init__(self, path, placement, num_stages, microbatches, slices, recompute, offload):
        self.num_stages = num_stages  # of the model
        self.file, self.placement, self.slices = json.load(open(path), parse_float=Fraction, parse_int=Fraction), placement, slices
        self.overlap, of = self.file.get("overlap", Fraction(0)), lambda key, at: self.file[key][at] if key in self.file else Fraction(1)
        self.scales = [of("microbatch_scale", m // slices) * of("slice_scale", m % slices) for m in range(microbatches)]
        stages, scale = range(len(placement)), self.file.get("rank_scale", [1] * len(placement))
        self.F, self.I, self.W = ([self.at(key, s, 1) * scale[placement[s]] for s in stages]
                                  for key in ("forward", "backward_input", "backward_weight"))
        recompute = [s for s in stages if s % num_stages in recompute]
        again = [self.F[s] * self.at("recompute", s, 1) * (s in recompute) for s in stages]
        self.I = [i + more for i, more in zip(self.I, again)]
        self.lead = [more * self.is_link(s, s + 1) for s, more in enumerate(again)]  # what needs no gradient
        self.output = [self.transfer(s, s + 1, self.at("output_bytes", s, 0)) for s in stages]
        self.gradient = [self.transfer(s, s - 1, self.at("input_gradient_bytes", s, 0)) for s in stages]
        self.a, self.h, self.parameters, self.shards, self.optimizer, self.gradient_bytes = (
            [self.at(key, s, 0) for s in stages] for key in ("activation_bytes", "weight_input_bytes", "parameter_bytes",
                                                             "shard_bytes", "optimizer_bytes", "gradient_bytes"))
        kept = [min(a, self.at("checkpoint_bytes", s, 0)) if s in recompute else a for s, a in enumerate(self.a)]
        self.a, self.r = kept, [a - k for a, k in zip(self.a, kept)]
        self.offloads = [s % num_stages in offload for s in stages]
        self.o = [min(self.at("offload_bytes", s, 0), a) * self.offloads[s] for s, a in enumerate(self.a)]
        self.copy_out, self.copy_in = ([self.at(key, s, 0) * self.offloads[s] for s in stages] for key in ("offload", "reload"))

    def at(self, key, stage, default):
        value = self.file.get(key, Fraction(default))
        return (value[stage % self.num_stages] if isinstance(value, list) else value) / (self.slices if key in OF_SLICES else 1)

    def is_link(self, stage, other):
        return other // self.num_stages == stage // self.num_stages and self.placement[stage] != self.placement[other]

    def transfer(self, stage, other, size):
        if not self.is_link(stage, other): return Fraction(0)
        link = {k: self.file[k] for k in ("latency", "bandwidth") if k in self.file}
        for one in self.file.get("links", []):
            link |= one if (one["from"], one["to"]) == (self.placement[stage], self.placement[other]) else {}
        return link.get("latency", Fraction(0)) + (size / link["bandwidth"] if "bandwidth" in link else 0)

    def of_replica(self, number, replicas):
        """The costs of one replica: its stages, and the scales of its microbatches."""
        part, mine = copy(self), slice(number * self.num_stages, (number + 1) * self.num_stages)
        for key in ("F", "I", "W", "lead", "output", "gradient", "copy_out", "copy_in", "placement"): setattr(part, key, getattr(self, key)[mine])
        half = len(self.scales) // self.slices // replicas * self.slices
        part.scales = self.scales[number * half:(number + 1) * half]
        return part

    def back(self, s, m=None):
        """From the end of I of a stage to the start of that of the stage before, which may be earlier if that recomputes: of a
        microbatch, or the least."""
        return self.gradient[s] - (self.lead[s - 1] * (max(self.scales) if m is None else self.scales[m]) if s % self.num_stages else 0)

    def time(self, parts):
        """Of one step: compounds hide some of their shorter part."""
        times = [self.scales[m] * sum(getattr(self, one)[s] for one in kind.replace("B", "IW")) for kind, s, m in parts]
        return sum(times) - self.overlap * min(times) * (len(parts) - 1)

def copies_of(row, costs):
    """By step, the copies that are posted before it, in order: (stage, the step whose backward needs it or None, that of its F)."""
    begins, forward, trips = [Fraction(0), *accumulate(costs.time(parts) for parts in row)], {}, []
    for step, parts in enumerate(row):
        for kind, s, m in parts:
            if kind == "F" and costs.offloads[s]: forward[s, m] = step
            elif kind in "BI" and costs.offloads[s]: trips.append((s, forward[s, m], step))
    back, end = [[] for _ in row], None  # a copy back has the latest place from which it is in time, before the later ones, and
    for number, (s, first, step) in reversed([*enumerate(trips)]):  # not before the backward that needs the one before it
        earliest = max(first + 1, trips[number - 1][2] if number else 0)
        start = min(begins[step], begins[step] if end is None else end) - costs.copy_in[s]
        place = max([earliest, *(one for one in range(earliest, step + 1) if begins[one] <= start)])
        back[place].insert(0, (s, step, first))
        end = max(start, begins[place])
    out = [[(s, None, first) for s, first, _ in trips if first + 1 == step] for step in range(len(row))]
    return [one + other for one, other in zip(out, back)]

def replay(placement, microbatches, rows, costs):
    """When each step runs, as (begin, end), each copy, as (when it takes memory, end, stage, the step that it is for, whether it is back), and the
    exposed communication of each rank. A step starts when its rank is free and its inputs are there. Copies are posted when the step before has ended, and run one after the other."""
    stages, ends = costs.num_stages, {("F", -1, m): Fraction(0) for m in range(microbatches)}
    def need(kind, s, m):  # what has to end before, and how long before
        if kind == "F" and s % stages == 0: return ("F", -1, m), 0
        if kind == "W" or kind != "F" and (s + 1) % stages == 0:
            return ("I" if kind == "W" else "F", s, m), 0
        return (("F", s - 1, m), costs.output[s - 1]) if kind == "F" else (("I", s + 1, m), costs.back(s + 1, m))
    def slice_before(kind, s, m):  # of its microbatch
        if kind == "F" and m % costs.slices: yield ("F", s, m - 1), 0
        if kind in "BI" and (m + 1) % costs.slices: yield ("I", s, m + 1), 0

    plans, before, step = [copies_of(row, costs) for row in rows], None, [0] * len(rows)
    times, copies, returned, exposed = [[] for _ in rows], [[] for _ in rows], {}, [Fraction(0)] * len(rows)
    left = {}  # when each copy to the host ends
    while before != (before := list(step)):
        for rank, row in enumerate(rows):
            while step[rank] < len(row):
                parts = row[step[rank]]
                needs = [need(*part) for part in parts] + [one for part in parts for one in slice_before(*part)]
                if any(action not in ends for action, _ in needs): break
                free = times[rank][-1][1] if times[rank] else Fraction(0)
                for s, of, first in plans[rank][step[rank]]:
                    begin = max([free, *(copy[1] for copy in copies[rank][-1:])])
                    takes = None if of is None else max(free, left[rank, s, first])
                    copies[rank].append((takes, begin + (costs.copy_out if of is None else costs.copy_in)[s], s, of))
                    (left if of is None else returned)[(rank, s, first) if of is None else (rank, of)] = copies[rank][-1][1]
                begin = max([free, returned.get((rank, step[rank]), 0), *(ends[action] + delay for action, delay in needs)])
                if times[rank]:  # how long the transfers of its inputs, one after the other or at once, kept the rank idle
                    until = free
                    for sent, come in sorted((ends[action], ends[action] + delay) for action, delay in needs):
                        exposed[rank] += max(Fraction(0), min(come, begin) - max(sent, until))
                        until = max(until, come)
                times[rank].append((begin, begin + costs.time(parts)))
                ends.update({("I" if kind == "B" else kind, s, m): times[rank][-1][1] for kind, s, m in parts})
                step[rank] += 1
    assert all(step[r] == len(row) for r, row in enumerate(rows)), "deadlock"
    return times, copies, exposed

def peak(row, times, copies, a, h, r, o, gradients=None):
    """The most that is in use at a time, the first step at which it is, and the gradients among it: a from F to the end of B or I, but for o on the host; h from there to the end of W; r beside
    both while B or I runs; gradients of a stage from its first B or W on."""
    changes, accumulated = [(end, 0, -o[s], None, 0) for _, end, s, of in copies if of is None], set()
    for step, (parts, (begin, end)) in enumerate(zip(row, times)):
        for kind, s, _ in parts:
            if kind in "BW" and gradients and s not in accumulated:
                accumulated.add(s)
                changes.append((begin, 1, gradients[s], step, gradients[s]))
        changes += [(begin, 1, {"F": a[s], "W": 0}.get(kind, r[s]), step, 0) for kind, s, _ in parts]
        changes += [(end, 1, {"F": 0, "B": -a[s] - r[s], "I": h[s] - a[s] - r[s], "W": -h[s]}[kind], step, 0) for kind, s, _ in parts]
    changes = sorted(changes + [(takes, 2, o[s], of, 0) for takes, _, s, of in copies if of is not None], key=lambda change: change[:2])
    used = [*accumulate(change[2] for change in changes)]
    at = used.index(max(used))
    return used[at], changes[at][3], sum(change[4] for change in changes[:at + 1])

def rational_gcd(numbers):
    unit = lcm(*(Fraction(one).denominator for one in numbers))
    return Fraction(gcd(*(int(one * unit) for one in numbers)) or 1, unit)

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
        self.placement, self.out, self.overlap = placement, costs.output, costs.overlap
        self.back = [costs.back(s) for s in range(len(placement))]
        self.copies = [out + back for out, back in zip(costs.copy_out, costs.copy_in)]
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
        if name == "copies":
            outer = next(s for s in on if self.copies[s] > 0)
            there = sum(F[first:outer + 1]) + sum(self.out[first:outer])
            back = sum(I[first:outer + 1]) + sum(self.back[first + 1:outer + 1]) + W[first]
            return there + self.m * sum(self.copies[s] for s in on) + back
        if name == "first_backwards":
            least, most = (Fraction(claimed) * (1 + Fraction(error, 10**9)) for error in (-1, 1))
            return least if self.is_possible(most) and not self.is_possible(least) else most * 2
        assert name == "lifetimes", name
        return -(-self.m // min(limit // self.a[first], self.m)) * (self.path(first, first) + I[first]) + W[first]

def bound_of_work(costs, rows):
    """By rank: how long it is busy at least."""
    all_of = lambda row, kinds: sum((costs.time([part]) for parts in row for part in parts if part[0] in kinds), Fraction(0))
    sums = [(all_of(row, "F"), all_of(row, "BIW")) for row in rows]
    return [forwards + others - costs.overlap * min(forwards, others) for forwards, others in sums]

KEYS = ("version level channels capacity unit makespan cost bubble_rate memory_limits memory_per_stage bound gap jitter ranks"
        " critical_path diagnostics")
RANK_KEYS = ("span busy idle exposed_communication peak_activations peak_activations_step peak_bytes peak_bytes_step"
             " memory receive_slots")

def main(plan, costs_file, result_file):
    placement, num_stages, microbatches, slices, rows, places, recompute, offload = read_plan(plan)
    costs, result = Costs(costs_file, placement, num_stages, microbatches, slices, recompute, offload), json.load(open(result_file))
    assert set(result) == set(KEYS.split()) and all(set(one) == set(RANK_KEYS.split()) for one in result["ranks"]), "keys"
    for key, value in {"version": 1, "level": "compute_only", "channels": None, "capacity": None, "unit": costs.file.get("unit"),
                       "jitter": None, "diagnostics": []}.items():
        assert result[key] == value, f"{key}: {value}, not {result[key]}"
    assert all(one["receive_slots"] is None for one in result["ranks"]), "an order has no receive slots"
    same = lambda exact, printed: abs(float(exact) - printed) <= 1e-9 * max(1, abs(float(exact)))
    def claim(what, exact, printed):
        assert same(exact, printed), f"{what}: {float(exact)}, not {printed}"
    times, copies, exposed = replay(placement, microbatches, rows, costs)
    spans, busy = [row[-1][1] - row[0][0] for row in times], [sum(end - begin for begin, end in row) for row in times]
    cost, last = max(spans), max(row[-1][1] for row in times)
    claim("cost", cost, result["cost"])
    claim("makespan", last - min(row[0][0] for row in times), result["makespan"])
    claim("bubble rate", (cost - max(busy)) / cost, result["bubble_rate"])
    stages, zeros, split = range(len(placement)), [0] * len(placement), [False] * len(placement)
    for kind, s, _ in (part for row in rows for step in row for part in step): split[s % num_stages] |= kind == "I"
    split = split[:num_stages] * (len(placement) // num_stages)
    has_sizes = any(costs.a + costs.r)
    for rank, (row, printed) in enumerate(zip(rows, result["ranks"])):
        for key, exact in (("span", spans[rank]), ("busy", busy[rank]), ("idle", spans[rank] - busy[rank]),
                           ("exposed_communication", exposed[rank])):
            claim(f"{key} of rank {rank}", exact, printed[key])
        ones = [1] * len(placement)
        most, step, _ = peak(row, times[rank], [], ones, ones, zeros, zeros)
        assert (most, places[rank][step]) == (printed["peak_activations"], printed["peak_activations_step"]), \
            f"activations of rank {rank}: {most} at step {places[rank][step]}"
        most, step, gradients = peak(row, times[rank], copies[rank], costs.a, costs.h, costs.r, costs.o, costs.gradient_bytes)
        on = [s for s in stages if placement[s] == rank]
        uses = {"parameters": sum(costs.parameters[s] + costs.shards[s] for s in on), "unsharded": 0,
                "gradients": gradients, "optimizer": sum(costs.optimizer[s] for s in on), "receive": 0}
        held = uses["parameters"] + uses["optimizer"]
        if printed["peak_bytes"] is None:
            assert most + held == 0 and printed["memory"] is None, f"bytes of rank {rank}"
        else:
            claim(f"bytes of rank {rank}", most + held, printed["peak_bytes"])
            uses["activations"] = most - uses["gradients"]
            for use in {*uses, *printed["memory"]}: claim(f"{use} of rank {rank}", uses[use], printed["memory"][use])
            assert most == 0 or places[rank][step] == printed["peak_bytes_step"], f"step of the bytes of rank {rank}: {places[rank][step]}"

    # Each action of the critical path runs when it is said to, and follows from the one before.
    runs = {(rank, place): (row[step], *times[rank][step]) for rank, row in enumerate(rows) for step, place in enumerate(places[rank])}
    before, reached = [], 0
    for one in result["critical_path"]:
        parts, begin, end = runs[one["rank"], one["step"]]
        assert re.findall(r"\d+[FBIW]\d+", one["action"]) == [f"{s % num_stages}{kind}{m}" for kind, s, m in parts], f"path: {one}"
        claim(f"path: start of {one['action']}", begin, one["start"])
        claim(f"path: end of {one['action']}", end, one["end"])
        delays = {0} | {delay for _, s, m in before for delay in (costs.output[s], costs.back(s, m))}
        assert any(costs.offloads) or begin - reached in delays, f"path: {one['action']} starts later"
        before, reached = parts, end
    assert reached == last, "path: does not end last"

    # The memory of the bound: live activations, or sizes and limits in their unit, without what is on the host.
    limits = [Fraction(str(x)) for x in result["memory_limits"]]
    on_device = [a - o for a, o in zip(costs.a, costs.o)] if has_sizes else [1] * len(placement)
    weight = [min(h, a) * is_split for h, a, is_split in zip(costs.h if has_sizes else [Fraction(1, 2)] * len(placement), on_device, split)]
    live, sizes = ([1] * len(placement), [*map(int, split)], zeros, zeros), (on_device, weight, costs.r, costs.o)
    if not has_sizes: sizes = (on_device, weight, zeros, zeros)
    counts_live = limits == [one["peak_activations"] for one in result["ranks"]] and result["memory_per_stage"]["activation"] == live[0][:num_stages] \
        and result["memory_per_stage"]["weight_input"] == live[1][:num_stages]
    a, h, r, o = live if counts_live else sizes
    for exact, (key, printed) in zip((a, h, r), result["memory_per_stage"].items()):
        assert len(printed) == num_stages
        for s in stages: claim(f"{key} of stage {s % num_stages}", exact[s], printed[s % num_stages])
    grain = rational_gcd([*a, *h, *r, *o])
    a, h, r, o, limits = ([int(x // grain) for x in part] for part in (a, h, r, o, limits))
    for rank, row in enumerate(rows):
        most, *_ = peak(row, times[rank], copies[rank], [x + y for x, y in zip(a, o)], h, r, o)
        assert most <= limits[rank], f"memory of rank {rank}"

    # Every cost is a multiple of what all times are multiples of, so a bound may be rounded up to one.
    grain = rational_gcd([t * k for t in costs.F + costs.I + costs.W + costs.lead for k in (1, costs.overlap)] + costs.output
                         + costs.gradient + costs.copy_out + costs.copy_in)
    bound_claim, replicas, of_work = result["bound"], len(placement) // num_stages, bound_of_work(costs, rows)
    bound = of_work[result["bound"]["rank"]] if result["bound"]["name"] == "work" else 0
    for number in range(replicas):  # a schedule of two replicas contains one of each
        one = costs.of_replica(number, replicas)
        bounds = Bounds(one.placement, len(one.scales), one, split[:num_stages], (a[:num_stages], h[:num_stages], limits))
        if bound_claim["rank"] in bounds.on: bound = max(bound, bounds.value(*(bound_claim[key] for key in ("name", "rank", "other", "value"))))
    assert float(bound) * (1 - 1e-9) <= bound_claim["value"] <= float(-(-bound // grain) * grain) * (1 + 1e-9), \
        f"bound {bound_claim['name']}: {float(bound)}, not {bound_claim['value']}"
    assert bound <= cost and same(sum(bound_claim["terms"].values()), bound_claim["value"]), "terms"
    assert abs(result["cost"] / bound_claim["value"] - 1 - result["gap"]) <= 1e-8, "gap"
    print(f"{plan}: cost {float(cost)}, bound {float(bound)} ({bound_claim['name']}), as claimed")

main(*sys.argv[1:])
