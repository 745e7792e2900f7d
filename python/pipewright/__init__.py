"""Generate, verify, simulate and search pipeline-parallel schedules.

    import pipewright as pw

    order = pw.make("ZBV", ranks=4, microbatches=8)     # a compute order
    program = order.lower(residency=2)                  # with SEND, RECV, UNSHARD, ...
    assert program.verify()                             # free of deadlock and mistakes
    print(program.simulate(forward=1, comm=0.1).makespan)
    program.save("zbv.csv")                             # PyTorch's runtime loads it

Errors in a schedule or in a costs file are `ScheduleError`, a ValueError whose text is that of the `pipewright` command
and whose `diagnostics` are objects. Long work releases the GIL; Ctrl-C ends a search.
"""

from __future__ import annotations

import dataclasses
import os

from . import _arguments, _pipewright
from ._pipewright import Change, Diagnostic, RankCertificate, RankReport, ScheduleError, Verdict
from ._schedule import Schedule, Simulation

__version__ = _pipewright.__version__
__all__ = ["Change", "Diagnostic", "RankCertificate", "RankReport", "Robustness", "Schedule", "ScheduleError",
           "SearchResult", "Simulation", "Verdict", "cut", "make", "read", "schedules", "search"]

_BUDGETS = {"small": 10_000_000, "medium": 200_000_000, "large": 2_000_000_000}


def schedules() -> list[str]:
    """The names of the catalogue."""
    return _pipewright.schedules()


def make(name: str, *, ranks: int, microbatches: int, stages: int | None = None, group_size: int | None = None,
         extra_warmup: bool = False, memory: float | None = None, slices: int | None = None,
         costs: dict | str | os.PathLike | None = None, **times: float) -> Schedule:
    """Generates a schedule of the catalogue by its name or alias, ignoring case, as a compute order.

    `stages` defaults to the schedule's own number. `group_size` and `extra_warmup` are Interleaved1F1B's, `memory`, in
    activations per rank, V-Adaptive's; `slices` of each microbatch, along its sequence, are GPipe's, Seq1F1B's and
    Seq1F1B-I's. `costs` and `times` (see Schedule.simulate) are for schedules that plan with costs: ZB-1p, ZB-2p.
    """
    return Schedule(_pipewright.make(
        _arguments.text("name", name), _arguments.whole("ranks", ranks), _arguments.optional_whole("stages", stages),
        _arguments.whole("microbatches", microbatches), _arguments.optional_whole("group_size", group_size),
        bool(extra_warmup), _arguments.optional_positive("memory", memory) or 0,
        _arguments.optional_whole("slices", slices), _arguments.costs(costs, times)))


def read(source: str | os.PathLike, *, name: str | None = None, slices: int | None = None,
         replicas: int | None = None) -> Schedule:
    """Reads a schedule from a .csv, .plan or .json file, or from a text of several lines.

    `name` is the file's name in messages; its extension says the format, or else the first bytes do. A CSV does not say
    into how many `slices` each microbatch is cut, and that there are two `replicas` of the model; of another file they are
    what it must say. Raises ScheduleError if the text is malformed; whether a schedule can run is for verify() to say.
    """
    shape = _arguments.optional_whole("slices", slices), _arguments.optional_whole("replicas", replicas)
    if isinstance(source, str) and "\n" in source:
        return Schedule(_pipewright.read(name or "<text>", source, *shape))
    path = os.fspath(source)
    return Schedule(_pipewright.read(name or path, _arguments.read_file(path), *shape))


def cut(costs: dict | str | os.PathLike, plan: Schedule) -> list[range]:
    """The layers of each stage of a plan, as ranges of indices into the layers of the costs.

    A stage's module is `torch.nn.Sequential(*(layers[index] for index in pw.cut(costs, plan)[stage]))`. The cut is that of
    the costs, or else the plan's own, or else an even one; a stage may have no layers. Raises ScheduleError if the cut is
    not one of these layers.
    """
    return [range(first, last) for first, last in _pipewright.cut(_arguments.costs(costs, {}), plan._native)]


