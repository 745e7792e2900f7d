"""What a step raises, and how a Python exception is described to other ranks."""

import os
import traceback

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(__file__) + os.sep


class StepError(RuntimeError):
    """A step failed, on this rank or on another one.

    The message starts with the first cause, the same on all ranks: "rank 2, step 1, action 5 `2F2`: ValueError: out of luck
    (model.py:52 in forward)". On the rank where it happened, `__cause__` is the exception. All ranks must call
    Schedule.reset() before the next step, and gradients must be zeroed.
    """


class HangError(StepError):
    """Some rank made no progress until a time limit was over. The message names it, and says where every rank is."""


class BatchError(StepError):
    """The batch of some rank was wrong. Nothing of the step has run; the next step may follow."""


def describe(error: BaseException) -> str:
    """Returns type, message and place: "ValueError: out of luck (model.py:52 in forward)".

    The place is the innermost one outside of torch and of this package, or else the innermost.
    """
    message = str(error)
    text = type(error).__name__ + (f": {message}" if message else "")
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    users = [(code, line) for code, line in frames if not code.co_filename.startswith((_TORCH, _OURS, "<"))]
    if frames:
        code, line = (users or frames)[-1]
        text += f" ({os.path.basename(code.co_filename)}:{line} in {code.co_name})"
    return text


for _class in (StepError, HangError, BatchError):
    _class.__module__ = "pipewright_torch"
