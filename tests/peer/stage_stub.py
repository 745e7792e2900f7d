"""A stand-in for torch.distributed.pipelining's PipelineStage, for schedules that are built but not run."""


class Stage:
    """The attributes of a pipeline stage that PyTorch's schedules read when they are constructed."""

    def __init__(self, index, num_stages, num_ranks):
        self.stage_index, self.num_stages, self.group_size, self.group_rank = index, num_stages, num_ranks, 0
        self.group, self.has_backward, self.submod = None, False, None
        self.is_first, self.is_last = index == 0, index == num_stages - 1