@dataclasses.dataclass(frozen=True)
class Robustness:
    """How much longer a schedule takes when times are not as planned: 0.02 for a makespan that is 2% longer."""

    mean: float  # under noise, on average
    percentile_95: float  # under noise, in 95 of 100 cases at most
    slow_rank: float  # if the worst rank takes 5% longer
    slow_links: float  # if transfers take twice as long


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """A found schedule, and how good it is."""

    schedule: Schedule
    cost: float  # the longest span of any rank
    makespan: float
    bubble_rate: float
    bound: float  # no schedule costs less
    bound_name: str
    gap: float  # how far the cost is above the bound: 0.1 for 10%
    found_by: str  # a schedule of the catalogue, or "search"
    evaluations: int
    placement: str  # loop, v or wave
    stages: int
    memory: float | list[float] | None  # the limit that it keeps to, in activations or in bytes, of each rank if it is a list
    robustness: Robustness | None = None  # of search(robust=...)
    front: tuple[SearchResult, ...] = ()  # of placement="free": each placement with 8/8 to 2/8 of the memory
    is_best: bool = True  # in a front: no other result needs no more memory and costs less

    def _repr_svg_(self) -> str:
        return self.schedule._repr_svg_()


def search(*, ranks: int, microbatches: int, placement: str = "loop", stages: int | None = None,
           costs: dict | str | os.PathLike | None = None, memory: float | list[float] | None = None,
           memory_bytes: float | list[float] | None = None, budget: str | int = "medium",
           robust: float | None = None, robust_by: str | None = None, merge_backward: bool = False, layers: bool = False,
           recompute: bool = False, offload: bool = False, slices: int = 1, replicas: int = 1, threads: int | None = None,
           seed: int = 1, **times: float) -> SearchResult:
    """Finds a schedule of low cost within a memory limit, and a lower bound on the cost of every other one.

    `placement` is loop, v, wave, or free: all of these, each with several amounts of memory, in the result's `front`;
    costs are those of `stages` stages, which free may cut further. `memory` is in activations per rank, `memory_bytes`
    in bytes; a list of either has a limit per rank. `budget` is small, medium, large or a number of evaluated actions. With
    `robust`, the good schedule with the least makespan is chosen when the time of each action varies by log-normal noise of
    this standard deviation: the least mean, or with `robust_by="p95"` the least 95th percentile. With `layers`, the layers
    of the costs are cut into stages too, and `schedule.cut` says how; otherwise they are cut evenly, or as `cut` of the costs
    says. With `recompute` or `offload`, the search also chooses the stages that recompute, or that copy activations to the
    host, as the costs say; `schedule.recompute` and `schedule.offload` name them. Each microbatch is cut into `slices` along
    its sequence. Of two `replicas` of the model, the second runs its half of the microbatches in the opposite direction over
    the ranks. The result is the same for any number of threads. See `pipewright search --help`.
    """
    if _arguments.text("placement", placement) not in ("loop", "v", "wave", "free"):
        raise ValueError(f"placement: expected loop, v, wave or free, got `{placement}`")
    if memory is not None and memory_bytes is not None:
        raise ValueError("memory cannot be used with memory_bytes")
    if _arguments.text("robust_by", "mean" if robust_by is None else robust_by) not in ("mean", "p95"):
        raise ValueError(f"robust_by: expected mean or p95, got `{robust_by}`")
    if robust_by is not None and robust is None:
        raise ValueError("robust_by requires robust")
    evaluations = _BUDGETS.get(budget) if isinstance(budget, str) else budget
    if isinstance(evaluations, bool) or not isinstance(evaluations, int) or evaluations < 1:
        raise ValueError(f"budget: expected small, medium, large or a whole number from 1, got `{budget}`")
    found = _pipewright.search(
        _arguments.whole("ranks", ranks), _arguments.whole("microbatches", microbatches),
        placement, _arguments.optional_whole("stages", stages),
        _arguments.costs(costs, times), _arguments.per_rank("memory", memory),
        _arguments.per_rank("memory_bytes", memory_bytes), evaluations,
        _arguments.optional_positive("robust", robust) or 0.0, robust_by == "p95", bool(merge_backward), bool(layers),
        bool(recompute), bool(offload), _arguments.whole("slices", slices), _arguments.whole("replicas", replicas),
        _arguments.optional_whole("threads", threads) or os.cpu_count() or 1, _arguments.whole("seed", seed, least=0))
    return _result(found)


def _result(found) -> SearchResult:
    robustness = found.robustness and Robustness(
        found.robustness.mean, found.robustness.percentile_95, found.robustness.slow_rank, found.robustness.slow_links)
    return SearchResult(
        Schedule(found.schedule), found.cost, found.makespan, found.bubble_rate, found.bound, found.bound_name, found.gap,
        found.found_by, found.evaluations, found.placement, found.stages,
        (found.memory[0] if len(found.memory) == 1 else found.memory or None), robustness,
        tuple(_result(one) for one in found.front), found.is_best)
