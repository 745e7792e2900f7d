"""Runs pipelines of PyTorch modules with the executor of pipewright, in the place of torch.distributed.pipelining's schedules.

    import pipewright.torch as pw

    schedule = pw.Schedule("ZBV", stages, n_microbatches=8, loss_fn=loss_fn)   # this rank's PipelineStages
    schedule.step(inputs)                                                      # on the rank of the first stage
    schedule.step(target=target, losses=losses)                                # on the rank of the last stage

Importing it checks that its extension module was built for the installed torch.
"""

from . import _version

_version.check()

from ._errors import BatchError, HangError, StepError  # noqa: E402
from ._checkpoint import checkpoint  # noqa: E402
from ._recording import Recording  # noqa: E402
from ._schedule import Schedule  # noqa: E402
from ._world import register_backend  # noqa: E402

__all__ = ["BatchError", "HangError", "Recording", "Schedule", "StepError", "checkpoint", "register_backend"]
