"""Schedules and their simulated runs."""

from __future__ import annotations

import os
from typing import Any

from . import _arguments, _pipewright
from ._pipewright import Change, RankReport, Verdict


class Schedule:
    """One list of actions per rank: a compute order, or a program with communication. Immutable.

    Made by `make`, `read` or `search`. Equal if all actions, the shape and the policies are equal.
    """

    __slots__ = ("_native",)

    def __init__(self, native: _pipewright.Schedule):
        if not isinstance(native, _pipewright.Schedule):
            raise TypeError("a Schedule is made by pipewright.make, read or search")
        object.__setattr__(self, "_native", native)

    def __setattr__(self, name, value):
        raise AttributeError("a Schedule is immutable")

    @property
    def name(self) -> str:
        return self._native.name

    @property
    def ranks(self) -> int:
        return self._native.ranks

    @property
    def stages(self) -> int:
        return self._native.stages

    @property
    def microbatches(self) -> int:
        return self._native.microbatches

    @property
    def slices(self) -> int:
        """The parts that each microbatch is cut into along its sequence."""
        return self._native.slices

    @property
    def placement(self) -> str:
        """Where the stages are, as in a .plan file."""
        return self._native.placement

    @property
    def stage_ranks(self) -> list[int]:
        """The rank of each stage; of replica 0, if there are two."""
        return self.replica_ranks[0]

    @property
    def replica_ranks(self) -> list[list[int]]:
        """Per replica of the model, the rank of each stage."""
        return self._native.replica_ranks

    @property
    def level(self) -> str:
        """PyTorch's names: "compute_only" for a compute order, "compute_comms" for a program."""
        return self._native.level

    @property
    def cut(self) -> list[int]:
        """The layers of each stage; empty if the schedule is for no cut of a model."""
        return self._native.cut

    @property
    def recompute(self) -> list[int]:
        """The stages that recompute, ascending: their F keeps a checkpoint, and their B or I runs the forward again."""
        return self._native.recompute

    @property
    def offload(self) -> list[int]:
        """The stages that offload, ascending: what their F saves is on the host until their B or I."""
        return self._native.offload

    @property
    def policies(self) -> dict[str, str]:
        """The lowering policies that the schedule records."""
        return self._native.policies

    @property
    def rows(self) -> list[list[str]]:
        """Per rank, its actions as text: "0F3", "1UNSHARD"; "" for an idle slot."""
        return self._native.rows

    def __len__(self) -> int:
        """The number of actions, idle slots included."""
        return len(self._native)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self._native == other._native

    __hash__ = None

    def with_stages(self, *, recompute: list[int] | None = None, offload: list[int] | None = None) -> Schedule:
        """Returns the schedule with these stages that recompute or offload, in place of its own; None leaves its own.

        Stages are different ones in ascending order; others raise ValueError.
        """
        return Schedule(self._native.with_stages(
            self.recompute if recompute is None else _arguments.stages("recompute", recompute, self.stages),
            self.offload if offload is None else _arguments.stages("offload", offload, self.stages)))

    def lower(self, **policies: Any) -> Schedule:
        """Returns the schedule as a program: with SEND, RECV, UNSHARD, RESHARD, REDUCE_GRAD and WAITs.

        Policies are those of the command line: torch="2.11", residency=3, receives="latest", channels="edge",
        capacity=0, reduce_every=2, lookahead="auto", ... Raises ScheduleError if the schedule or the result is invalid.
        """
        return Schedule(self._native.lower(_arguments.policies(policies)))

    def compute_order(self) -> Schedule:
        """Returns the schedule without its communication."""
        return Schedule(self._native.compute_order())

    def verify(self, **policies: Any) -> Verdict:
        """Checks all that `pipewright validate` checks; a compute order is also lowered, with the policies.

        Returns a Verdict: true if the schedule is valid, with `diagnostics` and a `certificate` of the memory needed.
        """
        return self._native.verify(_arguments.policies(policies))

    def simulate(self, costs: dict | str | os.PathLike | None = None, *, scale: dict[str, float] | None = None,
                 slow: dict[int, float] | None = None, memory: float | list[float] | None = None, **times: float) -> Simulation:
        """Predicts when each action runs. A compute order has ideal transfers, a program its channel model.

        `costs` is a dict, as in a costs file, or the path of one; the times forward, backward_input, backward_weight
        and comm replace single ones; all are 1 by default, transfers 0. What if: scale={"COMM": 2} multiplies a cost,
        slow={2: 1.5} the times of a rank. `memory` is for the lower bound, in activations per rank, or a list of one
        number per rank.
        """
        return Simulation(_pipewright.simulate(
            self._native, _arguments.costs(costs, times), _arguments.factors("scale", scale),
            _arguments.factors("slow", slow), _arguments.per_rank("memory", memory)))

    def diff(self, other: Schedule) -> list[Change]:
        """Compares with another schedule: a Change per rank, which is false if there is none."""
        if not isinstance(other, Schedule):
            raise TypeError(f"other: expected a Schedule, got `{other!r}`")
        return self._native.diff(other._native)

    def to_csv(self) -> str:
        """PyTorch's format."""
        return self._native.text("csv")

    def to_plan(self) -> str:
        return self._native.text("plan")

    def to_json(self) -> str:
        return self._native.text("json")

    def save(self, path: str | os.PathLike) -> None:
        """Writes a file completely or not at all, in the format of its extension: .csv, .plan or .json."""
        path = os.fspath(path)
        content = self._native.text(os.path.splitext(path)[1][1:].lower())
        temporary = f"{path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "w", encoding="utf-8", newline="") as file:
                file.write(content)
            os.replace(temporary, path)
        except BaseException:
            if os.path.exists(temporary):
                os.remove(temporary)
            raise

    def __str__(self) -> str:
        return self._native.text("table")

    def __repr__(self) -> str:
        return (f"<{self.name or 'schedule'}: {self.ranks} ranks, {self.stages} stages, "
                f"{self.microbatches} microbatches, {self.level}>")

    def _repr_svg_(self) -> str:
        return self.simulate().to_svg()


