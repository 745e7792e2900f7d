"""Runs our schedules on PyTorch modules: with our executor, or in torch.distributed.pipelining of PyTorch 2.11 to 2.15.

    import pipewright.torch as pw

    found = pw.search(ranks=4, microbatches=16, placement="v", memory=3)
    schedule = pw.Schedule(found, stages, loss_fn=loss_fn)           # stages: this rank's PipelineStages
    schedule = pw.runtime(found.schedule, stages, loss_fn=loss_fn)   # the same in PyTorch's runtime
    schedule.step(inputs)

Schedule and what else is not of this module is that of the package `pipewright_torch`, which has the executor and is installed
separately. runtime() uses names that are private in PyTorch and may change; an ImportError or AttributeError says so.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from . import ScheduleError, make, read, schedules, search
from . import _schedule


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pipewright_torch
    except ModuleNotFoundError as error:
        if error.name != "pipewright_torch":
            raise
        raise AttributeError(f"{__name__}.{name} needs the package pipewright-torch: pip install --no-build-isolation CHECKOUT/python/torch") from None
    return getattr(pipewright_torch, name)


def runtime(schedule: _schedule.Schedule, stages: list, *, loss_fn=None, channels: str = "rank", **options: Any):
    """Returns PyTorch's runtime for a schedule, after proving that it cannot deadlock there.

    `stages` are the PipelineStages of this rank, in the order of its stages in the schedule. A compute order is lowered
    first, for the installed PyTorch. `channels` is the model of the communicators: PyTorch has one per rank, "rank", or, from
    2.15 on with TORCH_DISTRIBUTED_PIPELINE_PER_EDGE_P2P, one per ordered pair of ranks, "edge". `options` go to PyTorch's
    constructor. Raises ScheduleError if the schedule is invalid under that model, ValueError if a program is not for the
    installed PyTorch or if the stages are not those of this rank.
    """
    from torch import __version__ as version
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    # 2.15 reads programs in which each SEND and REDUCE_GRAD is awaited, the others read those without.
    rules = "2.15" if tuple(int(part) for part in version.split(".")[:2]) >= (2, 15) else "2.11"
    is_order = schedule.level == "compute_only"
    program = schedule.lower(channels=channels, torch=rules) if is_order else schedule.lower(channels=channels)
    sends = [action for row in program.rows for action in row if "SEND_" in action or "REDUCE_GRAD" in action]
    awaits = any("WAIT_" in action for action in sends)
    if sends and awaits != (rules == "2.15"):
        raise ValueError(f"schedule: expected a program {'with' if rules == '2.15' else 'without'} WAITs for the installed torch "
                         f"{version}, got one {'with' if awaits else 'without'}; lower its computes with torch=\"{rules}\"")
    if program.slices > 1:
        raise ValueError(f"schedule: expected whole microbatches, got {program.slices} slices of each, which PyTorch does not run")
    if len(program.replica_ranks) > 1:
        raise ValueError("schedule: expected one replica of the model, got 2, which PyTorch does not run")
    of_stage = program.stage_ranks
    for stage in stages:
        mine = [index for index, rank in enumerate(of_stage) if rank == stage.group_rank]
        if stage.stage_index not in mine or stage.num_stages != program.stages:
            raise ValueError(f"stages: expected stages {mine} of {program.stages} on rank {stage.group_rank}, "
                             f"got stage {stage.stage_index} of {stage.num_stages}")
    result = _PipelineScheduleRuntime(stages, program.microbatches, loss_fn=loss_fn, **options)
    # A program does not say where its stages are, and PyTorch assumes a loop.
    result.stage_index_to_group_rank = dict(enumerate(of_stage))
    for stage in stages:
        stage.stage_index_to_group_rank = result.stage_index_to_group_rank
        if any(one == other for one, other in zip(of_stage, of_stage[1:])):
            # The warm-up of PyTorch's first step sends between neighbouring stages, also on one rank, which Gloo refuses.
            stage._get_init_p2p_neighbors_ops = list
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program.csv")
        program.save(path)
        result._load_csv(path, format="compute_comms")
    return result


__all__ = ["ScheduleError", "make", "read", "runtime", "schedules", "search"]
