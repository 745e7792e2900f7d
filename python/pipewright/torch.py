"""Runs our schedules in PyTorch: torch.distributed.pipelining of PyTorch 2.11, whose runtime takes a program as a file.

    import pipewright as pw
    import pipewright.torch

    order = pw.search(ranks=4, microbatches=16, placement="v", memory=3).schedule
    schedule = pipewright.torch.runtime(order, stages, loss_fn=loss_fn)   # stages: this rank's PipelineStages
    schedule.step(inputs)

The names that this module uses are private in PyTorch and may change; an ImportError or AttributeError says so.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from . import ScheduleError
from ._schedule import Schedule


def runtime(schedule: Schedule, stages: list, *, loss_fn=None, channels: str = "rank", **options: Any):
    """Returns PyTorch's runtime for a schedule, after proving that it cannot deadlock there.

    `stages` are the PipelineStages of this rank, in the order of its stages in the schedule. A compute order is lowered
    first. `channels` is the model of the communicators: PyTorch 2.11 has one per rank, "rank". `options` go to PyTorch's
    constructor. Raises ScheduleError if the schedule is invalid under that model, ValueError if the stages are not those
    of this rank.
    """
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    program = schedule.lower(channels=channels)
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


__all__ = ["ScheduleError", "runtime"]