class Simulation:
    """A simulated run of a schedule: figures, times of all actions, pictures. Immutable."""

    __slots__ = ("_native",)

    def __init__(self, native: _pipewright.Simulation):
        self._native = native

    @property
    def makespan(self) -> float:
        return self._native.makespan

    @property
    def cost(self) -> float:
        """The longest span of any rank, from its first to its last action."""
        return self._native.cost

    @property
    def bubble_rate(self) -> float:
        """The part of the cost that the busiest rank idles."""
        return self._native.bubble_rate

    @property
    def bound(self) -> float:
        """No order of the same work in the same memory costs less."""
        return self._native.bound

    @property
    def bound_name(self) -> str:
        return self._native.bound_name

    @property
    def gap(self) -> float:
        """How far the cost is above the bound: 0.1 for 10%."""
        return max(0.0, self.cost / self.bound - 1) if self.bound > 0 else 0.0

    @property
    def ranks(self) -> list[RankReport]:
        """Per rank: start, end, busy, idle, peak_activations, peak_bytes, memory (what peak_bytes are used for)."""
        return self._native.ranks

    def times(self, rank: int):
        """Start and end of each action of a rank, of shape (actions, 2); idle slots are 0, 0.

        A numpy array that shares memory with the simulation; a memoryview where numpy is not installed.
        """
        return _array(self._native.times(_arguments.whole("rank", rank, least=0)))

    @property
    def slack(self):
        """How much later each action could end without delaying the end, by action, along the rows: an array as times()."""
        return _array(self._native.slack())

    def to_svg(self) -> str:
        return self._native.picture("svg")

    def to_trace(self) -> str:
        """Chrome trace events, for ui.perfetto.dev."""
        return self._native.picture("trace")

    def to_html(self, against: Simulation | None = None) -> str:
        """An interactive page, with a second run on the same time axis if given."""
        if against is not None and not isinstance(against, Simulation):
            raise TypeError(f"against: expected a Simulation, got `{against!r}`")
        return self._native.html(against._native if against is not None else None)

    def __str__(self) -> str:
        return self._native.picture("timeline")

    def __repr__(self) -> str:
        return f"<Simulation: makespan {self.makespan:.6g}, bubble {100 * self.bubble_rate:.1f}%>"

    def _repr_svg_(self) -> str:
        return self.to_svg()


def _array(view):
    try:
        import numpy
    except ImportError:
        return view
    return numpy.asarray(view)
